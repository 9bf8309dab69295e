"""Bounds of candidates with memory limits, and the splits that bounds come upon."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.stage import StageModel, fits, iteration_s, with_penalty
from planner.search.ranking.candidates import Candidates
from planner.search.space.interleaving import regular_layers
from planner.search.space.policies import Policy
from planner.search.stages.bounds import by_pipeline, refine
from planner.search.stages.ways import Variant
from planner.spec.strategy import POLICIES
from planner.units import Array, Index


@dataclass(frozen=True, kw_only=True)
class Refining:
    """Tightens the bounds of candidates, many at once."""

    candidates: Candidates
    num_layers: int

    def refine(self, rows: Index, limit_s: Array | None = None) -> None:
        """Tighten the bounds of ``rows`` with memory limits and find a split for each.

        Those that cannot be below the limit of their group are left at it.
        """
        known, pricing = self.candidates, self.candidates.pricing
        rows = rows[~known.is_refined[rows]]
        if not len(rows):
            return
        limit = known.limits_s(rows) if limit_s is None else known.below_s(rows, limit_s)
        for policy, index in self.by_policy(rows):
            part = rows[index]
            model = pricing.model(known.strategy.take(part))
            uneven = pricing.uneven_weight(policy, is_open=True)
            priced = pricing.price(model, policy, known.weight[part] * uneven)
            modules = [
                None if priced.best_set is None else pricing.module_sets(policy)[int(chosen)]
                for chosen in (priced.best_set if priced.best_set is not None else part)
            ]
            variants = [Variant(policy=policy, modules=chosen) for chosen in modules]
            bound = None if priced.best_set is None else priced.bound
            model = with_penalty(priced.model, pricing.variant_weights(variants))
            lower = self.bounds_s(part, model, bound, variants, limit[index], uneven)
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
        variants: list[Variant],
        limit_s: Array,
        uneven: float,
    ) -> Array:
        """Bounds of the given models of ``rows``; the best splits come upon are kept.

        A row whose policy still has a number of layers to choose has a bound only.
        """
        lower = np.zeros(len(rows))
        for num_stages, index in by_pipeline(model.strategy):
            part, limit = model.take(index), limit_s[index]
            relaxed = None if bound is None else bound.take(index)
            found = refine(part, num_stages, self.num_layers, relaxed, limit)
            lower[index] = found.lower_s
            for place in np.flatnonzero(np.isfinite(found.upper_s)).tolist():
                row, variant = int(rows[index[place]]), variants[int(index[place])]
                layers, counts = found.layers[place], found.counts[:, place]
                upper = float(found.upper_s[place])
                self.candidates.keep(row, variant, layers, counts, upper, uneven)
        if uneven > 1.0:
            regular_s = self._regular_s(model, uneven)
            self._keep_regular(rows, variants, regular_s)
            bound_s = regular_s if bound is None else self._regular_s(bound, uneven)
            lower = np.minimum(lower, bound_s)
        return lower

    def _regular_s(self, model: StageModel, uneven: float) -> Array:
        """Time of every row with regular stages, infinite where they do not fit."""
        seconds = np.full(len(model), np.inf)
        shapes = np.stack([model.strategy.pp, model.strategy.vpp])
        for pp, vpp in np.unique(shapes, axis=1).T.tolist():
            layers = regular_layers(self.num_layers, pp, vpp)
            index = np.flatnonzero((shapes[0] == pp) & (shapes[1] == vpp))
            if layers is None:
                continue
            part, split = model.take(index), np.tile(np.array(layers, dtype=float), (len(index), 1))
            legal = fits(part, split) & (split.min() >= part.least_chunk_layers * vpp)
            part_s = iteration_s(part, split) / uneven
            seconds[index] = np.where(legal, part_s, np.inf)
        return seconds

    def _keep_regular(self, rows: Index, variants: list[Variant], seconds: Array) -> None:
        """Note the regular splits that fit."""
        known = self.candidates
        for place in np.flatnonzero(np.isfinite(seconds)).tolist():
            row = int(rows[place])
            pp, vpp = int(known.strategy.pp[row]), int(known.strategy.vpp[row])
            layers = np.array(regular_layers(self.num_layers, pp, vpp), dtype=float)
            counts = np.zeros((len(POLICIES), pp))
            known.keep(row, variants[place], layers, counts, float(seconds[place]), 1.0)
