"""Bytes that collectives and transfers carry, pass by pass, of one strategy.

The same messages that :mod:`layer_time`, :mod:`data_parallel` and :mod:`build` price, with their
sizes in place of their seconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.data_parallel import Exchanges, exchanges_of, gathered_weight_bytes, weight_bytes
from planner.cost.layer import layer_shape, timed_shape
from planner.cost.layer_time import COMM_ITEM, comm_items
from planner.cost.passes import RECOMPUTE, SHARDING, chunk_shares, chunk_stages
from planner.cost.stage import FULL, SELECTIVE
from planner.cost.stage_model import PricedStrategy
from planner.cost.states import reduced_gradient_bytes
from planner.cost.step_terms import frozen_weight_gathers, tied_gradient_bytes
from planner.cost.time_terms import boundary_message_bytes
from planner.cost.topology import extent_of
from planner.layers.block import embedding_op, head_op, layer_groups
from planner.layers.op import Comm
from planner.spec.cluster import Collective

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
    zero3 = subject.strategy.zero_stage >= 3
    if zero3 and subject.context.traits.states.zero3_secondary_weight_bytes:
        return "secondary shards of weights (ZeRO++)"
    return ""


# Messages, and how often they are sent.
Repeated = tuple[Iterable[Message], float]


def _summed(parts: Iterable[Repeated], subject: PricedStrategy) -> Messages:
    """Messages of one kind together; none that are empty or of a group of one."""
    total: dict[Message, float] = {}
    for messages, number in parts:
        for each in messages:
            kind = replace(each, num_bytes=0.0)
            total[kind] = total.get(kind, 0.0) + each.num_bytes * number
    found = []
    for kind, num_bytes in total.items():
        has_others = kind.axis == ENDS or extent_of(kind.axis, subject.columns)[0][0] > 1
        if num_bytes > 0 and has_others:
            found.append(replace(kind, num_bytes=num_bytes))
    return tuple(found)


def _of_comms(comms: Sequence[Comm], share: float = 1.0, item: str = "") -> Iterable[Message]:
    for comm in comms:
        yield Message(
            item=item or COMM_ITEM[comm.axis],
            collective=comm.collective,
            axis=comm.axis,
            num_bytes=share * float(np.ravel(comm.num_bytes)[0]),
        )


@dataclass(frozen=True, kw_only=True)
class _Sharding:
    """Messages of parameters over data parallelism; see :func:`data_parallel_costs`."""

    subject: PricedStrategy
    is_layer: bool
    """True for the parameters of layers, part of which are experts; False for embedding and
    head."""

    @property
    def _axes(self) -> dict[str, float]:
        """Groups, and the share of the parameters on each."""
        context = self.subject.context
        parts = self.subject.parts
        axis = "dp_shard_cp" if context.traits.states.sharded_over_cp else "dp_shard"
        if not (context.model.moe and self.is_layer):
            return {axis: 1.0}
        expert_params = parts.costs.at(parts.costs.expert_params)
        expert = float((expert_params / parts.params)[0])
        return {axis: 1.0 - expert, f"expert_{axis}": expert}

    def gathers(self, item: str, elements: float, element_bytes: float) -> Iterable[Message]:
        """All-gather so many elements, as a rank holds them when they are whole."""
        for axis, share in self._axes.items():
            num_bytes = share * elements * element_bytes
            yield Message(item=item, collective="all_gather", axis=axis, num_bytes=num_bytes)

    def reduces(self, item: str, elements: float, *, whole: bool) -> Iterable[Message]:
        """All-reduce or scatter gradients, and add up replicas' shards."""
        strategy = self.subject.strategy
        columns = self.subject.columns
        wire = float(reduced_gradient_bytes(columns, self.subject.context.traits.states)[0])
        collective: Collective = "all_reduce" if whole else "reduce_scatter"
        for axis, share in self._axes.items():
            sent = share * elements * wire
            yield Message(item=item, collective=collective, axis=axis, num_bytes=sent)
            if strategy.zero_stage >= 1:
                sent /= float(extent_of(axis, columns)[0][0])
            yield Message(item=item, collective="all_reduce", axis="dp_replicate", num_bytes=sent)

    def _exchanges(self) -> Exchanges:
        context = self.subject.context
        stays = context.traits.states.zero3_keeps_ends_gathered and not self.is_layer
        return exchanges_of(context, self.subject.columns, stays_gathered=stays)

    def each(self, trained: float, frozen: float) -> tuple[Messages, Messages]:
        """Return what stage 3 gathers before a forward; for a backward also what is reduced."""
        when, width = self._exchanges(), gathered_weight_bytes(self.subject.context)
        gathers: Messages = ()
        if when.gathers_each[0]:
            gathers = tuple(self.gathers(SHARDING, trained + frozen, width))
        if not when.reduces_each[0]:
            return gathers, gathers
        whole = bool(when.all_reduces[0])
        return gathers, (*gathers, *self.reduces(SHARDING, trained, whole=whole))

    def once(self, trained: float, frozen: float) -> Iterable[Message]:
        """Yield what an iteration reduces and gathers after its micro-batches."""
        when, width = self._exchanges(), weight_bytes(self.subject.context)
        if not when.reduces_each[0]:
            yield from self.reduces("data_parallel", trained, whole=bool(when.all_reduces[0]))
        if when.gathers_once[0]:
            yield from self.gathers("data_parallel", trained + frozen, width)


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
    them, and what a split vocabulary sends. Excludes messages that no item of time is for
    (gradient norm, logged losses).
    """
    context = subject.context
    columns = subject.columns
    parts = subject.parts
    traits = context.traits
    shape = timed_shape(layer_shape(columns, context.job), context.job)
    kinds = layer_groups(context.model, shape, traits)
    # Messages of the mean layer; of forward those that selective and full recomputation repeat.
    total = sum(kind.num_layers for kind in kinds)
    forward, backward, selective, full = (list[Message]() for _ in range(4))
    for kind in kinds:
        share = kind.num_layers / total
        for op in kind.ops:
            repeated = float(np.ravel(op.selective_fraction)[0])
            forward += _of_comms(op.comms[0], share)
            backward += _of_comms(op.comms[1], share)
            selective += _of_comms(op.comms[0], share * repeated, RECOMPUTE)
            full += _of_comms(op.comms[0], share * (not op.is_spared), RECOMPUTE)
    embedding = embedding_op(context.model, shape, traits).comms
    head = head_op(context.model, shape, traits).comms
    stages = chunk_stages(subject)
    own = _Sharding(subject=subject, is_layer=True)
    ends = _Sharding(subject=subject, is_layer=False)
    params, frozen_params = float(parts.params[0]), float(parts.frozen_elements[0])
    chunks = []
    shares = chunk_shares(subject, stages).tolist()
    for chunk, (stage, share) in enumerate(zip(stages, shares, strict=True)):
        layers = float(subject.layers[0, stage]) * share
        repeated_layers = (subject.counts[:, 0, stage] * share).tolist()
        is_first, is_last = chunk == 0, chunk == len(stages) - 1
        end_params = float(subject.end_params(is_first=is_first, is_last=is_last)[0])
        frozen_ends = float(subject.frozen_ends(is_first=is_first, is_last=is_last)[0])
        before, after = own.each(layers * params, layers * frozen_params)
        ends_before, ends_after = ends.each(end_params, frozen_ends)
        sent: list[Repeated] = [(before, 1.0), (ends_before, 1.0), (forward, layers)]
        sent_back: list[Repeated] = [
            (selective, repeated_layers[SELECTIVE]),
            (full, repeated_layers[FULL]),
            (after, 1.0),
            (ends_after, 1.0),
            (backward, layers),
        ]
        for op_comms, is_here in ((embedding, is_first), (head, is_last)):
            if is_here:
                sent.append((_of_comms(op_comms[0]), 1.0))
                sent_back.append((_of_comms(op_comms[1]), 1.0))
        made = ChunkTraffic(forward=_summed(sent, subject), backward=_summed(sent_back, subject))
        chunks.append(made)
    tails = list[Messages]()
    frozen_layer, frozen_first, frozen_last = (
        float(each[0]) for each in frozen_weight_gathers(parts)
    )
    head_stage = subject.strategy.head_stage
    for stage in range(subject.strategy.pp):
        is_first, is_last = stage == 0, stage == head_stage
        layers = float(subject.layers[0, stage])
        end_params = float(subject.end_params(is_first=is_first, is_last=is_last)[0])
        frozen_ends = is_first * frozen_first + is_last * frozen_last
        messages = [
            *own.once(layers * params, layers * frozen_layer),
            *ends.once(end_params, frozen_ends),
        ]
        if context.model.tied_embeddings and head_stage and (is_first or is_last):
            tied = Message(
                item="tied_embedding",
                collective="all_reduce",
                axis=ENDS,
                num_bytes=float(tied_gradient_bytes(parts)[0]),
            )
            messages.append(tied)
        tails.append(_summed([(messages, 1.0)], subject))
    sent_bytes, gathered_bytes = (float(each[0]) for each in boundary_message_bytes(parts))
    return Traffic(
        chunks=tuple(chunks),
        tails=tuple(tails),
        sent_bytes=sent_bytes,
        gathered_bytes=gathered_bytes if subject.strategy.tp > 1 else 0.0,
        recomputed_fraction=tuple(
            _recomputed_fraction(subject, stage) for stage in range(subject.strategy.pp)
        ),
    )
