"""Exposed gradient reduction against the size of a bucket, and against how buckets are sent."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.layer_times import interference_of, layer_times
from planner.cost.overlap import bucket_pieces
from planner.cost.subject import Subject, subject_of
from planner.cost.time_items import time_items
from planner.cost.topology import group_of
from planner.spec.strategy import Strategy
from planner.units import Array

GROUPS = 3
"""Process groups that take turns: most of those measured (arXiv 2006.15704, section 5.4)."""
LEAST_BYTES = 1.0


@dataclass(frozen=True, kw_only=True)
class BucketPoint:
    """Gradient reduction and weight gather of one iteration, buckets of one size."""

    elements: float
    messages: float
    """Of one model chunk's gradients."""
    busy_s: float
    exposed_s: float
    prioritised_s: float | None
    """Exposed where what the next forward needs first goes first; None where replicas do more than
    add up gradients."""
    by_turns_s: float | None
    """Exposed where several process groups take turns."""


def prioritised_s(
    reduce_s: Array, backward_s: Array, forward_s: Array, first_fraction: Array, interference: float
) -> Array:
    """``max(f R + i (R - f R), R - (1 - f) (W + F))``: exposed at least, by priority.

    R all of the reduction, W the last backward, F the next forward, which needs the gradients of
    the first layers first and waits for none but them: messages are cut, and those of layers nearer
    to the input overtake the others. Seconds; shapes broadcast. Source: Peng et al., SOSP 2019,
    section 4 (recalled); bound derived as :func:`overlap.bucket_pieces`, whose window grows by F.
    Excludes the cost of cutting and of crossing from one iteration into the next, for which the
    optimizer must step layer by layer.
    """
    return np.maximum(
        *bucket_pieces(reduce_s, backward_s + forward_s, first_fraction, interference)
    )


def by_turns_s(reduce_s: Array, latency_s: Array, num_groups: float) -> Array:
    """``max(R - L, R / k)``: a reduction of which k process groups run buckets by turns.

    Latencies L of the messages run beside others' transfers, which share the links; one group alone
    waits for the end of each. Source: arXiv 2006.15704, section 3.3 (round-robin process groups);
    derived. Excludes multiprocessors that further kernels hold.
    """
    return np.maximum(reduce_s - latency_s, reduce_s / num_groups)


def bucket_curve(
    context: Context, strategy: Strategy, elements: Iterable[float]
) -> tuple[BucketPoint, ...]:
    """The ``data_parallel`` item of an iteration for each bucket size, in gradients.

    Small buckets pay a collective's latency many times, large ones leave a long last bucket that
    nothing hides: exposed time has a least in between. Source: arXiv 2006.15704, section 5.3
    (the same trade-off measured on ResNet-50 and BERT).
    """
    return tuple(_point(context, strategy, size) for size in elements)


def _point(context: Context, strategy: Strategy, size: float) -> BucketPoint:
    overlap = replace(
        context.traits.overlap,
        gradient_bucket_elements=size,
        gradient_bucket_elements_per_rank=0.0,
    )
    sized = replace(context, traits=replace(context.traits, overlap=overlap))
    subject = subject_of(sized, strategy)
    item = time_items(subject)[0]["data_parallel"]
    exposed, fraction = float(item.exposed_s[0]), subject.parts.layer_dp.bucket_fraction
    other = _sent_otherwise(subject) if strategy.zero_stage == 0 and strategy.pp == 1 else None
    return BucketPoint(
        elements=size,
        messages=float(np.ceil(1.0 / fraction[0])),
        busy_s=float(item.busy_s[0]),
        exposed_s=exposed,
        prioritised_s=None if other is None else exposed - other[0],
        by_turns_s=None if other is None else exposed - other[1],
    )


def _sent_otherwise(subject: Subject) -> tuple[float, float]:
    """Seconds that priority, and several process groups, hide beyond buckets sent in order."""
    context, columns, parts = subject.context, subject.columns, subject.parts
    times, layers = layer_times(context, columns, parts), subject.layers[0, 0]
    interference, fraction = interference_of(context), parts.layer_dp.bucket_fraction
    reduce_s = layers * parts.params * parts.layer_dp.reduce
    backward_s, forward_s = layers * times.backward, layers * times.forward
    group = group_of("dp_shard", columns, context.cluster)
    wait_s = collective_s("all_reduce", np.array([LEAST_BYTES]), group, context.cluster)
    turns_s = by_turns_s(reduce_s, wait_s / fraction, GROUPS)

    def shown(seconds: Array) -> Array:
        return np.maximum(*bucket_pieces(seconds, backward_s, fraction, interference))

    first = prioritised_s(reduce_s, backward_s, forward_s, fraction, interference)
    in_order = shown(reduce_s)
    return float((in_order - first)[0]), float((in_order - shown(turns_s))[0])
