"""Bytes that collectives and transfers carry, pass by pass, of one strategy.

The messages that :mod:`layer_time`, :mod:`data_parallel` and :mod:`time_terms` price, as sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.data_parallel import exchanges_of, gathered_weight_bytes, weight_bytes
from planner.cost.layer import layer_shape, timed_shape
from planner.cost.layer_time import COMM_ITEM, comm_items
from planner.cost.stage import FULL, SELECTIVE
from planner.cost.stage_model import PricedStrategy
from planner.cost.stage_parts import Per
from planner.cost.states import reduced_gradient_bytes
from planner.cost.step_terms import frozen_weight_gathers, tied_gradient_bytes
from planner.cost.time_items import RECOMPUTE, SHARDING, chunk_numbers
from planner.cost.time_terms import boundary_message_bytes
from planner.cost.topology import extent_of
from planner.layers.block import embedding_op, head_op, layer_groups
from planner.layers.op import Comm, Op
from planner.spec.cluster import Collective
from planner.units import Array

# The group of the two stages that hold a tied embedding.
ENDS = "ends"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective of one rank; ``num_bytes`` as :class:`planner.layers.op.Comm` counts them."""

    item: str  # Whose seconds are spent on it
    collective: Collective
    axis: str  # Its group, by the names of :func:`topology.group_of`, or ENDS
    num_bytes: float


Messages = tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class ChunkTraffic:
    """Messages of a chunk of layers and a micro-batch; weight gradients send none."""

    forward: Messages
    backward: Messages  # Messages of backward, with those of recomputation under RECOMPUTE


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Messages of one iteration."""

    chunks: tuple[ChunkTraffic, ...]
    tails: tuple[Messages, ...]  # Per stage, behind the pipeline
    sent_bytes: float
    """Bytes of a chunk and micro-batch from a rank to its neighbour, in either direction."""
    gathered_bytes: float  # Over tp, behind the transfer
    recomputed_fraction: tuple[float, ...]
    """Per stage: of the seconds of what is recomputed, those that its messages show."""


def why_no_traffic(subject: PricedStrategy) -> str:
    """Return the part of a strategy that sends messages not listed here, or an empty string."""
    if subject.context.job.mtp_layers:
        return "layers of multi-token prediction"
    states, zero3 = subject.context.traits.states, subject.strategy.zero_stage >= 3
    if states.cuts_weights:
        return "weights cut over further ranks"
    if zero3 and states.zero3_secondary_weight_bytes:
        return "secondary shards of weights (ZeRO++)"
    return ""


def _summed(
    parts: Sequence[tuple[Per, Messages]], numbers: Mapping[Per, float], subject: PricedStrategy
) -> Messages:
    """Messages of one kind together, by how many there are; none empty or of a group of one."""
    total: dict[Message, float] = {}
    for per, messages in parts:
        for each in messages if numbers[per] else ():
            kind = replace(each, num_bytes=0.0)
            total[kind] = total.get(kind, 0.0) + each.num_bytes * numbers[per]
    found = []
    for kind, num_bytes in total.items():
        has_others = kind.axis == ENDS or extent_of(kind.axis, subject.columns)[0][0] > 1
        if num_bytes > 0 and has_others:
            found.append(replace(kind, num_bytes=num_bytes))
    return tuple(found)


def _of_comms(comms: Sequence[Comm], share: float = 1.0, item: str = "") -> Messages:
    return tuple(
        Message(
            item=item or COMM_ITEM[comm.axis],
            collective=comm.collective,
            axis=comm.axis,
            num_bytes=share * float(np.ravel(comm.num_bytes)[0]),
        )
        for comm in comms
    )


def _of_parameters(
    subject: PricedStrategy, per: Per, trained: float, frozen: float, once: float
) -> tuple[Messages, Messages, Messages]:
    """Messages of parameters of one part, before a forward, for a backward and once an iteration.

    See :func:`data_parallel_costs`. ``once``: frozen elements gathered behind all micro-batches.
    """
    context, columns, parts = subject.context, subject.columns, subject.parts
    states, is_layer = context.traits.states, per == "layer"
    stays = states.keeps_ends_gathered and not is_layer
    when = exchanges_of(context, columns, stays_gathered=stays)
    # Groups, and the share of the parameters on each.
    axes = {"dp_shard_cp": 1.0}
    if context.model.moe and is_layer:
        expert = float((parts.costs.at(parts.costs.expert_params) / parts.params)[0])
        axes = {"dp_shard_cp": 1.0 - expert, "expert_dp_shard_cp": expert}

    def gathers(item: str, num_bytes: float) -> Messages:
        return tuple(
            Message(
                item=item,
                collective="all_gather",
                axis=axis,
                num_bytes=share * num_bytes,
            )
            for axis, share in axes.items()
        )

    # Gradients are all-reduced or scattered, and replicas' shards added up.
    item = SHARDING if when.reduces_each[0] else "data_parallel"
    collective: Collective = "all_reduce" if when.all_reduces[0] else "reduce_scatter"
    wire = float(reduced_gradient_bytes(columns, states)[0])
    reduces = list[Message]()
    for axis, share in axes.items():
        sent = share * trained * wire
        reduces.append(
            Message(
                item=item,
                collective=collective,
                axis=axis,
                num_bytes=sent,
            )
        )
        if subject.strategy.zero_stage >= 1:
            sent /= float(extent_of(axis, columns)[0][0])
        summed = Message(
            item=item,
            collective="all_reduce",
            axis="dp_replicate",
            num_bytes=sent,
        )
        reduces.append(summed)
    each = (trained + frozen) * gathered_weight_bytes(context)
    before = gathers(SHARDING, each) if when.gathers_each[0] else ()
    updated = (trained + once) * weight_bytes(context)
    behind = gathers("data_parallel", updated) if when.gathers_once[0] else ()
    if when.reduces_each[0]:
        return before, (*before, *reduces), behind
    return before, before, (*reduces, *behind)


def _recomputed_fraction(subject: PricedStrategy, stage: int) -> float:
    """Share of the seconds of what a stage recomputes that its messages show."""
    costs = subject.parts.costs
    comms_s = whole_s = 0.0
    for policy, items in ((SELECTIVE, costs.selective), (FULL, costs.repeated)):
        number = float(subject.counts[policy, 0, stage])
        whole_s += number * float(costs.exposed_at(items)[0])
        comms_s += number * float(costs.exposed_at(comm_items(items))[0])
    return comms_s / whole_s if whole_s else 0.0


def traffic_of(subject: PricedStrategy) -> Traffic:
    """Messages of every chunk, stage and boundary; none of :func:`why_no_traffic`.

    A chunk's layers send ``layers · bytes of the mean layer``, its ends what stage 3 gathers of
    them, and what a split vocabulary sends. Excludes those of gradient norm and logged losses.
    """
    context, columns, parts = subject.context, subject.columns, subject.parts
    shape = timed_shape(layer_shape(columns, context.job), context.job)
    kinds = layer_groups(context.model, shape, context.traits)
    # Of the mean layer: of both passes, and of what selective and full recomputation repeat.
    total = sum(kind.num_layers for kind in kinds)
    ahead, back, again = (list[tuple[Per, Messages]]() for _ in range(3))
    for op, share in ((op, kind.num_layers / total) for kind in kinds for op in kind.ops):
        repeated = share * float(np.ravel(op.selective_fraction)[0])
        ahead.append(("layer", _of_comms(op.comms[0], share)))
        back.append(("layer", _of_comms(op.comms[1], share)))
        again.append(
            ("selective", _of_comms((op.selective_op or op).comms[0], repeated, RECOMPUTE))
        )
        again.append(("full", _of_comms(op.comms[0], share * (not op.is_spared), RECOMPUTE)))
    ends: dict[Per, Op] = {
        "first": embedding_op(context.model, shape, context.traits),
        "last": head_op(context.model, shape, context.traits),
    }
    for per, op in ends.items():
        ahead.append((per, _of_comms(op.comms[0])))
        back.append((per, _of_comms(op.comms[1])))
    # Of weights and gradients: trained elements, frozen ones, and those gathered once an iteration.
    elements: dict[Per, tuple[Array, Array]] = {
        "layer": (parts.params, parts.frozen_elements),
        "first": (parts.first_params, parts.first_frozen_elements),
        "last": (parts.last_params, parts.last_frozen_elements),
    }
    before, after, behind = (list[tuple[Per, Messages]]() for _ in range(3))
    for (per, held), once in zip(elements.items(), frozen_weight_gathers(parts), strict=True):
        numbers = (float(each[0]) for each in (*held, once))
        found = _of_parameters(subject, per, *numbers)
        for messages, own in zip((before, after, behind), found, strict=True):
            messages.append((per, own))
    stages = range(subject.strategy.pp)
    if context.model.tied_embeddings and subject.strategy.head_stage:
        tied = Message(
            item="tied_embedding",
            collective="all_reduce",
            axis=ENDS,
            num_bytes=float(tied_gradient_bytes(parts)[0]),
        )
        behind += [("first", (tied,)), ("last", (tied,))]
    sent_bytes, gathered_bytes = (float(each[0]) for each in boundary_message_bytes(parts))
    return Traffic(
        chunks=tuple(
            ChunkTraffic(
                forward=_summed([*before, *ahead], numbers, subject),
                backward=_summed([*again, *after, *back], numbers, subject),
            )
            for numbers in chunk_numbers(subject)
        ),
        tails=tuple(_summed(behind, subject.numbers(stage), subject) for stage in stages),
        sent_bytes=sent_bytes,
        gathered_bytes=gathered_bytes if subject.strategy.tp > 1 else 0.0,
        recomputed_fraction=tuple(_recomputed_fraction(subject, stage) for stage in stages),
    )
