"""Which framework generation a record ran on: the trait profile, and settings it states.

A profile belongs to a generation of a framework (its version, precision and compiler), never to
one source. Settings that the record itself states override single traits.
"""

import re
from dataclasses import dataclass, replace

from planner.frameworks.registry import load_traits
from planner.frameworks.runtime import (
    DEDUPLICATING,
    captured_fraction,
    runtime_settings,
    with_settings,
)
from planner.spec.traits import FrameworkTraits
from planner.validation.hardware import CannotEstimateError
from planner.validation.records import Record

BEFORE_FLASH_ATTENTION = re.compile(r"^(v100|a100)")
"""Megatron-LM runs in fp16 on these parts (2020-2022) precede fused attention in Megatron."""
MODULE_NAMES = {"norm": "layernorm", "act": "moe_act", "shared_expert": "shared_experts"}
"""Spellings of recompute modules in published records."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Traits of a run and what was assumed to choose them."""

    traits: FrameworkTraits
    notes: tuple[str, ...] = ()


def _megatron_lm(record: Record) -> tuple[str, str]:
    old = record.precision == "fp16" and BEFORE_FLASH_ATTENTION.match(record.hardware.gpu)
    return "megatron", "classic" if old else "current"


def _megatron_deepspeed(record: Record) -> tuple[str, str]:
    if record.parallel.zero in (2, 3):
        return "deepspeed", "current"
    return "deepspeed", "megatron-bf16" if record.precision == "bf16" else "megatron"


def is_compiled(record: Record) -> bool:
    """Whether torch.compile was on: as stated; float8 training needs it; default is off."""
    text = f"{record.id} {record.framework} {record.notes}"
    if re.search(r"compile off|torch\.compile off", record.notes):
        return False
    stated = re.search(r"compile on\b|, compile\b|^compile, |compile, ", text)
    return bool(stated) or record.precision != "bf16"


def _torchtitan(record: Record) -> tuple[str, str]:
    if "2024" not in record.source.title:
        return "torchtitan", "2025"
    return "torchtitan", "2024" if is_compiled(record) else "2024-eager"


def _fsdp1(record: Record) -> tuple[str, str]:
    """FSDP of PyTorch 1 and 2.0-2.3; Llama blocks run eagerly or compiled, GPT blocks eagerly."""
    if not record.model.gated_mlp:
        return "torchtitan", "fsdp1"
    return "torchtitan", "fsdp1-compiled" if is_compiled(record) else "fsdp1-llama"


_CHOICES = {
    "megatron-lm": _megatron_lm,
    "megatron-core": lambda _: ("megatron", "current"),
    "nemo/megatron-core": lambda _: ("megatron", "bridge"),
    "megatron-bridge/megatron-core": lambda _: ("megatron", "bridge"),
    "megatron-deepspeed": _megatron_deepspeed,
    "deepspeed-zero3": lambda _: ("deepspeed", "megatron"),
    "deepspeed": lambda _: ("deepspeed", "current"),
    "gpt-neox": lambda _: ("deepspeed", "neox"),
    "torchtitan": _torchtitan,
    "torchtitan/torchao": _torchtitan,
    "composer-fsdp": _fsdp1,
    "fms-fsdp (FSDP1, torch.compile)": _fsdp1,
}


def profile_of(record: Record) -> tuple[str, str]:
    """Return (framework, profile) of a record; CannotEstimateError without a profile."""
    choice = _CHOICES.get(record.framework)
    if choice is None:
        raise CannotEstimateError(f"no trait profile for {record.framework}")
    framework, profile = choice(record)
    if "overlap flags off" in record.notes:
        return framework, "no-overlap"
    return framework, profile


def to_setup(record: Record) -> Setup:
    """Return the traits of a record's framework generation with its stated settings."""
    framework, profile = profile_of(record)
    traits = load_traits(framework, profile)
    notes: list[str] = []
    mixed = re.search(r"mixed_precision (PURE|DEFAULT)", record.notes)
    if mixed:
        wire = 2.0 if mixed.group(1) == "PURE" else 4.0
        notes.append(f"gradients reduced in {wire:.0f} bytes as stated")
        traits = replace(traits, states=replace(traits.states, gradient_reduce_bytes=wire))
    if re.search(r"async-?tp", f"{record.id} {record.notes}", re.IGNORECASE):
        notes.append("asynchronous tensor parallelism as stated")
        overlap = replace(traits.overlap, tensor_parallel_overlap="ring")
        traits = replace(traits, overlap=overlap)
    traits = _with_modules(record, traits, notes)
    traits = _with_runtime(record, traits, notes)
    return Setup(traits=traits, notes=tuple(notes))


def recompute_modules(record: Record) -> tuple[str, ...]:
    """Modules a record says were recomputed, under the launcher's names."""
    given = record.parallel.recompute_modules
    if not given:
        return ()
    names = given if not isinstance(given, str) else re.split(r"[,\s]+", given)
    return tuple(MODULE_NAMES.get(name, name) for name in names if name)


def _with_modules(record: Record, traits: FrameworkTraits, notes: list[str]) -> FrameworkTraits:
    """Apply the record's stated recompute modules where the framework has them."""
    known = {module.name for module in traits.recompute.modules}
    selected = tuple(name for name in recompute_modules(record) if name in known)
    if not selected:
        return traits
    notes.append(f"recomputed modules {', '.join(selected)} as stated")
    return replace(traits, recompute=replace(traits.recompute, selected=selected))


def graph_scopes(record: Record) -> tuple[str, ...]:
    """What the CUDA graphs that a record states capture."""
    scope = record.runtime.get("cuda_graph_scope") or ()
    parts = (scope,) if isinstance(scope, str) else tuple(scope)
    kind = record.runtime.get("cuda_graph")
    if kind == "none":
        return ()
    return (*parts, kind) if kind else parts


def dispatcher_of(record: Record) -> str | None:
    """Expert dispatcher a record states, in its runtime settings or in its name."""
    stated = record.runtime.get("moe_dispatcher")
    named = (name for name in DEDUPLICATING if f"-{name}" in record.id)
    return str(stated) if stated else next(named, None)


def overlaps_all_to_all(record: Record) -> bool:
    """Whether a record states that expert communication hides behind another micro-batch."""
    return bool(record.runtime.get("moe_a2a_overlap")) or "EP-A2A overlap on" in record.notes


def _with_runtime(record: Record, traits: FrameworkTraits, notes: list[str]) -> FrameworkTraits:
    """Apply the record's stated CUDA graphs and expert dispatcher."""
    scopes, dispatcher = graph_scopes(record), dispatcher_of(record)
    overlaps = overlaps_all_to_all(record) or None
    if captured := captured_fraction(scopes):
        notes.append(f"CUDA graphs replay {captured:.0%} of a mixture's launches as stated")
    if overlaps:
        notes.append("expert all-to-all beside another micro-batch as stated")
    if dispatcher:
        notes.append(f"expert dispatcher {dispatcher} as stated")
    settings = runtime_settings(graphs=scopes, dispatcher=dispatcher, expert_overlap=overlaps)
    return with_settings(traits, settings)
