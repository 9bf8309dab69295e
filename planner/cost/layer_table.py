"""Layer costs of all layer shapes of a search, priced once and looked up from then on."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.cost.context import Context
from planner.cost.layer import LayerCosts, distinct_shapes, layer_costs, shape_columns
from planner.cost.module_sets import ModuleSet, SelectiveCosts, selective_options
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Index


@dataclass(kw_only=True)
class LayerTable:
    """Costs by layer shape; shapes it has not met are priced when they are asked for."""

    context: Context
    _shapes: StrategyColumns | None = None
    _place: dict[tuple[int, ...], int] = field(default_factory=dict)
    _costs: LayerCosts | None = None
    _options: dict[tuple[ModuleSet, ...], SelectiveCosts] = field(default_factory=dict)

    def _index(self, strategy: StrategyColumns) -> Index:
        """Where the shape of every strategy stands in the table, which grows if need be."""
        kernels = self.context.traits.kernels
        rows, index = distinct_shapes(strategy, kernels)
        columns = (getattr(rows, name).tolist() for name in shape_columns(kernels))
        keys = list(zip(*columns, strict=True))
        new = [row for row, key in enumerate(keys) if key not in self._place]
        if new:
            added = rows.take(np.array(new))
            known = [] if self._shapes is None else [self._shapes]
            self._shapes = StrategyColumns.concatenate([*known, added])
            self._place |= {keys[row]: len(self._place) + i for i, row in enumerate(new)}
            self._costs, self._options = None, {}
        places = np.array([self._place[key] for key in keys], dtype=int)
        return places[index]

    def costs(self, strategy: StrategyColumns) -> LayerCosts:
        """As :func:`layer_costs` gives them."""
        index, context = self._index(strategy), self.context
        assert self._shapes is not None
        if self._costs is None:
            self._costs = layer_costs(
                context.model, context.job, context.cluster, context.traits, self._shapes
            )
        return replace(self._costs, index=self._costs.index[index])

    def options(
        self, strategy: StrategyColumns, sets: tuple[ModuleSet, ...]
    ) -> tuple[SelectiveCosts, Index]:
        """Costs under each set of modules by shape (S x shapes), and the shape of every row."""
        index = self._index(strategy)
        assert self._shapes is not None
        if sets not in self._options:
            even: Array = np.ones(len(self._shapes))
            self._options[sets] = selective_options(self.context, self._shapes, sets, even)
        return self._options[sets], index
