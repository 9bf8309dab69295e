"""A layout given degree by degree: fills in what is missing, refuses what is illegal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.cost.context import Context
from planner.errors import InputError, Problem
from planner.search.space.interleaving import default_layers
from planner.search.space.legality import violations
from planner.spec.strategy import (
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    SCHEDULES,
    V_SHAPED,
    Strategy,
)

LAYERS = "layers_per_stage"
DERIVED = {
    "selective_layers_per_stage": "recompute_layers",
    "recompute_layers_per_stage": "recompute_layers",
    "offloaded_layers_per_stage": "offload_activations",
}
"""Follow from layers per stage and an option; left out where the layers are wrong already."""
OPTIONS = {"num_micro_batches": "global_batch", **DERIVED}
"""Options that decide what has no option of its own."""
MAX_DEGREE = 10**7
ZERO_STAGES = (0, 1, 2, 3)
RECOMPUTE_KINDS = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class LayoutRequest:
    """Degrees as given; None is filled in."""

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    """One, or two under V-shaped schedules, when None."""
    schedule: str = "1f1b"
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """What tp and ep bring with them in the framework, when None."""
    dp: int | None = None
    dp_replicate: int = 1
    zero_stage: int | None = None
    micro_batch: int = 1
    global_batch: int | None = None
    """In sequences; the context's, rounded up to whole micro-batches, when None."""
    sequence_parallel: bool | None = None
    recompute: str = "none"
    recompute_layers: int | None = None
    """Layers of every stage under the policy; all of them when None."""
    offload: str = "none"
    offload_percent: int = 100
    """Of the optimizer's states, where they are offloaded, how many."""
    offloaded_layers: int | Literal["all"] | None = None
    """Layers of every stage whose saved activations go to the host."""
    placement: str = PLACEMENT_NAMES[0]
    layers_per_stage: tuple[int, ...] | None = None


def _zero_stage(context: Context, request: LayoutRequest) -> int:
    """The highest usual stage the framework offers here with this optimizer."""
    support = context.traits.support
    offered = support.zero_stages_with_pp if request.pp > 1 else support.zero_stages
    possible = set(offered) & set(context.traits.optimizer.zero_stages)
    usual = {stage for stage in possible if stage <= support.usual_zero_stage}
    return max(usual or possible, default=0)


def _data_parallel(context: Context, request: LayoutRequest) -> int:
    """All that is left of the cluster."""
    return max(context.cluster.num_accelerators // (request.tp * request.pp * request.cp), 1)


def option_problems(request: LayoutRequest) -> list[tuple[str, str]]:
    """What is wrong with single options, whatever the model and the cluster."""
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_replicate", "micro_batch")
    problems = [
        (f"--{name.replace('_', '-')}", f"must be from 1 to {MAX_DEGREE:,}; given {value}")
        for name in names
        if (value := getattr(request, name)) is not None and not 1 <= value <= MAX_DEGREE
    ]
    if request.zero_stage is not None and request.zero_stage not in ZERO_STAGES:
        problems.append(("--zero-stage", f"must be 0, 1, 2 or 3; given {request.zero_stage}"))
    if request.recompute == "none" and request.recompute_layers is not None:
        problems.append(("--recompute-layers", "needs --recompute selective or full"))
    if request.recompute not in RECOMPUTE_KINDS:
        allowed = ", ".join(RECOMPUTE_KINDS)
        problems.append(
            ("--recompute", f"unknown policy {request.recompute!r}; allowed are {allowed}")
        )
    if request.offload not in OFFLOAD_CODES:
        allowed = ", ".join(OFFLOAD_CODES)
        problems.append(
            ("--offload", f"unknown offload {request.offload!r}; allowed are {allowed}")
        )
    problems += _offload_problems(request)
    if request.placement not in PLACEMENT_NAMES:
        text = f"unknown order {request.placement!r}; allowed are {', '.join(PLACEMENT_NAMES)}"
        problems.append(("--placement", text))
    if request.schedule not in SCHEDULES:
        problems.append(
            (
                "--schedule",
                f"unknown schedule {request.schedule!r}; allowed are {', '.join(SCHEDULES)}",
            )
        )
    if request.recompute_layers is not None and request.recompute_layers < 1:
        problems.append(
            ("--recompute-layers", f"must be at least 1; given {request.recompute_layers}")
        )
    return problems


def _offload_problems(request: LayoutRequest) -> list[tuple[str, str]]:
    """What is wrong with how much is offloaded."""
    problems, percent, layers = [], request.offload_percent, request.offloaded_layers
    if not 1 <= percent <= 100:
        problems.append(("--offload-percent", f"must be from 1 to 100; given {percent}"))
    elif percent < 100 and request.offload in OFFLOAD_CODES and "optimizer" not in request.offload:
        text = f"needs --offload with the optimizer's states; given {request.offload}"
        problems.append(("--offload-percent", text))
    if isinstance(layers, int) and layers < 1:
        problems.append(("--offload-activations", f"must be all, or at least 1; given {layers}"))
    return problems


def _problems_with(context: Context, request: LayoutRequest) -> list[tuple[str, str]]:
    """What would break filling the layout in."""
    problems, num_layers = [], context.model.num_blocks
    traits, pp = context.traits, request.pp
    stages = traits.support.zero_stages_with_pp if pp > 1 else traits.support.zero_stages
    if not set(stages) & set(traits.optimizer.zero_stages):
        given = ", ".join(map(str, stages)) or "none"
        text = (
            f"{traits.optimizer.name} runs under no ZeRO stage {traits.name} offers here ({given})"
        )
        problems.append(("--optimizer", text))
    if request.pp > num_layers:
        problems.append(("--pp", f"must be at most {num_layers}, the layers; given {request.pp}"))
    most = request.recompute_layers or 1
    even = default_layers(num_layers, min(request.pp, num_layers), 1)
    longest = max(request.layers_per_stage or even)
    text = f"no stage has more than {longest} layers; given "
    if most > longest:
        problems.append(("--recompute-layers", f"{text}{most}"))
    offloaded = request.offloaded_layers
    if isinstance(offloaded, int) and offloaded > longest:
        problems.append(("--offload-activations", f"{text}{offloaded}"))
    support = context.traits.support.sequence_parallel
    if request.sequence_parallel and not support:
        text = f"{context.traits.name} offers no sequence parallelism"
        problems.append(("--sequence-parallel", text))
    return problems


def _raise(problems: Sequence[tuple[str, str]]) -> None:
    if problems:
        raise InputError(
            Problem(where="command line", key=key, message=message) for key, message in problems
        )


def _fill(context: Context, request: LayoutRequest) -> Strategy:
    """Complete the request; nothing is checked."""
    vpp = request.vpp or (2 if request.schedule in V_SHAPED else 1)
    layers = request.layers_per_stage or default_layers(context.model.num_blocks, request.pp, vpp)
    none = (0,) * len(layers)

    def at_most(limit: int | Literal["all"]) -> tuple[int, ...]:
        return layers if limit == "all" else tuple(min(number, limit) for number in layers)

    chosen = at_most(request.recompute_layers or "all")
    shards_sequence = request.sequence_parallel
    if shards_sequence is None:
        shards_sequence = request.tp > 1 and context.traits.support.sequence_parallel
    zero_stage = request.zero_stage
    dp = request.dp or _data_parallel(context, request)
    batch = request.global_batch or context.job.global_batch
    return Strategy(
        dp=dp,
        dp_replicate=request.dp_replicate,
        tp=request.tp,
        pp=request.pp,
        vpp=vpp,
        schedule=request.schedule,
        cp=request.cp,
        ep=request.ep,
        etp=request.etp or int(context.traits.support.usual_etp(request.tp, request.ep)),
        zero_stage=_zero_stage(context, request) if zero_stage is None else zero_stage,
        micro_batch=request.micro_batch,
        num_micro_batches=-(-batch // (dp * request.micro_batch)),
        sequence_parallel=shards_sequence,
        offload=request.offload,
        offload_percent=request.offload_percent,
        offloaded_layers_per_stage=at_most(request.offloaded_layers)
        if request.offloaded_layers
        else (),
        placement=request.placement,
        layers_per_stage=layers,
        selective_layers_per_stage=chosen if request.recompute == "selective" else none,
        recompute_layers_per_stage=chosen if request.recompute == "full" else none,
    )


def with_batch(context: Context, strategy: Strategy) -> Context:
    """The context with the global batch this strategy runs."""
    batch = strategy.dp * strategy.micro_batch * strategy.num_micro_batches
    return replace(context, job=replace(context.job, global_batch=batch))


def resolve(context: Context, request: LayoutRequest) -> tuple[Context, Strategy]:
    """Return the complete strategy and the context with its batch.

    Raises InputError with every broken rule and its numbers.
    """
    _raise(option_problems(request))
    _raise(_problems_with(context, request))
    strategy = _fill(context, request)
    if request.global_batch is None:
        context = with_batch(context, strategy)
    broken = list(violations(context, strategy))
    has_layers = all(key != LAYERS for key, _ in broken)
    _raise(
        [
            (f"--{OPTIONS.get(key, key).replace('_', '-')}", text)
            for key, text in broken
            if has_layers or key not in DERIVED
        ]
    )
    return context, strategy
