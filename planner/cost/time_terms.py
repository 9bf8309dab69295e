"""Work of a stage on a micro-batch, as a table: the stage model sums it, the items list it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import numpy as np

from planner.cost.context import columns_except, unique_rows
from planner.cost.kernels import gemm_s, memory_bound_s
from planner.cost.layer import EndCosts, LayerCosts, mtp_costs
from planner.cost.layer_time import (
    COMM_ITEMS,
    Duration,
    TimeItems,
    add_items,
    all_exposed,
    comm_items,
    exposed_s,
    scale_items,
)
from planner.cost.network import collective_s, point_to_point_s
from planner.cost.overlap import exposed_beside_s
from planner.cost.policies import LayerTimes, activation_offload, sm_contention
from planner.cost.stage import StageModel
from planner.cost.stage_parts import Per, StageParameters
from planner.cost.topology import group_of
from planner.layers.block import embedding_op, head_op, projection_op
from planner.layers.op import ZERO
from planner.layers.saved import without_last_gemm
from planner.spec.items import FABRIC, HBM, SHAPE, item
from planner.units import Array

GATHERS = "sharding.gather_and_reduce"


def boundary_message_bytes(parts: StageParameters) -> tuple[Array, Array]:
    """Bytes that a rank sends to the next stage, and that are then gathered over tp.

    Every tp rank sends its 1/tp of the boundary; without sequence parallelism the receiver
    gathers the whole over tp (scatter/gather, arXiv 2104.04473, section 4.1).
    """
    held = parts.costs.at(parts.costs.boundary_bytes)
    whole = parts.strategy.sequence_parallel == 0
    return held / np.where(whole, parts.strategy.tp, 1), held * whole


def exposed_p2p_s(parts: StageParameters, times: LayerTimes, link_s: Array) -> Array:
    """Exposed part of :func:`p2p_s`: all, or :func:`overlap.exposed_beside_s`.

    1F1B sends and receives between a forward and a backward that wait for it, so all shows. An
    interleaved stage has another chunk to compute meanwhile; its computation is taken at the mean
    number of layers. Source: arXiv 2104.04473, section 2.2; Megatron-Core overlap_p2p_comm.
    """
    context, strategy = parts.context, parts.strategy
    overlap = context.traits.overlap.pipeline_p2p_overlap
    compute = (
        (times.forward.whole_s + times.backward.whole_s) * context.model.num_blocks / strategy.pp
    )
    beside = exposed_beside_s(compute, link_s, sm_contention(context))
    runs_beside = (overlap == "all") | ((overlap == "interleaved") & (strategy.vpp > 1))
    return np.where(runs_beside, beside, link_s)


@item(
    "time.pipeline.p2p",
    title="pipeline transfers",
    inputs=(
        "strategy.pp",
        "strategy.vpp",
        "traits.overlap.pipeline_p2p_overlap",
        *FABRIC,
    ),
    also=(boundary_message_bytes, exposed_p2p_s, point_to_point_s),
)
def p2p_s(parts: StageParameters) -> Array:
    """Busy seconds of activations and gradients crossing one stage boundary, all chunks."""
    strategy = parts.strategy
    others = ("schedule", "virtual stages", "ZeRO stage", "offload")
    rows, index = unique_rows(strategy, columns_except(*others))
    few, machines = strategy.take(rows), parts.context.cluster
    sent, gathered = boundary_message_bytes(parts.take(rows))
    seconds = point_to_point_s(sent, group_of("pp", few, machines), machines)
    gather = collective_s("all_gather", gathered, group_of("tp", few, machines), machines)
    return np.where(strategy.pp > 1, 2.0 * (seconds + gather)[index] * strategy.vpp, 0.0)


# Shares of a term in forward, in backward without the gradients of weights, and in those.
SHARES = {
    "forward": (1.0, 0.0, 0.0),
    "backward": (0.0, 1.0, 0.0),
    "both": (0.5, 0.5, 0.0),
    "thirds": (1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0),
}


@dataclass(frozen=True, kw_only=True)
class TimeTerm:
    """Time items, and the unit they are counted per: a stage, one of its layers, an end, ..."""

    per: Per
    items: TimeItems
    by_shape: bool = False  # Of distinct layer shapes, else of strategies
    passes: str = "both"  # When it runs; a key of SHARES

    def items_at(self, costs: LayerCosts) -> TimeItems:
        """Items with one row per strategy."""
        return costs.items_at(self.items) if self.by_shape else self.items

    def exposed_at(self, costs: LayerCosts) -> Array:
        """Exposed seconds for every strategy."""
        return costs.exposed_at(self.items) if self.by_shape else exposed_s(self.items)


def seconds_per(per: Per, terms: Sequence[TimeTerm], costs: LayerCosts) -> Array:
    """Sum of the exposed seconds that are counted per ``per``; C."""
    return ZERO + sum(term.exposed_at(costs) for term in terms if term.per == per)


def items_of(
    terms: Sequence[TimeTerm], numbers: Mapping[Per, float], costs: LayerCosts
) -> TimeItems:
    """Items of a stage, by how many it has of what they are counted per."""
    return add_items(
        *(
            scale_items(term.items_at(costs), numbers[term.per])
            for term in terms
            if numbers[term.per]
        )
    )


def _total(items: TimeItems) -> Duration:
    return reduce(add, items.values(), all_exposed(ZERO))


def shown_alone(seconds: Array) -> Duration:
    """Waiting: nothing is busy, or is counted busy elsewhere."""
    return Duration(busy_s=0.0 * seconds, exposed_s=seconds)


def _named(items: TimeItems) -> TimeItems:
    """Items of a layer by their addresses."""
    return {(name if name in COMM_ITEMS else f"compute.{name}"): one for name, one in items.items()}


@item(
    "time.compute",
    title="kernels",
    text="Kernels of the slowest stage. Sum over its items: seconds per layer and "
    "micro-batch, forward and backward, times layers and micro-batches; embedding and head "
    "once per micro-batch on the stages that have them. Excludes what is recomputed.",
    inputs=(
        "strategy.layers_per_stage",
        "strategy.num_micro_batches",
    ),
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
def _layer_terms(costs: LayerCosts, times: LayerTimes) -> Iterator[TimeTerm]:
    """Both passes of a layer, and what recomputation repeats."""
    for kernels, own, passes in (
        (costs.forward, times.forward, "forward"),
        (costs.backward, times.backward, "backward"),
    ):
        yield TimeTerm(per="layer", items=_named(kernels), by_shape=True, passes=passes)
        beside = {GATHERS: own.sharding, "offload.parameters": own.offload}
        yield TimeTerm(per="layer", items=beside, passes=passes)
    repeated: dict[Per, TimeItems] = {"selective": costs.selective, "full": costs.repeated}
    for policy, items in repeated.items():
        again = {f"recompute.{name}": one for name, one in items.items()}
        yield TimeTerm(per=policy, items=again, by_shape=True, passes="backward")


@item(
    "time.compute.embedding",
    title="embedding",
    inputs=(
        *SHAPE,
        *HBM,
    ),
    also=(embedding_op, memory_bound_s),
)
@item(
    "time.compute.mtp",
    title="multi-token prediction",
    inputs=(
        *SHAPE,
        "job.mtp_layers",
        "model.vocab_size",
    ),
    also=(mtp_costs, projection_op, head_op),
)
@item(
    "time.compute.head_and_loss",
    title="vocabulary head and loss",
    inputs=(
        *SHAPE,
        "model.vocab_size",
        "traits.kernels.loss_traffic_bytes",
    ),
    also=(head_op, gemm_s),
)
def _end_terms(parts: StageParameters) -> Iterator[TimeTerm]:
    """Embedding and head; their kernels count as if a third of them ran in each pass."""
    costs = parts.costs
    mtp = {"compute.mtp": _total(costs.mtp.time)}
    yield TimeTerm(per="last", items=mtp, by_shape=True, passes="thirds")
    ends: dict[Literal["first", "last"], tuple[str, EndCosts]] = {
        "first": ("compute.embedding", costs.first),
        "last": ("compute.head_and_loss", costs.last),
    }
    for per, (name, end) in ends.items():
        own = {kernel: one for kernel, one in end.both.items() if kernel not in COMM_ITEMS}
        yield TimeTerm(per=per, items={name: _total(own)}, by_shape=True, passes="thirds")
        for items, passes in ((end.forward, "forward"), (end.backward, "backward")):
            yield TimeTerm(per=per, items=comm_items(items), by_shape=True, passes=passes)
        yield TimeTerm(per=per, items={GATHERS: all_exposed(parts.end_exchange_s(per))})


def work_terms(parts: StageParameters, times: LayerTimes) -> tuple[TimeTerm, ...]:
    """Everything that a stage does on a micro-batch, forward and backward, but for waiting."""
    link = p2p_s(parts)
    filled = times.forward.sharding_fill + times.backward.sharding_fill
    fetched = times.forward.offload_fill + times.backward.offload_fill
    moved, moved_fill = activation_offload(parts, times)
    once = {
        "pipeline.p2p": Duration(busy_s=link, exposed_s=exposed_p2p_s(parts, times, link)),
        GATHERS: shown_alone(filled),
        "offload.parameters": shown_alone(fetched),
    }
    return (
        *_layer_terms(parts.costs, times),
        *_end_terms(parts),
        TimeTerm(per="stage", items=once),
        TimeTerm(per="offloaded", items={"offload.activations": moved}),
        TimeTerm(per="offloading", items={"offload.activations": shown_alone(moved_fill)}),
    )
