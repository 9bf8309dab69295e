"""How well the model knows the ratio of two plans' times, by what they differ in."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from planner.frameworks.registry import ratio_figures
from planner.spec.strategy import FIELDS, KINDS_OF_DIFFERENCE, Strategy

KINDS = dict(
    sorted(
        {
            "recompute": "recomputation",
            **{name: decision.kind for name, decision in FIELDS.items() if decision.kind},
        }.items(),
        key=lambda item: KINDS_OF_DIFFERENCE.index(item[1]),
    )
)
"""What a difference in a field of a strategy is called, in the order of pairs' kinds."""
MINOR = ("virtual stages", "schedule", "placement", "layers per stage")
"""Kinds without pairs of their own that count only where nothing else differs."""
MIXED = "mixed"
"""Pairs that differ in several ways, or in one of which too few runs were published."""


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """How far ratios of times of published pairs were off that differ in the same."""

    kind: str
    num_pairs: int
    typical: float
    """Median, as a fraction."""
    widest: float
    """Eight of ten pairs were off by less either way; a fraction."""

    def may_tie(self, ratio: float) -> bool:
        """Whether two times in this ratio are closer than the typical error."""
        return abs(math.log(ratio)) <= math.log1p(self.typical)

    def may_reverse(self, ratio: float) -> bool:
        """Whether eight of ten pairs leave open which of the two is faster."""
        return abs(math.log(ratio)) <= math.log1p(self.widest)


def kinds_of_difference(first: Strategy, second: Strategy) -> tuple[str, ...]:
    """What two layouts differ in, each kind once."""
    kinds = dict.fromkeys(
        kind for name, kind in KINDS.items() if getattr(first, name) != getattr(second, name)
    )
    own = tuple(kind for kind in kinds if kind not in MINOR)
    return own or tuple(kinds)


def ratio_error(kinds: Collection[str]) -> RatioError:
    """The error of pairs that differ in these kinds, or of mixed ones where they are unknown.

    The two directions of a pair are taken together: which plan is the one with more of something
    is no matter here. Source: planner/frameworks/ratio_errors.yaml.
    """
    figures = ratio_figures()
    name = ", ".join(kinds)
    kind = name if name in figures else MIXED
    found = figures[kind]
    return RatioError(
        kind=kind,
        num_pairs=int(found["pairs"]),
        typical=found["median_percent"] / 100.0,
        widest=found["covered_percent"] / 100.0,
    )
