"""Exposed gradient reduction against the size of a bucket."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.cost.context import Context
from planner.cost.subject import subject_of
from planner.cost.time_items import time_items
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class BucketPoint:
    """Gradient reduction and weight gather of one iteration, buckets of one size."""

    elements: float
    busy_s: float
    exposed_s: float


def bucket_curve(
    context: Context, strategy: Strategy, elements: Iterable[float]
) -> tuple[BucketPoint, ...]:
    """The ``data_parallel`` item of an iteration for each bucket size, in gradients.

    Small buckets pay a collective's latency many times, large ones leave a long last bucket that
    nothing hides: exposed time has a least in between. Source: arXiv 2006.15704, section 5.3
    (the same trade-off measured on ResNet-50 and BERT).
    """

    def point(size: float) -> BucketPoint:
        overlap = replace(
            context.traits.overlap,
            gradient_bucket_elements=size,
            gradient_bucket_elements_per_rank=0.0,
        )
        sized = replace(context, traits=replace(context.traits, overlap=overlap))
        item = time_items(subject_of(sized, strategy))[0]["data_parallel"]
        return BucketPoint(
            elements=size, busy_s=float(item.busy_s[0]), exposed_s=float(item.exposed_s[0])
        )

    return tuple(point(size) for size in elements)
