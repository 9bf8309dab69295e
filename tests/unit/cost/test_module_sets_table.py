"""A table of layer costs gives what pricing the strategies themselves gives, however it grew."""

from dataclasses import fields

import numpy as np
import pytest
from contexts import columns_of, context_of

from planner.cost.context import Context
from planner.cost.layer import layer_costs
from planner.cost.module_sets import LayerTable, SelectiveCosts, module_sets, selective_options
from planner.spec.strategy import StrategyColumns


@pytest.fixture
def context() -> Context:
    return context_of(model="mixtral-8x7b", cluster="8xdgx-h100", global_batch=64, seq_len=4096)


def strategies() -> tuple[StrategyColumns, StrategyColumns]:
    """Rows that share shapes among themselves and with those asked for later."""
    large = {"sequence_parallel": 1, "micro_batch": 8}
    degrees = {"dp": [8, 8, 16, 8], "tp": [2, 4, 2, 2], "etp": [1, 4, 1, 1], "ep": [8, 1, 8, 8]}
    others = {"dp": [8, 8, 32], "tp": [4, 2, 2], "etp": [4, 2, 1], "cp": [1, 2, 1]}
    return columns_of(**degrees, **large), columns_of(**others, **large)


def test_costs_are_those_of_the_strategies(context: Context) -> None:
    table = LayerTable(context=context)
    first, later = strategies()
    for strategy in (first, later, first):
        found = table.costs(strategy)
        alone = layer_costs(context, strategy)
        for name in ("params", "expert_params", "boundary_bytes"):
            ours, theirs = (costs.at(getattr(costs, name)) for costs in (found, alone))
            assert ours == pytest.approx(theirs, rel=1e-12)
        for name in ("forward", "backward"):
            ours, theirs = (costs.exposed_at(getattr(costs, name)) for costs in (found, alone))
            assert ours == pytest.approx(theirs, rel=1e-12)
            assert len(set(theirs.tolist())) > 1


def test_options_are_those_of_the_strategies(context: Context) -> None:
    table, sets = LayerTable(context=context), ((), *module_sets(context))
    first, later = strategies()
    for strategy in (first, later, first):
        by_shape, index = table.options(strategy, sets)
        alone = selective_options(context, strategy, sets, np.ones(len(strategy)))
        for field in fields(SelectiveCosts):
            ours = getattr(by_shape, field.name)[:, index]
            assert ours == pytest.approx(getattr(alone, field.name), rel=1e-12)
