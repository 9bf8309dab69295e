"""Costs of strategies under each policy, and the weights of their time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.cost.context import Context
from planner.cost.module_sets import LayerTable, SelectiveCosts
from planner.cost.overlap import straggler_slowdown
from planner.cost.policies import with_selective
from planner.cost.stage import StageModel
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import stage_parameters
from planner.search.ranking.penalties import evidence_penalty, policy_penalty, uneven_penalty
from planner.search.space.policies import Policy, of_kinds, part_numbers, with_part
from planner.search.stages.solver import PolicyVariant, non_dominated
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Index, Mask


@dataclass(frozen=True, kw_only=True)
class Priced:
    """Strategies with their stage models as a search bounds them."""

    model: StageModel
    """Under the best real set of modules, and only the kinds of layers of the policy."""
    bound: StageModel  # no costlier: under all sets of modules at once
    best_set: Index | None  # Position of the model's set of modules; None where there is no choice


def _under(model: StageModel, policy: Policy, selective: SelectiveCosts) -> StageModel:
    """A model under a policy whose selective layers repeat given modules."""
    model = model.but(policies=with_selective(model.policies, selective))
    return of_kinds(model, policy.kinds)


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """Stage models and weights of one question."""

    context: Context
    layers: LayerTable
    _known: dict[Policy | PolicyVariant, float] = field(default_factory=dict)
    """Weights computed already."""
    _worth: dict[Policy, Array] = field(default_factory=dict)
    """Sets of modules worth trying by layer shape, -1 where that is not known yet."""

    def model(self, strategy: StrategyColumns) -> StageModel:
        """Stage models of strategies, under no policy."""
        parts = stage_parameters(self.context, strategy, self.layers.costs(strategy))
        return stage_model(self.context, strategy, parts)

    def module_sets(self, policy: Policy) -> tuple[tuple[str, ...], ...]:
        """Sets of modules to choose from; empty where there is no choice."""
        sets = self.context.module_sets
        return sets if len(sets) > 1 and "selective" in policy.kinds else ()

    @cached_property
    def _by_evidence(self) -> Context:
        """The context ranking by penalties alone."""
        return replace(self.context, ranking="evidence")

    def weights(self, strategy: StrategyColumns) -> tuple[Array, Array]:
        """Return the factors on time of degrees and states, and the part that is penalties.

        All of it unless ties are broken; :meth:`policy_weight` and :meth:`policy_penalty` are the
        further factors of a policy.
        """
        if self.context.ranking == "time":
            return np.ones(len(strategy)), np.ones(len(strategy))
        weight = evidence_penalty(self.context, strategy)
        if self.context.ranking == "evidence":
            return weight, weight
        return weight, evidence_penalty(self._by_evidence, strategy)

    def policy_penalty(self, policy: Policy) -> float:
        """Return the part of a policy's weight that is penalties."""
        if self.context.ranking != "simplicity":
            return self.policy_weight(policy)
        return 1.0 if policy.is_mixed else policy_penalty(policy.kinds[-1], None, self._by_evidence)

    def policy_weight(self, policy: Policy) -> float:
        """The least weight of a policy's variants; 1 where stages decide layer by layer."""
        if policy.is_mixed or self.context.ranking == "time":
            return 1.0
        if policy not in self._known:
            kind, is_part = policy.kinds[-1], policy.part is not None
            sets = self.module_sets(policy) or (None,)
            weights = [policy_penalty(kind, one, self.context, partial=is_part) for one in sets]
            self._known[policy] = min(weights)
        return self._known[policy]

    def variant_weight(self, variant: PolicyVariant) -> float:
        """Return a variant's factor on time over the least of its policy."""
        policy, is_open = variant.policy, variant.modules is None and not variant.is_most
        if is_open or policy.is_mixed or self.context.ranking == "time":
            return 1.0
        if variant not in self._known:
            own = policy_penalty(policy.kinds[-1], variant.modules, self.context)
            self._known[variant] = own / self.policy_weight(policy)
        return self._known[variant]

    def variant_weights(self, variants: Sequence[PolicyVariant]) -> Array:
        """:meth:`variant_weight` of each."""
        return np.array([self.variant_weight(variant) for variant in variants])

    def most_weight(self, policy: Policy) -> float:
        """Return the largest further factor on the time of a variant and split."""
        most = PolicyVariant(policy=policy, is_most=policy.part is not None)
        extra = self.variant_weights([most, *self.variants_of(policy)])
        return self.uneven_weight(policy) * float(extra.max())

    def uneven_weight(self, policy: Policy, *, is_open: bool = False) -> float:
        """Return the further factor on the time of stages that differ.

        1 where the policy is open still, or is decided stage by stage.
        """
        alike = policy.is_mixed or (is_open and policy.part is not None)
        return 1.0 if alike else uneven_penalty(self.context, self.context.model.num_blocks)

    def price(self, model: StageModel, policy: Policy, weight: Array) -> Priced:
        """Stage models under the sets of modules and the kinds of layers of a policy."""
        sets = self.module_sets(policy)
        if not sets:
            model = of_kinds(model, policy.kinds).weighed(weight)
            return Priced(model=model, bound=model, best_set=None)
        pace = straggler_slowdown(model.strategy.num_gpus)
        by_rate = "none" in policy.kinds
        by_shape, index = self.layers.relaxed(model.strategy, ((), *sets), by_rate=by_rate)
        options = by_shape.at(index, pace)
        return Priced(
            model=_under(model, policy, options.best).weighed(weight),
            bound=_under(model, policy, options.bound).weighed(weight),
            best_set=options.best_set,
        )

    def num_variants(self, policy: Policy) -> int:
        """Return how many variants a policy has at most."""
        return self.context.model.num_blocks if policy.part else len(self.module_sets(policy)) or 1

    def variants(
        self, model: StageModel, policy: Policy
    ) -> tuple[StageModel, Index, list[PolicyVariant], Index]:
        """Models of all variants of a policy, the rows they are of; variants, and which each is."""
        every = self.variants_of(policy)
        if policy.part:
            places, number = part_numbers(model)
            chunks = (model.strategy.pp * model.strategy.vpp)[places]
            is_most = 2.0 * number * chunks > model.num_layers
            pairs, chosen = np.unique([number, is_most], axis=1, return_inverse=True)
            every = [
                PolicyVariant(policy=policy, number=number, is_most=bool(most))
                for number, most in pairs.T.tolist()
            ]
            model = with_part(model.take(places), policy.part, number)
            return model, places, every, chosen.ravel()
        if not (module_sets := self.module_sets(policy)):
            places = np.arange(len(model))
            return of_kinds(model, policy.kinds), places, every, 0 * places
        # Pairs of a set of modules worth trying and a strategy, and the set's costs for it.
        by_shape, index = self.layers.options(model.strategy, ((), *module_sets))
        options = by_shape[1:]
        sets, places = np.nonzero(self._worth_trying(policy, options, index)[:, index])
        costs = options[sets, index[places]]
        pace = straggler_slowdown(model.strategy.num_gpus)[places]
        costs = replace(costs, added_s=pace * costs.added_s)
        return _under(model.take(places), policy, costs), places, every, sets

    def variants_of(self, policy: Policy) -> list[PolicyVariant]:
        """A policy with each of its sets of modules, or as it is."""
        sets = self.module_sets(policy) or (None,)
        return [PolicyVariant(policy=policy, modules=one) for one in sets]

    def _worth_trying(self, policy: Policy, options: SelectiveCosts, index: Index) -> Mask:
        """Undominated sets by shape, S x shapes, of the shapes in ``index`` at least."""
        known = self._worth.get(policy)
        shape = options.added_s.shape
        if known is None or known.shape != shape:
            known = np.full(shape, -1, dtype=np.int8)
            self._worth[policy] = known
        new = np.unique(index[known[0, index] < 0])
        if len(new):
            weights = self.variant_weights(self.variants_of(policy))
            known[:, new] = non_dominated(options[:, new], weights)
        return np.asarray(known > 0)
