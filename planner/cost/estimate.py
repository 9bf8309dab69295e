"""The full, itemised estimate of one strategy: time and memory, every number with an address."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.build import (
    build_parts,
    layer_times,
    link_seconds,
    optimizer_s_per_param,
    stage_model,
    tied_embedding_s,
)
from planner.cost.context import Context
from planner.cost.flops import model_flops_per_iteration
from planner.cost.kernels import peak_flops_per_s
from planner.cost.layer import Duration, TimeItems, add_items, layer_shape, scale_items
from planner.cost.pipeline import makespan_s
from planner.cost.stage import (
    StageModel,
    all_stages,
    fits,
    in_flight_matrix,
    iteration_s,
    stage_host_bytes,
    stage_peak_bytes,
    stage_tail_s,
    stage_time_s,
    transient_bytes,
)
from planner.layers.block import layer_groups
from planner.spec.strategy import Strategy
from planner.units import Array

NEGLIGIBLE_S = 1e-12
"""Items below this are rounding, not time."""


@dataclass(frozen=True, kw_only=True)
class TimeItem:
    """One item of iteration time, on the slowest stage."""

    busy_s: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of the fullest stage, item by item, and the peak of every stage."""

    peak_bytes: float
    allocated_bytes: float
    usable_bytes: float
    peak_stage: int
    moment: str
    items: dict[str, float]
    """Bytes by dotted name; their sum is peak_bytes."""
    stage_peak_bytes: tuple[float, ...]
    stage_allocated_bytes: tuple[float, ...]
    host_bytes: float
    """Offloaded bytes per rank."""
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Everything the model says about one strategy."""

    iter_time_s: float
    iter_time_s_lower: float
    """All tensor-, data- and pipeline-parallel communication hidden."""
    iter_time_s_upper: float
    """None of it hidden."""
    time: dict[str, TimeItem]
    """By dotted name; exposed seconds sum to iter_time_s."""
    slowest_stage: int
    memory: MemoryEstimate
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops: float
    mfu: float


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A strategy's layers and policies as 1 x P matrices."""

    layers: Array
    selective: Array
    full: Array


def _split(strategy: Strategy) -> _Split:
    def row(values: tuple[int, ...]) -> Array:
        return np.array([values], dtype=float)

    return _Split(
        layers=row(strategy.layers_per_stage),
        selective=row(strategy.selective_layers_per_stage),
        full=row(strategy.recompute_layers_per_stage),
    )


def _with_overlap(context: Context, *, hidden: float) -> Context:
    """The context with all (1) or no (0) communication hidden behind computation."""
    overlap = replace(
        context.traits.overlap,
        tensor_parallel_hidden_fraction=hidden,
        data_parallel_hidden_fraction=hidden,
        parameter_gather_hidden_fraction=hidden,
        pipeline_p2p_exposed_fraction=1.0 - hidden,
        contention_fraction=1.0 - hidden,
    )
    return replace(context, traits=replace(context.traits, overlap=overlap))


def _whole_iteration_s(context: Context, strategy: Strategy, split: _Split) -> float:
    model = stage_model(context, strategy.columns())
    return float(iteration_s(model, split.layers, split.selective, split.full)[0])


def _named(prefix: str, items: TimeItems) -> TimeItems:
    return {f"{prefix}.{name}": duration for name, duration in items.items()}


def _stage_items(context: Context, strategy: Strategy, split: _Split, stage: int) -> TimeItems:
    """Seconds per micro-batch of one stage, by item; exposed parts sum to the stage's time."""
    columns = strategy.columns()
    parts = build_parts(context, columns)
    costs, times = parts.costs, layer_times(context, columns, parts)
    layers = split.layers[0, stage]
    work = scale_items(add_items(costs.forward, costs.backward), layers)
    redo = add_items(
        scale_items(costs.forward, split.full[0, stage]),
        scale_items(costs.selective, split.selective[0, stage]),
    )
    comm = {"tensor_parallel", "context_parallel", "expert_parallel"}
    items = {
        (name if name in comm else f"compute.{name}"): duration for name, duration in work.items()
    }
    items |= _named("recompute", redo)
    gathers = parts.dp.layer_forward + parts.dp.layer_backward
    ends = 0.0 * parts.params
    if stage == 0:
        items["compute.embedding"] = _total(costs.first)
        ends = ends + parts.first_params
    if stage == strategy.pp - 1:
        items["compute.head_and_loss"] = _total(costs.last)
        ends = ends + parts.last_params
    items["sharding.gather_and_reduce"] = Duration(
        busy_s=layers * times.sharding_busy + ends * gathers,
        exposed_s=layers * times.sharding_exposed + ends * gathers,
    )
    items["offload.parameters"] = Duration(
        busy_s=layers * times.offload_busy, exposed_s=layers * times.offload_exposed
    )
    link = link_seconds(context, columns, parts)
    exposed = context.traits.overlap.pipeline_p2p_exposed_fraction
    items["pipeline.p2p"] = Duration(busy_s=link, exposed_s=link * exposed)
    return items


def _total(items: TimeItems) -> Duration:
    zero = np.zeros(1)
    return Duration(
        busy_s=zero + sum(item.busy_s for item in items.values()),
        exposed_s=zero + sum(item.exposed_s for item in items.values()),
    )


def _tail_items(
    context: Context, strategy: Strategy, split: _Split, model: StageModel
) -> TimeItems:
    """Gradient reduction and optimizer step of the stage with the longest tail."""
    columns = strategy.columns()
    parts = build_parts(context, columns)
    tails = stage_tail_s(model, split.layers)[0]
    stage = int(tails.argmax())
    layers = split.layers[0, stage] * parts.params
    ends = (stage == 0) * parts.first_params + (stage == strategy.pp - 1) * parts.last_params
    optimizer = layers * optimizer_s_per_param(context, columns, parts.owned_fraction)
    optimizer = optimizer + ends * optimizer_s_per_param(context, columns, 1.0 / parts.num_shards)
    busy = layers * (parts.layer_dp.reduce + parts.layer_dp.gather)
    busy = busy + ends * (parts.dp.reduce + parts.dp.gather)
    return {
        "data_parallel": Duration(busy_s=busy, exposed_s=tails[stage] - optimizer),
        "optimizer_step": Duration(busy_s=optimizer, exposed_s=optimizer),
    }


def _time_items(
    context: Context, strategy: Strategy, split: _Split, model: StageModel
) -> tuple[TimeItems, int]:
    seconds = stage_time_s(model, split.layers, split.selective, split.full)
    stage = int(seconds[0].argmax())
    num = float(strategy.num_micro_batches)
    items = scale_items(_stage_items(context, strategy, split, stage), num)
    columns = model.strategy
    makespan = makespan_s(
        seconds.max(axis=1), seconds.sum(axis=1), columns.num_micro_batches, columns.vpp
    )
    bubble = makespan - num * seconds.max(axis=1)
    items["pipeline.bubble"] = Duration(busy_s=0.0 * bubble, exposed_s=bubble)
    items |= _tail_items(context, strategy, split, model)
    tied = tied_embedding_s(context, columns, build_parts(context, columns))
    items["tied_embedding"] = Duration(busy_s=tied, exposed_s=tied)
    step = np.array([context.traits.overheads.step_overhead_s])
    items["step_overhead"] = Duration(busy_s=step, exposed_s=step)
    return items, stage


def _activation_items(
    context: Context, strategy: Strategy, split: _Split, stage: int, flight: float
) -> dict[str, float]:
    """Bytes kept for backward on one stage, by op, all micro-batches in flight."""
    shape = layer_shape(strategy.columns(), context.job)
    groups = layer_groups(context.model, shape, context.traits.kernels)
    total = sum(group.num_layers for group in groups)
    kept = split.layers[0, stage] - split.full[0, stage]
    dense = kept - split.selective[0, stage]
    items: dict[str, float] = {}
    for group in groups:
        for op in group.ops:
            layers = dense if op.recomputed_by_selective else kept
            share = group.num_layers / total * layers * flight
            name = f"activations.{op.name}"
            items[name] = items.get(name, 0.0) + share * float(np.max(op.saved_bytes))
    return items


def _memory(
    context: Context, strategy: Strategy, split: _Split, model: StageModel
) -> MemoryEstimate:
    args = (split.layers, split.selective, split.full)
    peaks = stage_peak_bytes(model, *args)[0]
    overhead = float(model.overhead_bytes[0])
    allocated = (peaks - overhead) / (1.0 + model.fragmentation_fraction)
    stage = int(peaks.argmax())
    parts = build_parts(context, strategy.columns())
    expert = parts.expert_fraction
    layer_params = split.layers[0, stage] * parts.params
    ends = (stage == 0) * parts.first_params + (stage == strategy.pp - 1) * parts.last_params
    flight = float(in_flight_matrix(model, all_stages(strategy.pp))[0, stage])

    def states(name: str) -> float:
        dense, mixture = getattr(parts.states, name), getattr(parts.expert_states, name)
        layers = layer_params * (dense * (1.0 - expert) + mixture * expert)
        return float((layers + ends * dense)[0])

    items = {name: states(name) for name in ("weights", "gradients", "optimizer")}
    dummies = parts.costs.at(parts.costs.linear_params)
    dummies = dummies + (stage == strategy.pp - 1) * parts.costs.at(parts.costs.vocab_params)
    dummy_bytes = context.traits.kernels.dummy_weight_gradient_bytes
    items["dummy_weight_gradients"] = float(dummies[0]) * dummy_bytes
    items |= _activation_items(context, strategy, split, stage, flight)
    items["activations.recompute_inputs"] = float(
        split.full[0, stage] * flight * model.full_saved_bytes[0]
    )
    if stage == 0:
        items["activations.embedding"] = flight * float(model.first_saved_bytes[0])
    transients = transient_bytes(
        model,
        all_stages(strategy.pp),
        selective=np.asarray(split.selective > 0),
        full=np.asarray(split.full > 0),
    )
    transient = float(transients[0, stage])
    is_loss = stage == strategy.pp - 1 and transient == float(model.last_transient_bytes[0])
    items["transient.logits_and_loss" if is_loss else "transient.layer_backward"] = transient
    overheads = context.traits.overheads
    items["overhead.context"] = overheads.context_bytes
    items["overhead.workspaces"] = overheads.workspace_bytes
    items["overhead.communicators"] = overhead - sum(
        (overheads.context_bytes, overheads.workspace_bytes)
    )
    items["overhead.fragmentation"] = float(allocated[stage]) * model.fragmentation_fraction
    return MemoryEstimate(
        peak_bytes=float(peaks[stage]),
        allocated_bytes=float(allocated[stage]),
        usable_bytes=model.usable_bytes,
        peak_stage=stage,
        moment="loss of the first micro-batch" if is_loss else "backward of the first micro-batch",
        items={name: value for name, value in items.items() if value > 0.0},
        stage_peak_bytes=tuple(peaks.tolist()),
        stage_allocated_bytes=tuple(allocated.tolist()),
        host_bytes=float(stage_host_bytes(model, split.layers).max()),
        fits=bool(fits(model, *args)[0]),
    )


def estimate(context: Context, strategy: Strategy) -> Estimate:
    """Time and memory of one strategy, itemised; the same formulas the search uses."""
    split = _split(strategy)
    model = stage_model(context, strategy.columns())
    iter_time = float(iteration_s(model, split.layers, split.selective, split.full)[0])
    items, slowest = _time_items(context, strategy, split, model)
    flops = model_flops_per_iteration(context.model, context.job, context.traits)
    peak = peak_flops_per_s(context.cluster.accelerator, context.job.precision)
    tokens_per_s = context.job.tokens_per_iteration / iter_time
    return Estimate(
        iter_time_s=iter_time,
        iter_time_s_lower=_whole_iteration_s(_with_overlap(context, hidden=1.0), strategy, split),
        iter_time_s_upper=_whole_iteration_s(_with_overlap(context, hidden=0.0), strategy, split),
        time={
            name: TimeItem(busy_s=float(item.busy_s[0]), exposed_s=float(item.exposed_s[0]))
            for name, item in items.items()
            if max(float(item.busy_s[0]), abs(float(item.exposed_s[0]))) > NEGLIGIBLE_S
        },
        slowest_stage=slowest,
        memory=_memory(context, strategy, split, model),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / strategy.num_gpus,
        model_flops=flops,
        mfu=flops / (iter_time * strategy.num_gpus * peak),
    )
