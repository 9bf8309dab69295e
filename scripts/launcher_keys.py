#!/usr/bin/env python
"""Writes the keys that Accelerate and transformers know, from their own classes.

    python scripts/launcher_keys.py           write schema.json of both formats
    python scripts/launcher_keys.py --check   exit 1 where a file is not what would be written

Needs the packages of the extra ``oracles``; the planner itself reads only the files.
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1] / "planner" / "formats"
SECTIONS = {
    "fsdp_config": "fsdp_",
    "deepspeed_config": "",
    "parallelism_config": "parallelism_config_",
    "fp8_config": "fp8_",
    "dynamo_config": "dynamo_",
    "mpirun_config": "mpirun_",
}
"""Sections of Accelerate's file, and what their keys start with; without one, the group of
``accelerate launch`` named DeepSpeed holds them."""
OPTIONAL = ("fsdp_config", "fp8_config", "dynamo_config")
"""Sections whose keys may be written without what they start with."""
KINDS: dict[str, dict[str, Any]] = {
    "flag": {"type": ["boolean", "null"]},
    "whole": {"type": ["integer", "null"]},
    "number": {"type": ["number", "null"]},
    "text": {"type": ["string", "number", "boolean", "null"]},
    "any": {},
}
REPLACED = {
    "adafactor": "optim adafactor",
    "dispatch_batches": "accelerator_config.dispatch_batches",
    "evaluation_strategy": "eval_strategy",
    "fp16_backend": "",
    "fp16_opt_level": "",
    "fsdp_min_num_params": "fsdp_config.min_num_params",
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_config.transformer_layer_cls_to_wrap",
    "group_by_length": "train_sampling_strategy group_by_length",
    "half_precision_backend": "",
    "include_inputs_for_metrics": "include_for_metrics",
    "include_tokens_per_second": "include_num_input_tokens_seen",
    "jit_mode_eval": "",
    "logging_dir": "variable TENSORBOARD_LOGGING_DIR",
    "mp_parameters": "",
    "no_cuda": "use_cpu",
    "overwrite_output_dir": "",
    "past_index": "",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_organization": "hub_model_id with the organization in it",
    "push_to_hub_token": "hub_token",
    "ray_scope": "",
    "save_safetensors": "",
    "sharded_ddp": "fsdp",
    "split_batches": "accelerator_config.split_batches",
    "torchdynamo": "torch_compile_backend",
    "tpu_metrics_debug": "debug",
    "tpu_num_cores": "",
    "use_ipex": "",
    "use_legacy_prediction_loop": "",
    "use_mps_device": "",
    "warmup_ratio": "warmup_steps, which takes a share below 1",
    "xpu_backend": "ddp_backend",
}
"""Keys of TrainingArguments that went between transformers 4.30 and 5, with what stands in for
them; empty where nothing does. Source: training_args.py of 4.30.2, 4.46.3, 4.57.1 beside 5.23.0."""
FLAGS = {
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "parallelism_config_sp_seq_length_is_variable",
}
"""Flags that ``accelerate launch`` takes as text without a default."""

UNLISTED = {"fsdp_ignored_modules": "text"}
"""Keys that utils/launch.py reads though ``accelerate launch`` has no such option."""
ANY = {"fsdp_reshard_after_forward", "fp8_override_linear_precision"}
"""A flag under FSDP2, the name of a strategy under FSDP1; three flags in a list."""
NUMBERS = {"fsdp_version"}
"""Whole numbers that ``accelerate launch`` takes as text of two choices."""


def option_kind(action: argparse.Action) -> str:
    """How a value of an option of ``accelerate launch`` reads."""
    if action.dest in ANY:
        return "any"
    if action.dest in NUMBERS:
        return "whole"
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


def keys(kinds: dict[str, str]) -> dict[str, Any]:
    """The schema of an object that has these keys and no others."""
    properties = {name: KINDS[kind] for name, kind in kinds.items()}
    return {"properties": properties, "additionalProperties": False}


def schema(title: str, definitions: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """A whole file's schema; lists of names are definitions beside it."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**about, "$defs": definitions, "type": "object", **rest}


def accelerate_keys() -> dict[str, Any]:
    """Keys of Accelerate's configuration file, at the top and in its sections."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType

    parser = launch_command_parser()
    groups = {group.title: group._group_actions for group in parser._action_groups}
    fields = dataclasses.fields(ClusterConfig)
    whole = keys({f.name: field_kind(f.type) for f in fields} | {"fp16": "flag"})
    whole["properties"]["dynamo_backend"] = KINDS["text"]
    for section, prefix in SECTIONS.items():
        actions = parser._actions if prefix else groups["DeepSpeed Arguments"]
        found = [a for a in actions if a.dest.startswith(prefix) and a.dest != "use_deepspeed"]
        kinds = {action.dest: option_kind(action) for action in found}
        kinds |= {k: kind for k, kind in UNLISTED.items() if prefix and k.startswith(prefix)}
        optional = {"prefix": prefix} if section in OPTIONAL else {}
        whole["properties"][section] = {"type": ["object", "null"], **optional, **keys(kinds)}
    # its keys are not read: a file that starts Megatron-LM is not covered
    whole["properties"]["megatron_lm_config"] = {"type": ["object", "null"]}
    title = f"Accelerate {version('accelerate')}: commands/config/config_args.py, launch.py"
    types = {"enum": [kind.value for kind in DistributedType]}
    return schema(title, {"distributed_types": types}, whole)


def trainer_keys() -> dict[str, Any]:
    """Keys of TrainingArguments, of its fsdp_config and of ParallelismConfig."""
    from accelerate.parallelism_config import ParallelismConfig
    from transformers.training_args import OptimizerNames, TrainingArguments

    source = inspect.getsource(TrainingArguments._process_fsdp_args)
    fsdp = re.findall(r"""fsdp_config(?:\.get\(|\.setdefault\(|\[)"(\w+)\"""", source)
    kinds = inspect.get_annotations(TrainingArguments)
    fields = [f for f in dataclasses.fields(TrainingArguments) if f.init]
    whole = keys({f.name: field_kind(kinds[f.name]) for f in fields})
    mesh = [f.name for f in dataclasses.fields(ParallelismConfig)]
    whole["properties"] |= {
        "fsdp": {"type": ["boolean", "string", "array", "null"]},
        "debug": KINDS["any"],
        "report_to": KINDS["any"],
        "fsdp_config": keys(dict.fromkeys(sorted({*fsdp, "version"}), "any")),
        "parallelism_config": keys(dict.fromkeys(mesh, "any")),
    }
    definitions = {
        "optim": {"enum": [name.value for name in OptimizerNames]},
        "replaced": {"const": REPLACED},
    }
    title = f"transformers {version('transformers')}: training_args.py"
    return schema(title, definitions, whole)


def texts() -> dict[Path, str]:
    """What the files should hold."""
    made = {"accelerate": accelerate_keys(), "trainer": trainer_keys()}
    return {
        ROOT / name / "schema.json": json.dumps(keys, indent=1) + "\n"
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
