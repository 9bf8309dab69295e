"""Bookkeeping of shapes: groups of one GPU count, bounds, the limits they were opened under."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.search.space.shapes import Footprint
from planner.search.space.space import Columns
from planner.spec.strategy import gpus_of
from planner.units import Array, Index, Mask


@dataclass(kw_only=True)
class Shapes:
    """Shapes with bounds; a closed one may hold strategies that were not priced yet."""

    columns: Columns
    lower_s: Array
    """Weighed bound of what was not priced yet; infinite where all was."""
    weight: Array
    """By which the bounds are multiplied already."""
    footprint: Footprint | None = None
    gpus: Array = field(init=False)
    """Of every group, ascending."""
    group: Index = field(init=False)
    is_closed: Mask = field(init=False)
    opened_s: Array = field(init=False)
    """The largest limit, and the longest time, under which each was opened."""

    def __post_init__(self) -> None:
        self.gpus, self.group = np.unique(gpus_of(self.columns), return_inverse=True)
        self.is_closed = np.ones(len(self.group), dtype=bool)
        self.opened_s = np.full((2, len(self.group)), -np.inf)
        self._bound_s = self.lower_s.copy()

    def unweighed(self) -> "Shapes":
        """The same, none opened, with bounds that are not weighed."""
        return Shapes(
            columns=self.columns,
            lower_s=self._bound_s / self.weight,
            weight=np.ones(len(self.weight)),
            footprint=self.footprint,
        )

    def below(self, limit_s: Array, longest_s: Array, among: Index | None = None) -> Index:
        """Shapes that may hold something below their group's limit that was not priced yet.

        ``longest_s`` is the time of every group, not weighed, from which on nothing is of
        interest. Of all shapes, or of those found before under limits that were no lower.
        """
        if among is None:
            among = self._of_groups((limit_s > -np.inf) & (longest_s > 0))
        lower, group = self.lower_s[among], self.group[among]
        kept = self.is_closed[among] & (lower < limit_s[group])
        among, lower, group = among[kept], lower[kept], group[kept]
        limit, longest = limit_s[group], longest_s[group]
        opened, opened_longest = self.opened_s[:, among]
        asks = lower < np.where(np.isneginf(opened), longest * self.weight[among], np.inf)
        asks &= (limit > opened) | (longest > opened_longest)
        return np.asarray(among[asks])

    @cached_property
    def _by_group(self) -> list[Index]:
        """Positions of the shapes of every group."""
        order = np.argsort(self.group, kind="stable")
        starts = np.cumsum(np.bincount(self.group, minlength=len(self.gpus)))
        return np.split(order, starts[:-1])

    def _of_groups(self, groups: Mask) -> Index:
        """Ascending positions of the shapes of some groups."""
        if groups.all():
            return np.arange(len(self.group))
        parts = [self._by_group[group] for group in np.flatnonzero(groups).tolist()]
        return np.sort(np.concatenate([np.zeros(0, dtype=int), *parts]))

    def are_new(self, shapes: Index) -> Mask:
        """Which of these were never opened."""
        return np.asarray(np.isneginf(self.opened_s[0, shapes]))

    def open(self, shapes: Index, limit_s: Array, longest_s: Array) -> Array:
        """Note under which limits of groups shapes are opened; those of all shapes before."""
        before_s, group = self.opened_s.copy(), self.group[shapes]
        now = np.stack([limit_s[group], longest_s[group]])
        self.opened_s[:, shapes] = np.maximum(before_s[:, shapes], now)
        self.lower_s[shapes] = np.inf
        return before_s

    def set_aside(self, shape: Index, lower_s: Array) -> None:
        """Note bounds of strategies, of the shapes given, that were not priced to the end."""
        np.minimum.at(self.lower_s, shape, lower_s)

    def close(self, shapes: Index) -> None:
        """Close those of which something was set aside: a later limit may ask for it."""
        self.is_closed[shapes] = np.isfinite(self.lower_s[shapes])


def kept_below_s(opened_s: Array, shape: Index, weight: Array) -> Array:
    """Weighed time below which strategies of shapes are kept, opened under these limits."""
    limit: Array = np.minimum(opened_s[0, shape], opened_s[1, shape] * weight)
    return limit
