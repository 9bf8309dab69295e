"""How a plan's decisions stand under FSDP and as whole replicas; which section carries a plan."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.accelerate import decisions_deepspeed as deepspeed
from planner.formats.accelerate import keys
from planner.formats.accelerate.section import (
    MESH,
    Section,
    accumulation,
    of_mesh,
    recomputes_all,
    to_mesh,
    top,
)
from planner.formats.adapters import unnamed_targets
from planner.formats.decision import (
    Decision,
    Line,
    beyond,
    line,
    of_key,
    reasons,
    switched,
    unlike_layers,
)
from planner.formats.format import ALL, Value
from planner.formats.settings import Settings, as_flag, decided, flag, given, whole, word
from planner.spec.strategy import Strategy
from planner.spec.traits import TraitValue

_NO_PIPELINE = "ParallelismConfig trains no pipeline"
CANNOT = {
    "pp": _NO_PIPELINE,
    "vpp": _NO_PIPELINE,
    "schedule": _NO_PIPELINE,
    "ep": "ParallelismConfig has no expert parallelism",
    "sequence_parallel": "transformers' tensor-parallel plans split no norms",
    "offload_percent": "offloading takes all states or none",
}
OFFLOADED = "optimizer+parameters:host"
_FSDP1_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
_FSDP1_STAGES |= {"HYBRID_SHARD_ZERO2": 2, "1": 3, "2": 2, "3": 0, "4": 3, "5": 2}
SPLIT_STAGE = 2
"""What a plan calls tensor parallelism alone: the lowest stage of this framework's traits. With
one rank per shard of the model all stages are one."""


def no_fsdp(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why FSDP2 cannot carry a layout."""
    yield from deepspeed.no_processors(context)
    yield from beyond(strategy, CANNOT)
    yield from unlike_layers(strategy)
    if strategy.zero_stage not in (2, 3):
        given = strategy.zero_stage
        yield f"zero_stage {given}: FSDP2 keeps gathered weights (2) or frees them (3)"
    if strategy.offload not in ("none", OFFLOADED):
        yield f"offload {strategy.offload}: FSDP2 offloads parameters with their states, or nothing"
    shard = strategy.dp // strategy.dp_replicate
    if strategy.num_gpus > 1 and shard * strategy.cp == 1:
        yield f"dp_shard {shard}, cp {strategy.cp}: FSDP2 needs ranks to shard over"
    elif strategy.dp_replicate > 1 and shard == 1:
        yield f"dp_replicate {strategy.dp_replicate}: with tp or cp, dp_shard must be above 1"


def no_replicas(_: Context, strategy: Strategy) -> Iterator[str]:
    """Why plain replicas, or tensor parallelism alone, cannot carry a layout, whatever the job."""
    yield from beyond(strategy, {**CANNOT, **_REPLICATED})
    yield from unlike_layers(strategy)
    if strategy.dp_replicate not in (1, strategy.dp):
        yield f"dp_replicate {strategy.dp_replicate}: without a section nothing is sharded"
    if strategy.tp > 1 and strategy.dp > 1:
        yield f"tp {strategy.tp} with dp {strategy.dp}: replicas of a split model need FSDP2"
    elif strategy.zero_stage != (SPLIT_STAGE if strategy.tp > 1 else 0):
        yield f"zero_stage {strategy.zero_stage}: without a section nothing is sharded"


_REPLICATED = {
    "cp": "Accelerate runs context parallelism under FSDP2 only",
    "offload": "without a section nothing is offloaded",
}


def resharding(strategy: Strategy) -> str:
    """What becomes of gathered weights."""
    after = "freed after forward and gathered again"
    kept = "kept until backward"
    return f"zero_stage {strategy.zero_stage}: {after if strategy.zero_stage == 3 else kept}"


def _to_reshard(_: Context, strategy: Strategy) -> tuple[Line, ...]:
    return line(keys.RESHARD, strategy.zero_stage == 3, resharding(strategy))


def _of_reshard(settings: Settings) -> Iterator[tuple[str, Value]]:
    stage = 3 if flag(settings, keys.RESHARD, default=True) else 2
    yield "zero_stage", decided(settings, keys.RESHARD, stage)
    named = given(settings, keys.RESHARD)
    if named is not None and as_flag(named) is None:
        yield "_strategy", decided(settings, keys.RESHARD, named)


def _to_offload(_: Context, strategy: Strategy) -> tuple[Line, ...]:
    offloads = strategy.offload != "none"
    where = "on the host between uses" if offloads else "on the accelerators"
    return line(keys.OFFLOAD, offloads, f"parameters, gradients and states live {where}")


def _to_checkpoints(_: Context, strategy: Strategy) -> tuple[Line, ...]:
    full = recomputes_all(strategy)
    why = "every block is recomputed in backward" if full else "no block is recomputed"
    return line(keys.CHECKPOINTING, full, why)


def _of_version(settings: Settings) -> Iterator[tuple[str, Value]]:
    yield "_version", decided(settings, keys.VERSION, whole(settings, keys.VERSION, 1))


def _of_strategy(settings: Settings) -> Iterator[tuple[str, Value]]:
    """FSDP1 also takes its strategy under the name of FSDP2's flag."""
    is_other = keys.STRATEGY not in settings and keys.RESHARD in settings
    key = keys.RESHARD if is_other else keys.STRATEGY
    stage = _FSDP1_STAGES.get(word(settings, key, "FULL_SHARD").upper(), 3)
    yield "zero_stage", decided(settings, key, stage)


def _of_replicas(settings: Settings) -> Iterator[tuple[str, Value]]:
    found = {name: value.value for name, value in of_mesh(settings)}
    stage = SPLIT_STAGE if "tp" in found and found.get("dp") == 1 else 0
    if keys.TYPE in settings:
        yield "zero_stage", decided(settings, keys.TYPE, stage)


def _no_mesh(_: Context, strategy: Strategy) -> Iterator[str]:
    for name in ("tp", "cp", "dp_replicate"):
        if getattr(strategy, name) > 1:
            yield f"{name} {getattr(strategy, name)}: FSDP1 has no mesh; fsdp_version 2 has"


_STATES = (
    Decision(
        names=("offload",),
        keys=(keys.OFFLOAD,),
        to=_to_offload,
        of=switched("offload", keys.OFFLOAD, OFFLOADED),
    ),
    of_key(
        "",
        keys.WRAP,
        lambda *_: "TRANSFORMER_BASED_WRAP",
        "one unit per transformer block",
        is_default=True,
    ),
    Decision(
        names=("recompute_layers_per_stage",),
        keys=(keys.CHECKPOINTING,),
        to=_to_checkpoints,
        of=switched("recompute_layers_per_stage", keys.CHECKPOINTING, ALL),
    ),
)
FSDP = Section(
    title="fsdp_config",
    distributed_type="FSDP",
    table=(
        *top("fsdp_config", "FSDP"),
        of_key(
            "_version", keys.VERSION, lambda *_: 2, "FSDP2 shards parameter by parameter",
            of=_of_version, cannot=no_fsdp,
        ),
        Decision(names=("zero_stage",), keys=(keys.RESHARD,), to=_to_reshard, of=_of_reshard),
        *_STATES,
        MESH,
    ),
    environment=accumulation,
)  # fmt: skip
FSDP1 = replace(
    FSDP,
    title="fsdp_config of FSDP1",
    table=(
        *top("fsdp_config of FSDP1", "FSDP"),
        of_key(
            "zero_stage",
            keys.STRATEGY,
            lambda _, s: "FULL_SHARD" if s.zero_stage == 3 else "SHARD_GRAD_OP",
            "how FSDP1 says the stage",
            of=_of_strategy,
            cannot=no_fsdp,
        ),
        *_STATES,
        replace(MESH, to=lambda *_: (), cannot=_no_mesh),
    ),
)
"""Of files that are there; new ones are for FSDP2."""
REPLICATED = Section(
    title="no section",
    distributed_type="MULTI_GPU",
    table=(
        *top("no section", "MULTI_GPU"),
        Decision(names=("zero_stage",), keys=(), of=_of_replicas, cannot=no_replicas),
        replace(MESH, to=lambda context, s: to_mesh(context, s) if s.tp > 1 else ()),
    ),
    environment=accumulation,
)
SECTIONS = (FSDP, REPLICATED, deepspeed.DEEPSPEED)
"""In the order they are tried: FSDP2 is what plans for this framework assume."""
BY_TYPE = {"NO": REPLICATED} | {section.distributed_type: section for section in SECTIONS}
SUPPORT: Mapping[str, Mapping[str, TraitValue]] = {"deepspeed": deepspeed.DEEPSPEED_SUPPORT}
"""By framework whose section carries its plans what that section can say of it."""


def section_of(settings: Settings) -> Section | None:
    """The part of the file that holds, by its ``distributed_type``."""
    return FSDP1 if keys.is_fsdp1(settings) else BY_TYPE.get(keys.type_of(settings))


def part(settings: Settings) -> str | None:
    """Title of the section that shards; None where none does."""
    section = section_of(settings)
    return None if section is None or section is REPLICATED else section.title


def engine(settings: Settings) -> str | None:
    """The framework that trains, where it is not PyTorch's own."""
    return "deepspeed" if section_of(settings) is deepspeed.DEEPSPEED else None


def problems(context: Context) -> Iterator[str]:
    """What no section can say whatever the layout."""
    yield from deepspeed.no_profile(context)
    yield from unnamed_targets(context)


def _uneven_nodes(context: Context, strategy: Strategy) -> str:
    """Why the processes cannot be spread over the nodes; empty where they can."""
    per_node = context.cluster.node.num_accelerators
    if strategy.num_gpus <= per_node or strategy.num_gpus % per_node == 0:
        return ""
    return f"num_gpus {strategy.num_gpus}: every node starts as many, here {per_node}"


def carrier(
    context: Context,
    strategy: Strategy,
    own: Section | None = None,
    among: tuple[Section, ...] = SECTIONS,
) -> Section:
    """The first section that expresses a strategy: ``own``, the plan's framework's, then all.

    ExpressError with the reasons of every section where none does.
    """
    kinds = {section.distributed_type: section for section in among}
    named = kinds.get("DEEPSPEED") if context.traits.name == "deepspeed" else None
    uneven = _uneven_nodes(context, strategy)
    found = [uneven] if uneven else []
    for section in dict.fromkeys(each for each in (own, named, *among) if each):
        refusals = reasons(section.table, context, strategy)
        if not refusals and not uneven:
            return section
        if refusals:
            found.append(f"{section.title}: {'; '.join(refusals)}")
    lines = "\n".join(f"  {reason}" for reason in found)
    raise ExpressError(f"Accelerate cannot express the plan:\n{lines}")
