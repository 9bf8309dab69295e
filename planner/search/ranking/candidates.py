"""Strategies of the shapes opened so far: their limits, bounds, and best splits known."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.context import Rowed, unique_rows
from planner.cost.stage import StageModel
from planner.search.ranking.pricing import Pricing
from planner.search.space.policies import Policy
from planner.search.stages.solver import CLOSED, PolicyVariant, Split
from planner.spec.strategy import STRATEGY_FIELDS, StrategyColumns
from planner.units import Array, Index, Mask

# What tells layouts apart; all else is a variant of one.
LAYOUT = (
    *(name for name, each in STRATEGY_FIELDS.items() if each.kind in ("degrees", "expert layout")),
    "zero_stage",
)


@dataclass(frozen=True, kw_only=True)
class Bounded(Rowed):
    """Strategies under a policy each that may be worth looking at, as columns."""

    model: StageModel  # Under no policy
    policy: Index  # Index of every row's policy among the policies of the search
    weight: Array  # Factor on the time of every row: bounds and limits are weighed seconds
    penalty: Array  # The part of it that is a penalty
    lower_s: Array


@dataclass(kw_only=True)
class Candidates:
    """Rows of strategies; bounds tighten and splits appear as they are looked at."""

    pricing: Pricing
    policies: tuple[Policy, ...]
    gpus: Array  # GPUs of every group, ascending
    one_per_layout: bool = False
    """True if only the best of the strategies of one layout is of interest."""
    model: StageModel = field(init=False)  # Of all rows, once there are some
    strategy: StrategyColumns = field(init=False)

    def __post_init__(self) -> None:
        # Per group the time, not weighed, from which on strategies are of no interest, and the same
        # of the time with penalties.
        self.longest_s: Array = np.full(len(self.gpus), np.inf)
        self.tied_s = self.longest_s
        # Groups of which rows may have been proved under a finite limit.
        self._is_limited = np.zeros(len(self.gpus), dtype=bool)
        # Largest further factor on the time of variants and splits, for every policy.
        self.most_weight: Array = np.array(
            [self.pricing.most_weight(policy) for policy in self.policies]
        )
        self.splits: dict[int, Split] = {}  # Best split known per row
        none: Array = np.zeros(0)
        self.weight = self.penalty = self.lower_s = self.upper_s = none
        first: Index = np.zeros(0, dtype=int)
        self.policy = self.group = self.layout = first
        self.is_refined = np.zeros(0, dtype=bool)

    def add(self, found: list[Bounded]) -> None:
        """Take more rows, after those there are."""
        if not found:
            return
        if len(self.lower_s):
            known = Bounded(
                model=self.model,
                policy=self.policy,
                weight=self.weight,
                penalty=self.penalty,
                lower_s=self.lower_s,
            )
            found = [known, *found]
        rows = Bounded.concatenate(found)
        self.model, self.strategy, self.policy = rows.model, rows.model.strategy, rows.policy
        self.weight, self.penalty, self.lower_s = rows.weight, rows.penalty, rows.lower_s
        added = len(self.lower_s) - len(self.upper_s)
        self.upper_s = np.concatenate([self.upper_s, np.full(added, np.inf)])
        self.is_refined = np.concatenate([self.is_refined, np.zeros(added, dtype=bool)])
        self.group = np.searchsorted(self.gpus, self.strategy.num_gpus)
        # Number of every row's layout.
        self.layout = np.arange(len(self.strategy))
        if self.one_per_layout:
            self.layout = unique_rows(self.strategy, LAYOUT)[1]

    def most_of_rows_s(self, rows: Index) -> Array:
        """Per row the time, not weighed, from which on it is of no interest.

        With a penalty it must be faster to tie.
        """
        group = self.group[rows]
        return np.minimum(self.longest_s[group], self.tied_s[group] / self.penalty[rows])

    def limits_s(self, rows: Index) -> Array:
        """Weighed time from which on rows are of no interest, whatever their variant and split."""
        return self.most_of_rows_s(rows) * self.weight[rows] * self.most_weight[self.policy[rows]]

    def below_s(self, rows: Index, limit_s: Array) -> Array:
        """:meth:`limits_s`, or the limit of the row's group where that is lower."""
        return np.minimum(limit_s[self.group[rows]], self.limits_s(rows))

    def keep_to(self, longest_s: Array, tied_s: Array) -> list[int]:
        """Change the times that keep the limits, per group; the rows of which proofs go.

        Among splits of a row that differ in weight, the best one that keeps a limit need not be
        the best without: what was proved of rows under a limit that goes is taken back.
        """
        lifted = self._is_limited & ((longest_s > self.longest_s) | (tied_s > self.tied_s))
        self.longest_s, self.tied_s = longest_s, tied_s
        self._is_limited = (self._is_limited & ~lifted) | np.isfinite(np.minimum(longest_s, tied_s))
        rows: list[int] = np.flatnonzero(lifted[self.group]).tolist()
        for row in rows:
            self.lower_s[row] /= self.most_weight[self.policy[row]]
            if row in self.splits:
                self.splits[row] = replace(self.splits[row], is_optimal=False)
        return rows

    def unrefined_below(self, limit_s: Array) -> Mask:
        """Rows not refined yet that may be below their group's limit."""
        limit = self.below_s(np.arange(len(self.group)), limit_s)
        return ~self.is_refined & (self.lower_s < limit)

    def kth_upper_s(self, rows: Mask, k: int, scale: Array) -> float:
        """The k-th least time known of these rows, counting the best of every layout.

        Only times that keep the limits count; ``scale`` is a factor of every row.
        """
        known = self.upper_s * scale
        limits = self.limits_s(np.arange(len(self.group)))
        rows = rows & (self.upper_s <= limits)
        known = known[rows]
        layout = self.layout[rows]
        if self.one_per_layout:
            best = np.full(layout.max(initial=-1) + 1, np.inf)
            np.minimum.at(best, layout, known)
            known = best[np.isfinite(best)]
        if len(known) < k:
            return float("inf")
        return float(np.partition(known, k - 1)[k - 1])

    def may_lead(self) -> Mask:
        """Rows that may be the best of their layout."""
        if not self.one_per_layout:
            return np.ones(len(self.lower_s), dtype=bool)
        best = np.full(self.layout.max(initial=-1) + 1, np.inf)
        np.minimum.at(best, self.layout, self.upper_s)
        return self.lower_s < best[self.layout]

    def is_proved(self, row: int) -> bool:
        """The best split known of a row is the best there is."""
        known = self.splits.get(row)
        return known is not None and known.is_optimal

    def keep(
        self,
        row: int,
        variant: PolicyVariant,
        layers: Array,
        counts: Array,
        seconds: float,
        uneven: float,
    ) -> None:
        """Note a split of a row where it is the best one known."""
        if seconds >= self.upper_s[row] or not variant.is_complete:
            return
        pp = int(self.strategy.pp[row])
        weight = float(self.weight[row]) * self.pricing.variant_weight(variant) * uneven
        if seconds > self.most_of_rows_s(np.array([row]))[0] * weight:
            return
        split = Split(
            layers=layers[:pp],
            counts=counts[:, :pp],
            iteration_s=seconds,
            is_optimal=False,
            weight=weight,
        )
        self.upper_s[row] = seconds
        self.splits[row] = variant.completed(split, int(self.strategy.vpp[row]))

    def note_proofs(self, rows: Index) -> None:
        """Splits that reach the bound of their row are optimal."""
        upper = self.upper_s[rows]
        just_above = self.lower_s[rows] * (1.0 + CLOSED)
        closed = np.isfinite(upper) & (upper <= just_above)
        for row in rows[closed].tolist():
            self.splits[row] = replace(self.splits[row], is_optimal=True)
