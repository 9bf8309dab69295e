"""Rows and refusals that Accelerate and TrainingArguments share, each under keys of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.decision import (
    UNCHANGED,
    Cannot,
    Decided,
    KeyMapping,
    KeyValue,
    Of,
    Table,
    Value,
    of_key,
    reads,
    reasons,
    refusals,
    several,
    writes,
)
from planner.formats.deepspeed.decisions import no_offload
from planner.formats.deepspeed.keys import CODES, DEVICES
from planner.formats.settings import Settings, given, whole, word
from planner.spec.strategy import OFFLOAD_CODES, Strategy
from planner.spec.traits import TraitValue

assert tuple(DEVICES) == OFFLOAD_CODES
# What the section can say of DeepSpeed.
DEEPSPEED_SUPPORT: Mapping[str, TraitValue] = {
    "features": (),
    "partial_offload_zero_stages": (),
}
OFFLOADED = "optimizer+parameters:host"
# What becomes of gathered weights.
RESHARDING = {
    True: "zero_stage {zero_stage}: freed after forward and gathered again",
    False: "zero_stage {zero_stage}: kept until backward",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A way Accelerate runs a layout, by its ``distributed_type``."""

    title: str
    distributed_type: str
    table: Table


def num_machines(context: Context, strategy: Strategy) -> int:
    """Nodes of a plan."""
    return -(-strategy.num_gpus // context.cluster.node.num_accelerators)


_REFUSALS = refusals(__package__)
no_profile = _REFUSALS["profile"]
no_fsdp = several(*map(_REFUSALS.__getitem__, ("processors", "mesh", "layers", "fsdp")))
# Plain replicas, or tensor parallelism alone.
no_replicas = several(*map(_REFUSALS.__getitem__, ("mesh", "whole", "layers", "replicas")))
no_deepspeed = several(
    *map(_REFUSALS.__getitem__, ("processors", "section", "layers")),
    no_offload,
)
no_fsdp1_mesh = _REFUSALS["fsdp1"]


def steps_row(key: str, *elsewhere: str) -> KeyMapping:
    """Micro-batches per iteration, where no key ``elsewhere`` names a file that says them.

    Where the key is missing, script or job say it: one step is stated too.
    """

    def read(settings: Settings) -> int | None:
        is_own = key in settings and not settings.keys() & {*elsewhere}
        return whole(settings, key, 1) if is_own else None

    return of_key(
        "num_micro_batches",
        key,
        "num_micro_batches",
        "{num_micro_batches} micro-batches per iteration",
        of=several(
            reads("_steps", key, lambda settings: given(settings, key)),
            reads("num_micro_batches", key, read),
        ),
    )


def stage_row(key: str, of: Of, cannot: Cannot) -> KeyMapping:
    """DeepSpeed's stage."""
    return of_key(
        "zero_stage",
        key,
        "zero_stage",
        "zero_stage {zero_stage}",
        of=of,
        cannot=cannot,
    )


def devices_row(
    optimizer: str,
    parameters: str,
    stage_key: str,
    usual: int,
) -> KeyMapping:
    """Return DeepSpeed's offload row; it has no effect on what the ZeRO stage does not shard."""

    def of(settings: Settings) -> Decided:
        stage = whole(settings, stage_key, usual)
        states = word(settings, optimizer, "none").lower() if stage > 0 else "none"
        weights = word(settings, parameters, "none").lower() if stage > 2 else "none"
        code = CODES.get((states, weights))
        if code is None:
            yield "_unknown", optimizer, (states, weights)
        elif code != "none":
            yield "offload", optimizer, code

    why = "offload {offload}"
    return KeyMapping(
        names=("offload",),
        keys=(optimizer, parameters),
        to=writes(
            {
                optimizer: (lambda _, s: DEVICES[s.offload][0], why),
                parameters: (lambda _, s: DEVICES[s.offload][1], why),
            }
        ),
        of=of,
    )


def beside(key: str, value: Value, why: str) -> KeyMapping:
    """A key that is needed beside a decision, and is none."""
    return of_key("", key, value, why, is_default=True)


def wrap_row(key: str) -> KeyMapping:
    """FSDP's units: without it the model is one."""
    return beside(
        key,
        "'TRANSFORMER_BASED_WRAP'",
        "one unit per transformer block",
    )


def others(sections: Sequence[Section], lines: Iterable[KeyValue]) -> KeyMapping:
    """Keys that carry decisions in some sections, not all, and that the lines do not have: they go.

    What stands in every section is its own rows' to change.
    """
    kept = {line.key for line in lines}
    kept |= {
        key
        for each in sections
        for row in each.table
        for key, value in row.off.items()
        if value is UNCHANGED
    }
    tables = [{key for row in each.table for key in row.keys} for each in sections]
    kept |= set.intersection(*tables)
    return KeyMapping(names=(), keys=tuple(sorted(set.union(*tables) - kept)))


def section_for(
    context: Context, strategy: Strategy, among: Sequence[Section], own: Section | None = None
) -> Section:
    """The first section that expresses a strategy: ``own``, the plan's framework's, then all.

    ExpressError with the reasons of every section where none does.
    """
    gpus, per_node = strategy.num_gpus, context.cluster.node.num_accelerators
    found: list[str] = []
    is_uneven = gpus > per_node and gpus % per_node
    if is_uneven:
        found.append(f"num_gpus {gpus}: every node starts as many, here {per_node}")
    tried: list[Section | None] = [own, *among]
    if context.traits.name == "deepspeed":
        tried[1:1] = [each for each in among if each.distributed_type == "DEEPSPEED"]
    for section in dict.fromkeys(filter(None, tried)):
        refusals = reasons(section.table, context, strategy)
        if refusals:
            found.append(f"{section.title}: {'; '.join(refusals)}")
        elif not is_uneven:
            return section
    lines = "\n".join(f"  {reason}" for reason in found)
    raise ExpressError(f"Accelerate cannot express the plan:\n{lines}")
