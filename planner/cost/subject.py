"""One strategy under estimate, with everything its items are computed from."""

from dataclasses import dataclass

import numpy as np

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.parts import Parts, build_parts
from planner.cost.stage import StageModel, iteration_s
from planner.spec.strategy import Strategy, StrategyColumns
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A strategy as a column of one, its split as 1 x P matrices, its costs."""

    context: Context
    strategy: Strategy
    columns: StrategyColumns
    layers: Array
    selective: Array
    full: Array
    parts: Parts
    model: StageModel

    @property
    def split(self) -> tuple[Array, Array, Array]:
        """Layers, selectively recomputed and fully recomputed layers per stage."""
        return self.layers, self.selective, self.full

    def end_params(self, stage: int) -> Array:
        """Parameters of the embedding and the head on a stage."""
        first = (stage == 0) * self.parts.first_params
        return first + (stage == self.strategy.head_stage) * self.parts.last_params


def subject_of(context: Context, strategy: Strategy) -> Subject:
    """Build the parts and the stage model of one strategy."""

    def row(values: tuple[int, ...]) -> Array:
        return np.array([values], dtype=float)

    columns = strategy.columns()
    parts = build_parts(context, columns)
    return Subject(
        context=context,
        strategy=strategy,
        columns=columns,
        layers=row(strategy.layers_per_stage),
        selective=row(strategy.selective_layers_per_stage),
        full=row(strategy.recompute_layers_per_stage),
        parts=parts,
        model=stage_model(context, columns, parts),
    )


def iteration_of(subject: Subject) -> float:
    """Seconds per iteration."""
    return float(iteration_s(subject.model, *subject.split)[0])
