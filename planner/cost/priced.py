"""One strategy under estimate, with everything its items are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.context import Context, with_modules
from planner.cost.policies import with_recomputed_mtp
from planner.cost.stage import FULL, SELECTIVE, StageModel, iteration_s
from planner.cost.stage_model import stage_model
from planner.cost.stage_parts import StageParameters, stage_parameters
from planner.spec.strategy import Strategy, StrategyColumns
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class PricedStrategy:
    """A strategy as a column of one, its split as 1 x P matrices, its costs."""

    context: Context
    strategy: Strategy
    columns: StrategyColumns
    layers: Array
    counts: Array
    """Layers under each of POLICIES, K x 1 x P."""
    parts: StageParameters
    model: StageModel

    @property
    def split(self) -> tuple[Array, Array]:
        """Layers per stage, and how many of them are under each policy."""
        return self.layers, self.counts

    @property
    def mtp_policy(self) -> int | None:
        """The policy of all layers, which those of multi-token prediction share."""
        alike = [k for k in (SELECTIVE, FULL) if (self.counts[k] == self.layers).all()]
        return alike[0] if alike and self.model.num_mtp_layers else None

    def mtp_layers(self, stage: int) -> int:
        """Layers of multi-token prediction on a stage."""
        return self.model.num_mtp_layers * (stage == self.strategy.head_stage)

    def mtp_params(self, stage: int) -> Array:
        """Parameters of multi-token prediction on a stage."""
        return (stage == self.strategy.head_stage) * self.parts.all_mtp_params

    def end_params(self, stage: int) -> Array:
        """Parameters of the embedding and the head on a stage."""
        first = (stage == 0) * self.parts.first_params
        return first + (stage == self.strategy.head_stage) * self.parts.last_params

    def frozen_ends(self, stage: int) -> Array:
        """Frozen 16-bit elements of the embedding and the head on a stage."""
        first = (stage == 0) * self.parts.first_frozen_elements
        return first + (stage == self.strategy.head_stage) * self.parts.last_frozen_elements


def price(context: Context, strategy: Strategy) -> PricedStrategy:
    """Build the parts and the stage model of one strategy."""
    return price_all(context, [strategy])[0]


def price_all(context: Context, strategies: Sequence[Strategy]) -> list[PricedStrategy]:
    """Build the subjects of many strategies at once, those that recompute the same together."""
    found: dict[int, PricedStrategy] = {}
    for modules in dict.fromkeys(strategy.recompute_modules for strategy in strategies):
        rows = [i for i, one in enumerate(strategies) if one.recompute_modules == modules]
        here = with_modules(context, modules)
        columns = StrategyColumns.concatenate([strategies[i].columns() for i in rows])
        parts = stage_parameters(here, columns)
        model = stage_model(here, columns, parts)
        for position, row in enumerate(rows):
            index = np.array([position])
            strategy = strategies[row]
            subject = PricedStrategy(
                context=here,
                strategy=strategy,
                columns=columns.take(index),
                layers=np.array([strategy.layers_per_stage], dtype=float),
                counts=np.array(strategy.policy_counts, dtype=float)[:, None, :],
                parts=parts.take(index),
                model=model.take(index),
            )
            # Multi-token prediction is under the policy of all layers.
            if subject.mtp_policy is not None:
                emitted = with_recomputed_mtp(subject.model, subject.mtp_policy)
                subject = replace(subject, model=emitted)
            found[row] = subject
    return [found[row] for row in range(len(strategies))]


def iteration_time_s(subject: PricedStrategy) -> float:
    """Seconds per iteration."""
    return float(iteration_s(subject.model, *subject.split)[0])
