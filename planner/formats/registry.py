"""Finds the formats of configuration files.

One per folder with a module ``format.py``, and one per table of a front end.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources

from planner.documents.tree import load_own
from planner.errors import InputError
from planner.formats.format import Format, Hosts, SourceText
from planner.formats.trainer.tools import tool_names
from planner.spec.traits import FrameworkTraits


@cache
def format_names() -> tuple[str, ...]:
    """Names of all formats, sorted; none is imported."""
    folder = resources.files("planner.formats")
    formats = (each for each in folder.iterdir() if each.joinpath("format.py").is_file())
    return tuple(sorted([*tool_names(), *(each.name for each in formats)]))


@cache
def load_format(name: str) -> Format:
    """Return a format by name; InputError where there is none."""
    if name not in format_names():
        allowed = ", ".join(format_names())
        raise InputError.single("command line", name, f"unknown format; allowed are {allowed}")
    if name in tool_names():
        from planner.formats.trainer.format import front_end

        return front_end(name)
    found: Format = import_module(f"planner.formats.{name}.format").FORMAT
    return found


def written_names() -> tuple[str, ...]:
    """Names of the formats that plans are written in."""
    return tuple(name for name in format_names() if load_format(name).is_written)


def format_of(traits: FrameworkTraits) -> Format:
    """The framework's own format; where its files cannot say what is trained, one that can."""
    own, mode = load_format(traits.name), traits.training.mode
    if mode in own.trains:
        return own
    others = map(load_format, written_names())
    can = (each for each in others if each.framework == traits.name and mode in each.trains)
    return next(can, own)


def recognised(source: SourceText) -> list[Format]:
    """All formats that take the file for theirs."""
    return [each for each in map(load_format, format_names()) if each.recognise(source)]


def hosts_in(source: SourceText) -> tuple[Format, Hosts] | None:
    """Whose hostfile a file is, and what it says; None where it is none."""
    for kind in map(load_format, format_names()):
        if hosts := kind.hosts(source):
            return kind, hosts
    return None


# A program, and what its files alone hold, by how the names of these end.
_PROGRAMS = {
    (".yaml", ".yml", ".json"): {
        "Megatron-LM in YAML (--yaml-cfg)": (
            r"\A(?=[\s\S]*^language_model:)(?=[\s\S]*^model_parallel:)"
        ),
        "Megatron-LM in YAML (MODEL_ARGS)": (
            r"^MODEL_ARGS:[^\n]*$(?=(?:\n[ \t]*(?:#[^\n]*)?$)*\n[ \t]+['\"]?--)"
        ),
        "GPT-NeoX": (
            r"^\s*[\"'](pipe.parallel.size|model.parallel.size|pos.emb|attention.config|data.impl"
            r"|lr.decay.iters|text.gen.type|mock.run)[\"']\s*:"
        ),
        "LLaMA-Factory 1.0": r"\A(?=[\s\S]*^train_dataset:)(?=[\s\S]*^model:)",
        "NeMo-RL": r"\A(?=[\s\S]*^policy:)(?=[\s\S]*^\s+(megatron_cfg|dtensor_cfg):)",
        "NeMo-Automodel": r"\bnemo_automodel\.\w|^recipe:\s*\n?\s*(_target_|Train)",
        "NeMo 2": r"\b_target_:\s*nemo\.(collections\.llm|lightning)\.",
        "NeMo 1.x": (
            r"^(trainer|exp_manager|run|defaults|model):(?=[\s\S]*^\s+(micro_batch_size"
            r"|tensor_model_parallel_size|model_parallel_size|trainer_configs|num_nodes):)"
        ),
        "verl": r"^actor_rollout_ref:",
    },
    (".sh", ".slurm", ".sbatch"): {
        "verl": r"^[^#\n]*\b(verl[./](trainer|experimental|recipe)|recipe[./]\w+)[./]\w",
        "OpenRLHF": r"^[^#\n]*\bopenrlhf[./]cli[./]train_",
        "Megatron-SWIFT": r"^\s*megatron (sft|pt|rlhf)\b",
        "TRL's trainers for preferences": r"^[^#\n]*\btrl (dpo|grpo|kto|reward|rloo) ",
    },
}


def program_of(source: SourceText) -> str:
    """The program whose configuration a file is; empty where that is not known."""
    # Configurations of other programs are named and not taken for something else.
    for ends, patterns in _PROGRAMS.items():
        if source.path.lower().endswith(ends):
            for name, pattern in patterns.items():
                if re.search(pattern, source.text, re.MULTILINE):
                    return name
    return ""


@cache
def left_open(name: str) -> Mapping[str, str]:
    """Return what is left to the user of a format, and the keys for it."""
    by_format: dict[str, dict[str, str]] = load_own(__package__, "left_open.yaml")
    return by_format.get(name, {})
