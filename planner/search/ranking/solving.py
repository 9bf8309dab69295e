"""Bounds of candidates with memory limits, and their exact splits: every variant that may win."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.stage import StageModel
from planner.search.ranking.candidates import Candidates
from planner.search.space.interleaving import regular_layers
from planner.search.space.policies import Policy
from planner.search.stages.bounds import bound_any_split_s, group_by_pp, may_fit, refine
from planner.search.stages.capacity import stage_limits
from planner.search.stages.solver import (
    CLOSED,
    PolicyVariant,
    Split,
    StageCandidate,
    StageCandidates,
)
from planner.spec.strategy import POLICIES
from planner.units import Array, Index


@dataclass(kw_only=True)
class Solving:
    """Tightens bounds of many candidates at once; solves them one by one, of models built so."""

    candidates: Candidates
    deadline: float = np.inf
    """Deadline on the clock of time.monotonic() after which solvers give up."""
    num_solved: int = 0
    is_unsure: bool = False  # Some row was left without proof that it has no split below its limit
    _ways: dict[int, StageCandidates] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.pricing = self.candidates.pricing

    def refine(self, rows: Index, limit_s: Array | None = None) -> None:
        """Tighten the bounds of ``rows`` with memory limits and find a split for each.

        Those that cannot be below the limit of their group are left at it.
        """
        known, pricing = self.candidates, self.pricing
        rows = rows[~known.is_refined[rows]]
        if not len(rows):
            return
        limit = known.limits_s(rows) if limit_s is None else known.below_s(rows, limit_s)
        models = known.model.take(rows)
        for policy, index in self.by_policy(rows):
            part = rows[index]
            uneven = pricing.uneven_weight(policy, is_open=True)
            priced = pricing.price(models.take(index), policy, known.weight[part] * uneven)
            every = pricing.variants_of(policy)
            bound, chosen = None, np.zeros(len(part), dtype=int)
            if priced.best_set is not None:
                bound, chosen = priced.bound, priced.best_set
            model = priced.model.weighed(pricing.variant_weights(every)[chosen])
            lower = self.bounds_s(part, model, bound, every, chosen, limit[index], uneven)
            known.lower_s[part] = np.maximum(known.lower_s[part], lower)
        known.is_refined[rows] = True
        known.note_proofs(rows)

    def by_policy(self, rows: Index) -> Iterator[tuple[Policy, Index]]:
        """Positions of the rows under each policy."""
        codes = self.candidates.policy[rows]
        for code in np.unique(codes).tolist():
            yield self.candidates.policies[code], np.flatnonzero(codes == code)

    def bounds_s(
        self,
        rows: Index,
        model: StageModel,
        bound: StageModel | None,
        variants: list[PolicyVariant],
        chosen: Index,
        limit_s: Array,
        uneven: float,
    ) -> Array:
        """Bounds of the given models of ``rows``; the best splits come upon are kept.

        Each is under the chosen one of the variants. A row whose policy still has a number of
        layers to choose has a bound only.
        """
        known = self.candidates
        lower = np.zeros(len(rows))
        for num_stages, index in group_by_pp(model.strategy):
            part, its_rows = model.take(index), rows[index]
            relaxed = None if bound is None else bound.take(index)
            found = refine(part, num_stages, relaxed, limit_s[index])
            lower[index] = found.lower_s
            for place in np.flatnonzero(found.upper_s < known.upper_s[its_rows]).tolist():
                variant = variants[chosen[index[place]]]
                layers, counts = found.layers[place], found.counts[:, place]
                upper = float(found.upper_s[place])
                known.keep(int(its_rows[place]), variant, layers, counts, upper, uneven)
            if uneven == 1.0:
                continue
            layers, regular_s = _regular_s(part, num_stages, uneven)
            counts = np.zeros((len(POLICIES), num_stages))
            for place in np.flatnonzero(regular_s < known.upper_s[its_rows]).tolist():
                variant, upper = variants[chosen[index[place]]], float(regular_s[place])
                known.keep(int(its_rows[place]), variant, layers[place], counts, upper, 1.0)
            if relaxed is not None:
                _, regular_s = _regular_s(relaxed, num_stages, uneven)
            lower[index] = np.minimum(lower[index], regular_s)
        return lower

    def forget(self, rows: list[int]) -> None:
        """Build the ways of these rows anew when they are asked for again."""
        for row in rows:
            self._ways.pop(row, None)

    def ways(self, row: int) -> list[StageCandidate]:
        """Every variant of a row's policy worth trying; empty where it was proved already."""
        if not self.is_prepared(row, np.inf):
            self.prepare(np.array([row]), np.full(len(self.candidates.gpus), np.inf))
        return self._ways[row].ways if row in self._ways else []

    def is_prepared(self, row: int, limit_s: float) -> bool:
        """Return True if the row can be solved below ``limit_s`` without building models first."""
        is_proved = self.candidates.is_proved(row)
        return is_proved or (row in self._ways and self._ways[row].below_s >= limit_s)

    def prepare(self, rows: Index, limit_s: Array) -> None:
        """Build the models of rows that may have to be solved, one per variant, at once.

        Only of variants that may take less than the limit of the row's group.
        """
        limits = self.candidates.below_s(rows, limit_s).tolist()
        missing = [
            row
            for row, limit in zip(rows.tolist(), limits, strict=True)
            if not self.is_prepared(row, limit)
        ]
        if not missing:
            return
        rows = np.array(missing)
        models = self.candidates.model.take(rows)
        for policy, index in self.by_policy(rows):
            # So many rows times variants of their policy (sets of modules, numbers of layers) are
            # bounded together.
            size = max(2**13 // self.pricing.num_variants(policy), 1)
            for start in range(0, len(index), size):
                part = index[start : start + size]
                self._prepare(rows[part], models.take(part), policy, limit_s)

    def _prepare(self, rows: Index, model: StageModel, policy: Policy, limit_s: Array) -> None:
        known, pricing = self.candidates, self.pricing
        limits = known.below_s(rows, limit_s)
        for row, below_s in zip(rows.tolist(), limits.tolist(), strict=True):
            self._ways[row] = StageCandidates(below_s=below_s, ways=[])
        model, places, variants, chosen = pricing.variants(model, policy)
        pairs = rows[places]
        uneven = pricing.uneven_weight(policy)
        weights = pricing.variant_weights(variants)[chosen]
        model = model.weighed(known.weight[pairs] * weights * uneven)
        below_s = known.below_s(pairs, limit_s)
        # Bounds without all stages leave few; regular ones have no penalty for stages that differ.
        possible = np.flatnonzero(bound_any_split_s(model) < below_s * uneven)
        possible = possible[may_fit(model.take(possible), below_s[possible] * uneven)]
        model = model.take(possible)
        pairs = pairs[possible]
        chosen = chosen[possible]
        below_s = below_s[possible]
        lower = self.bounds_s(pairs, model, None, variants, chosen, below_s, uneven)
        least = np.full(len(known.lower_s), np.inf)
        least[rows] = limits
        np.minimum.at(least, pairs, lower)
        known.lower_s[rows] = np.maximum(known.lower_s[rows], least[rows])
        kept = np.flatnonzero(lower < below_s)
        its_variants = [variants[place] for place in chosen[kept].tolist()]
        self._keep_ways(pairs[kept], model.take(kept), lower[kept], its_variants)
        known.note_proofs(rows)

    def _keep_ways(
        self, rows: Index, model: StageModel, lower: Array, variants: list[PolicyVariant]
    ) -> None:
        """Note the ways of every row, those of the least bound first."""
        for num_stages, index in group_by_pp(model.strategy):
            models = model.take(index)
            limits = stage_limits(models, num_stages)
            for place, pair in enumerate(index.tolist()):
                row, variant = int(rows[pair]), variants[pair]
                weight = float(self.candidates.weight[row]) * self.pricing.variant_weight(variant)
                way = StageCandidate(
                    lower_s=float(lower[pair]),
                    variant=variant,
                    weight=weight * self.pricing.uneven_weight(variant.policy),
                    models=models,
                    limits=limits,
                    place=place,
                )
                self._ways[row].ways.append(way)
        for row in np.unique(rows).tolist():
            self._ways[row].ways.sort(key=lambda way: way.lower_s)

    def solve(self, row: int, limit_s: float = np.inf) -> Split | None:
        """Return the optimal split of a row, from the bounds where they meet, else exactly.

        None, or a slower one, where none is faster than ``limit_s``.
        """
        known = self.candidates
        if known.is_proved(row):
            return known.splits[row]
        limit_s = min(limit_s, float(known.limits_s(np.array([row]))[0]))
        if not self.is_prepared(row, limit_s):
            self.prepare(np.array([row]), np.full(len(known.gpus), limit_s))
        return known.splits[row] if known.is_proved(row) else self._search(row, limit_s)

    def _search(self, row: int, limit_s: float) -> Split | None:
        """Solve the stage problem under every set of modules, and note what that proves."""
        self.num_solved += 1
        known = self.candidates
        best, proved = self._best_way(row, limit_s)
        if best is None or best.iteration_s > limit_s:
            self.is_unsure |= not proved
            if proved:
                known.lower_s[row] = max(known.lower_s[row], limit_s)
            return best
        best = replace(best, is_optimal=proved)
        known.splits[row] = best
        known.upper_s[row] = best.iteration_s
        if proved:
            del self._ways[row]
            known.lower_s[row] = best.iteration_s
        return best

    def _best_way(self, row: int, limit_s: float) -> tuple[Split | None, bool]:
        """The best split known in the end, and whether no way can beat it and the limit."""
        known = self.candidates
        best, proved = known.splits.get(row), True
        left = self._ways[row].ways
        longest_s = float(known.most_of_rows_s(np.array([row]))[0])
        is_first = True
        while left:
            below_s = min(limit_s, best.iteration_s if best else np.inf)
            way, left = left[0], left[1:]
            if way.lower_s >= below_s:
                break
            if not is_first and time.monotonic() > self.deadline:
                return best, False
            is_first = False
            below_s = min(below_s, longest_s * way.weight)
            split = way.solve(below_s, self.deadline)
            if split is None:
                continue
            proved &= split.is_optimal
            if not np.isfinite(split.iteration_s) or split.iteration_s > below_s:
                continue
            best = split
            if best.iteration_s <= known.lower_s[row] * (1.0 + CLOSED):
                return best, True
        return best, proved


def _regular_s(model: StageModel, num_stages: int, uneven: float) -> tuple[Array, Array]:
    """Regular stages of every row and their time, infinite where they do not fit."""
    strategy, num_layers = model.strategy, model.num_layers
    shapes = np.stack([strategy.pp, strategy.vpp])
    distinct, index = np.unique(shapes, axis=1, return_inverse=True)
    splits = np.zeros((distinct.shape[1], num_stages))
    for place, (pp, vpp) in enumerate(distinct.T.tolist()):
        splits[place, :pp] = regular_layers(num_layers, pp, vpp) or 0
    layers = splits[index]
    fewest = np.where(layers > 0, layers, np.inf).min(axis=1)
    legal = (layers.sum(axis=1) == num_layers) & model.fits(layers)
    legal &= fewest >= model.least_chunk_layers * strategy.vpp
    return layers, np.where(legal, model.iteration_s(layers) / uneven, np.inf)
