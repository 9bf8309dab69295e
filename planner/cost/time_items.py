"""Iteration time by item: a stage's work, the bubble, the tail; of the slowest stage or of all."""

from functools import reduce
from operator import add

import numpy as np

from planner.cost.kernels import gemm_s, memory_bound_s
from planner.cost.layer import EndCosts, LayerCosts, mtp_costs
from planner.cost.layer_passes import layer_times
from planner.cost.layer_time import (
    COMM_ITEMS,
    Duration,
    TimeItems,
    add_items,
    all_exposed,
    comm_items,
    scale_items,
)
from planner.cost.pipeline import makespan_s
from planner.cost.policies import activation_transfer_s
from planner.cost.stage import FULL, OFFLOADED, SELECTIVE, StageModel
from planner.cost.stage_model import PricedStrategy
from planner.cost.time_terms import (
    PER_ITERATION,
    exposed_p2p_s,
    p2p_s,
    step_end_terms,
    straggler_factor,
)
from planner.layers.block import embedding_op, head_op, projection_op
from planner.layers.op import ZERO
from planner.layers.saved import without_last_gemm
from planner.schedules.closed_form import one_f_one_b_makespan_s
from planner.spec.items import HBM, SHAPE, item
from planner.units import Array


def _total(items: TimeItems) -> Duration:
    return reduce(add, items.values(), all_exposed(ZERO))


def _end_items(name: str, costs: LayerCosts, end: EndCosts) -> TimeItems:
    """Kernels of embedding or head, and their collectives beside those of layers."""
    items = costs.items_at(end.both)
    kernels = {kernel: one for kernel, one in items.items() if kernel not in COMM_ITEMS}
    return {f"compute.{name}": _total(kernels)} | comm_items(items)


@item(
    "time.compute",
    title="kernels",
    text="Kernels of the slowest stage. Sum over its items: seconds per layer and "
    "micro-batch, forward and backward, times layers and micro-batches; embedding and head "
    "once per micro-batch on the stages that have them. Excludes what is recomputed.",
    inputs=("strategy.layers_per_stage", "strategy.num_micro_batches"),
    also=(StageModel.time_s,),
)
@item(
    "time.recompute",
    title="recomputation",
    inputs=(
        "strategy.recompute_layers_per_stage",
        "strategy.selective_layers_per_stage",
        "traits.kernels.stops_recomputation",
    ),
    also=(StageModel.time_s, without_last_gemm),
)
def _layer_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """Work and recomputation of a stage's layers."""
    costs = subject.parts.costs
    forward, backward, repeated, again = (
        costs.items_at(items)
        for items in (costs.forward, costs.backward, costs.repeated, costs.selective)
    )
    work = scale_items(add_items(forward, backward), subject.layers[0, stage])
    items = {
        (name if name in COMM_ITEMS else f"compute.{name}"): duration
        for name, duration in work.items()
    }
    counts = subject.counts[:, 0, stage].copy()
    if subject.mtp_policy is not None:
        is_head = stage == subject.strategy.head_stage
        counts[subject.mtp_policy] += subject.model.num_mtp_layers * is_head
    selective, full = counts[[SELECTIVE, FULL]]
    redo = add_items(scale_items(repeated, full), scale_items(again, selective))
    return items | {f"recompute.{name}": duration for name, duration in redo.items()}


@item(
    "time.compute.embedding",
    title="embedding",
    inputs=(*SHAPE, *HBM),
    also=(embedding_op, memory_bound_s),
)
@item(
    "time.compute.mtp",
    title="multi-token prediction",
    inputs=(*SHAPE, "job.mtp_layers", "model.vocab_size"),
    also=(mtp_costs, projection_op, head_op),
)
@item(
    "time.compute.head_and_loss",
    title="vocabulary head and loss",
    inputs=(*SHAPE, "model.vocab_size", "traits.kernels.loss_traffic_bytes"),
    also=(head_op, gemm_s),
)
def _stage_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """Seconds per micro-batch of one stage, by item; exposed parts sum to the stage's time."""
    context, parts = subject.context, subject.parts
    times = layer_times(parts)
    layers = subject.layers[0, stage]
    items = _layer_items(subject, stage)
    if stage == 0:
        items = add_items(items, _end_items("embedding", parts.costs, parts.costs.first))
    if stage == subject.strategy.head_stage:
        items = add_items(items, _end_items("head_and_loss", parts.costs, parts.costs.last))
        items["compute.mtp"] = _total(parts.costs.items_at(parts.costs.mtp.time))
    ends = (stage == 0) * parts.end_exchange_s("first")
    ends = ends + (stage == subject.strategy.head_stage) * parts.end_exchange_s("last")
    items["sharding.gather_and_reduce"] = Duration(
        busy_s=layers * times.sharding_busy + ends,
        exposed_s=layers * times.sharding_exposed + times.sharding_fill + ends,
    )
    items["offload.parameters"] = Duration(
        busy_s=layers * times.offload_busy,
        exposed_s=layers * times.offload_exposed + times.offload_fill,
    )
    link = p2p_s(parts)
    exposed = exposed_p2p_s(parts, times, link)
    offloaded, policies = subject.counts[OFFLOADED, 0, stage], subject.model.policies
    shown = offloaded * policies.added_s[OFFLOADED] + (offloaded > 0) * policies.fill_s[OFFLOADED]
    items["offload.activations"] = Duration(
        busy_s=offloaded * 2.0 * activation_transfer_s(parts),
        exposed_s=shown / straggler_factor(context, subject.columns),
    )
    items["pipeline.p2p"] = Duration(busy_s=link, exposed_s=exposed)
    return items


def step_end_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """:func:`time_terms.step_end_terms` of one stage."""
    terms = step_end_terms(subject.parts, layer_times(subject.parts))
    layers = subject.layers[0, stage]
    at = {"is_first": stage == 0, "is_last": stage == subject.strategy.head_stage}
    return {name: term.on_stage(layers, **at) for name, term in terms.items()}


@item(
    "time.pipeline",
    text="What pipelining costs the slowest stage. bubble + p2p: waiting for other stages, and "
    "transfers between stages that are not hidden.",
    inputs=("strategy.pp", "strategy.vpp", "strategy.num_micro_batches"),
    also=(one_f_one_b_makespan_s, p2p_s),
)
def _common_items(subject: PricedStrategy, seconds: Array) -> TimeItems:
    """What no stage has for itself; ``seconds``: of every stage per micro-batch."""
    columns, slowest_s = subject.columns, seconds.max(axis=1)
    filled_s = subject.model.bubble_filled_s
    makespan = makespan_s(columns, slowest_s, seconds.sum(axis=1), filled_s)
    # Seconds of the makespan in which the slowest stage works.
    computing = subject.strategy.num_micro_batches * slowest_s
    pace = straggler_factor(subject.context, columns)
    bubble, waiting = (makespan - computing) / pace, makespan * (1.0 - 1.0 / pace)
    return {
        "pipeline.bubble": Duration(busy_s=0.0 * bubble, exposed_s=bubble),
        "synchronisation": Duration(busy_s=0.0 * waiting, exposed_s=waiting),
    } | common_step_end_items(subject)


def common_step_end_items(subject: PricedStrategy) -> TimeItems:
    """Behind every stage's tail: what an iteration takes however layers are split."""
    return {name: all_exposed(price(subject.parts)) for name, price in PER_ITERATION.items()}


def time_items(subject: PricedStrategy) -> tuple[TimeItems, int]:
    """Items of one iteration, whose exposed seconds sum to it, and the slowest stage."""
    seconds, num = subject.model.time_s(*subject.split), subject.strategy.num_micro_batches
    stage = int(seconds[0].argmax())
    tail = int(subject.model.step_end_s(subject.layers)[0].argmax())
    items = scale_items(_stage_items(subject, stage), float(num))
    items |= _common_items(subject, seconds)
    return items | step_end_items(subject, tail), stage


def stage_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """One stage's own work of an iteration: its micro-batches and its tail, without waiting."""
    num = float(subject.strategy.num_micro_batches)
    return scale_items(_stage_items(subject, stage), num) | step_end_items(subject, stage)


@item("time.pipeline.imbalance", title="waiting for the slowest stage")
def pipeline_items(subject: PricedStrategy) -> TimeItems:
    """Items of the mean stage, whose exposed seconds sum to the iteration with what waiting adds.

    ``Σ_i item_i / p`` over the p stages, and ``pipeline.imbalance``:
    ``m (max_i T_i - Σ_i T_i / p)`` and the same of the tails, what stages wait for the slowest one.
    So pipelines of any lengths can be compared: times p, items are seconds of the whole pipeline.
    """
    seconds, num = subject.model.time_s(*subject.split), subject.strategy.num_micro_batches
    tails = subject.model.step_end_s(subject.layers)
    pp, head = subject.strategy.pp, subject.strategy.head_stage
    split = np.vstack([subject.layers, subject.counts[:, 0, :]])
    # One stage of every kind, times the share of the stages that are of its kind.
    kinds = [(stage == 0, stage == head, *split[:, stage]) for stage in range(pp)]
    items: TimeItems = {}
    for kind in dict.fromkeys(kinds):
        each = stage_items(subject, kinds.index(kind))
        items = add_items(items, scale_items(each, kinds.count(kind) / pp))
    pace = straggler_factor(subject.context, subject.columns)
    uneven = num * (seconds.max(axis=1) - seconds.mean(axis=1)) / pace
    uneven = uneven + tails.max(axis=1) - tails.mean(axis=1)
    items["pipeline.imbalance"] = Duration(busy_s=0.0 * uneven, exposed_s=uneven)
    return items | _common_items(subject, seconds)
