#!/usr/bin/env python
"""Writes the keys that Accelerate and transformers know, from their own classes.

    python scripts/launcher_keys.py           write keys.yaml of both formats
    python scripts/launcher_keys.py --check   exit 1 where a file is not what would be written

Needs the packages of the extra ``oracles``; the planner itself reads only the files.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1] / "planner" / "formats"
SECTIONS = {
    "fsdp_config": "fsdp_",
    "deepspeed_config": "",
    "megatron_lm_config": "megatron_lm_",
    "parallelism_config": "parallelism_config_",
    "fp8_config": "fp8_",
    "dynamo_config": "dynamo_",
    "mpirun_config": "mpirun_",
}
"""Sections of Accelerate's file, and what their keys start with; without one, the group of
``accelerate launch`` named DeepSpeed holds them."""
FLAGS = {
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "megatron_lm_sequence_parallelism",
    "megatron_lm_recompute_activations",
    "megatron_lm_use_distributed_optimizer",
    "megatron_lm_attention_backend",
    "megatron_lm_attention_softmax_in_fp32",
    "megatron_lm_calculate_per_token_loss",
    "megatron_lm_use_rotary_position_embeddings",
    "parallelism_config_sp_seq_length_is_variable",
}
"""Flags that ``accelerate launch`` takes as text without a default."""

UNLISTED = {"fsdp_ignored_modules": "text"}
"""Keys that utils/launch.py reads though ``accelerate launch`` has no such option."""
ANY = {"fsdp_reshard_after_forward", "fp8_override_linear_precision"}
"""A flag under FSDP2, the name of a strategy under FSDP1; three flags in a list."""


def option_kind(action: argparse.Action) -> str:
    """How a value of an option of ``accelerate launch`` reads."""
    if action.dest in ANY:
        return "any"
    name = getattr(action.type, "__name__", "")
    is_flag = action.const is True or name in ("bool", "str_to_bool")
    if is_flag or str(action.default) in ("true", "false") or action.dest in FLAGS:
        return "flag"
    return {"int": "whole", "float": "number"}.get(name, "text")


def field_kind(annotation: object) -> str:
    """How a value of a field reads, by its annotation."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    if "dict" in text.lower() or "list" in text.lower() or "Config" in text:
        return "any"
    for word, kind in (("str", "text"), ("float", "number"), ("int", "whole"), ("bool", "flag")):
        if word in text:
            return kind
    return "any"


def accelerate_keys() -> dict[str, Any]:
    """Keys of Accelerate's configuration file, at the top and in its sections."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType

    parser = launch_command_parser()
    groups = {group.title: group._group_actions for group in parser._action_groups}
    fields = dataclasses.fields(ClusterConfig)
    top = {f.name: "section" if f.name in SECTIONS else field_kind(f.type) for f in fields}
    top |= {"fp16": "flag", "dynamo_backend": "text"}
    sections = {}
    for section, prefix in SECTIONS.items():
        actions = parser._actions if prefix else groups["DeepSpeed Arguments"]
        found = [a for a in actions if a.dest.startswith(prefix) and a.dest != "use_deepspeed"]
        keys = {action.dest: option_kind(action) for action in found}
        unlisted = {k: kind for k, kind in UNLISTED.items() if prefix and k.startswith(prefix)}
        sections[section] = {"prefix": prefix, "keys": keys | unlisted}
    return {
        "source": f"accelerate {version('accelerate')}: commands/config/config_args.py, launch.py",
        "distributed_types": [kind.value for kind in DistributedType],
        "top": top,
        "sections": sections,
    }


def trainer_keys() -> dict[str, Any]:
    """Keys of TrainingArguments, of its fsdp_config and of ParallelismConfig."""
    from accelerate.parallelism_config import ParallelismConfig
    from transformers.training_args import OptimizerNames, TrainingArguments

    source = inspect.getsource(TrainingArguments._process_fsdp_args)
    fsdp = re.findall(r"""fsdp_config(?:\.get\(|\.setdefault\(|\[)"(\w+)\"""", source)
    kinds = inspect.get_annotations(TrainingArguments)
    fields = [f for f in dataclasses.fields(TrainingArguments) if f.init]
    return {
        "source": f"transformers {version('transformers')}: training_args.py",
        "top": {f.name: field_kind(kinds[f.name]) for f in fields},
        "optim": [name.value for name in OptimizerNames],
        "fsdp_config": sorted({*fsdp, "version"}),
        "parallelism_config": [f.name for f in dataclasses.fields(ParallelismConfig)],
    }


def texts() -> dict[Path, str]:
    """What the files should hold."""
    made = {"accelerate": accelerate_keys(), "trainer": trainer_keys()}
    head = "# Made by scripts/launcher_keys.py.\n"
    return {
        ROOT / name / "keys.yaml": head + yaml.safe_dump(keys, sort_keys=False, width=100)
        for name, keys in made.items()
    }


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for path, text in texts().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "all keys are up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
