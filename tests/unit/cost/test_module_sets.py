"""Every set of modules selective recomputation could repeat costs what its own model says."""

from dataclasses import fields, replace

import numpy as np
import pytest
from contexts import columns_of, context_of

from planner.cost import context as rows_of_columns
from planner.cost.context import Context, columns_except, unique_rows, with_modules
from planner.cost.layer import layer_costs
from planner.cost.module_sets import (
    LayerTable,
    ModuleSet,
    Relaxed,
    SelectiveCosts,
    module_sets,
    selective_options,
)
from planner.cost.overlap import straggler_slowdown
from planner.cost.policies import with_selective
from planner.cost.stage import SELECTIVE
from planner.cost.stage_model import stage_model
from planner.spec.strategy import STRATEGY_FIELDS, StrategyColumns

MODELS = {"llama3-8b": 1, "mixtral-8x7b": 8, "deepseek-v3": 8}
"""Dense, mixture, mixture behind leading dense layers; and an expert-parallel degree of each."""


@pytest.fixture(params=MODELS)
def context(request: pytest.FixtureRequest) -> Context:
    return context_of(model=request.param, cluster="8xdgx-h100", global_batch=64, seq_len=4096)


def strategies_of(context: Context) -> StrategyColumns:
    """Shapes that differ in every degree a layer's cost depends on."""
    ep = MODELS[context.model.name]
    return columns_of(
        dp=[8, 8, 8, 16, 8],
        tp=[1, 2, 8, 1, 2],
        pp=[1, 4, 1, 1, 2],
        ep=[1, ep, 1, ep, ep],
        micro_batch=[1, 2, 1, 4, 1],
        sequence_parallel=[0, 1, 0, 0, 1],
        zero_stage=1,
    )


def options_of(
    context: Context, strategy: StrategyColumns, sets: tuple[ModuleSet, ...] | None = None
) -> tuple[tuple[ModuleSet, ...], SelectiveCosts]:
    sets = module_sets(context) if sets is None else sets
    return sets, selective_options(context, strategy, sets, straggler_slowdown(strategy.num_gpus))


def relaxed_of(context: Context, strategy: StrategyColumns, *, by_rate: bool) -> Relaxed:
    sets = ((), *module_sets(context))
    relaxed, index = LayerTable(context=context).relaxed(strategy, sets, by_rate=by_rate)
    return relaxed.at(index, straggler_slowdown(strategy.num_gpus))


def test_every_set_costs_what_the_stage_model_of_its_own_traits_says(context: Context) -> None:
    strategy = strategies_of(context)
    sets, options = options_of(context, strategy)
    for position, modules in enumerate(sets):
        policies = stage_model(with_modules(context, modules), strategy).policies
        for name in ("added_s", "saved_bytes", "lead_saved_bytes", "workspace_bytes"):
            alone = getattr(policies, name)[SELECTIVE]
            ours = getattr(options, name)[position]
            # Differences of large sums: to the precision of what they are differences of.
            scale = np.abs(policies.saved_bytes[SELECTIVE]).max() if "bytes" in name else 0.0
            assert ours == pytest.approx(alone, rel=1e-12, abs=1e-12 * scale), (modules, name)


def test_no_two_sets_do_the_same_and_the_selected_one_is_among_them(context: Context) -> None:
    sets, options = options_of(context, strategies_of(context))
    # Row 1 is parallel in every way: nothing a module does is nothing there.
    rows = {(options.added_s[i, 1], options.saved_bytes[i, 1]) for i in range(len(sets))}
    assert len(rows) == len(sets)
    names = {module.name for module in context.traits.recompute.modules}
    assert all(set(modules) <= names for modules in sets)
    assert [len(modules) for modules in sets] == sorted(len(modules) for modules in sets)
    chosen = stage_model(context, strategies_of(context)).policies
    selected = chosen.added_s[SELECTIVE, 1], chosen.saved_bytes[SELECTIVE, 1]
    assert sum(row == pytest.approx(selected, rel=1e-12) for row in rows) == 1


def test_a_policy_that_excludes_others_is_the_only_set() -> None:
    context = context_of(framework="torchtitan", profile="2024")
    (name,) = context.traits.recompute.selected
    assert name.startswith("every_second_matmul")
    assert module_sets(context) == ((name,),)


def test_relaxed_layers_save_as_much_in_no_more_time_than_those_of_any_set(
    context: Context,
) -> None:
    strategy = strategies_of(context)
    _, options = options_of(context, strategy)
    bound = relaxed_of(context, strategy, by_rate=True).bound
    (nothing,) = options_of(context, strategy, ((),))[1].saved_bytes
    counts = np.random.default_rng(1).integers(1, context.model.num_layers, options.added_s.shape)
    saved = counts * (nothing - options.saved_bytes)
    per_layer = nothing - bound.saved_bytes
    assert (per_layer > 0).all()
    needed = saved / per_layer
    assert (needed <= counts * (1 + 1e-12)).all()
    assert (needed * bound.added_s <= counts * options.added_s * (1 + 1e-9)).all()
    assert (bound.workspace_bytes <= options.workspace_bytes * (1 + 1e-12)).all()


def test_relaxed_layers_that_are_all_selective_are_as_cheap_as_those_of_any_set(
    context: Context,
) -> None:
    strategy = strategies_of(context)
    _, options = options_of(context, strategy)
    bound = relaxed_of(context, strategy, by_rate=False).bound
    assert bound.added_s == pytest.approx(options.added_s.min(axis=0), rel=1e-12)
    for name in ("saved_bytes", "workspace_bytes"):
        assert (getattr(bound, name) <= getattr(options, name) * (1 + 1e-12)).all()


@pytest.mark.parametrize("by_rate", [True, False])
def test_no_stage_under_any_set_keeps_less_than_a_relaxed_one(
    context: Context, *, by_rate: bool
) -> None:
    strategy = strategies_of(context)
    model = stage_model(context, strategy)
    sets, options = options_of(context, strategy)
    bound = relaxed_of(context, strategy, by_rate=by_rate).bound
    rng = np.random.default_rng(2)
    for position in range(len(sets)):
        layers = rng.integers(4, context.model.num_layers, (len(strategy), 1)) * 1.0
        counts = np.zeros((3, len(strategy), 1))
        counts[SELECTIVE] = rng.integers(0, layers + 1)
        kept, least = (
            replace(model, policies=with_selective(model.policies, costs)).kept_bytes(
                layers, counts, np.zeros((1, 1))
            )
            for costs in (options[position], bound)
        )
        assert (least <= kept * (1 + 1e-12)).all()


def test_the_best_set_has_the_highest_rate_of_bytes_per_second(context: Context) -> None:
    strategy = strategies_of(context)
    _, options = options_of(context, strategy)
    relaxed = relaxed_of(context, strategy, by_rate=True)
    (nothing,) = options_of(context, strategy, ((),))[1].saved_bytes
    every = np.arange(len(strategy))
    own = options[relaxed.best_set, every]
    for name in ("added_s", "saved_bytes", "lead_saved_bytes", "workspace_bytes"):
        assert getattr(relaxed.best, name) == pytest.approx(getattr(own, name), rel=1e-12)
    rates = (nothing - options.saved_bytes) / np.maximum(options.added_s, 1e-15)
    assert rates[relaxed.best_set, every] == pytest.approx(rates.max(axis=0), rel=1e-9)


@pytest.fixture
def mixture() -> Context:
    return context_of(model="mixtral-8x7b", cluster="8xdgx-h100", global_batch=64, seq_len=4096)


def strategies() -> tuple[StrategyColumns, StrategyColumns]:
    """Rows that share shapes among themselves and with those asked for later."""
    large = {"sequence_parallel": 1, "micro_batch": 8}
    degrees = {"dp": [8, 8, 16, 8], "tp": [2, 4, 2, 2], "etp": [1, 4, 1, 1], "ep": [8, 1, 8, 8]}
    others = {"dp": [8, 8, 32], "tp": [4, 2, 2], "etp": [4, 2, 1], "cp": [1, 2, 1]}
    return columns_of(**degrees, **large), columns_of(**others, **large)


def test_costs_are_those_of_the_strategies(mixture: Context) -> None:
    table = LayerTable(context=mixture)
    first, later = strategies()
    for strategy in (first, later, first):
        found = table.costs(strategy)
        alone = layer_costs(mixture, strategy)
        for name in ("params", "expert_params", "boundary_bytes"):
            ours, theirs = (costs.at(getattr(costs, name)) for costs in (found, alone))
            assert ours == pytest.approx(theirs, rel=1e-12)
        for name in ("forward", "backward"):
            ours, theirs = (costs.exposed_at(getattr(costs, name)) for costs in (found, alone))
            assert ours == pytest.approx(theirs, rel=1e-12)
            assert len(set(theirs.tolist())) > 1


def test_options_are_those_of_the_strategies(mixture: Context) -> None:
    table, sets = LayerTable(context=mixture), ((), *module_sets(mixture))
    first, later = strategies()
    for strategy in (first, later, first):
        by_shape, index = table.options(strategy, sets)
        alone = selective_options(mixture, strategy, sets, np.ones(len(strategy)))
        for field in fields(SelectiveCosts):
            ours = getattr(by_shape, field.name)[:, index]
            assert ours == pytest.approx(getattr(alone, field.name), rel=1e-12)


@pytest.mark.parametrize("largest", [2**62, 2**12])
def test_every_row_is_mapped_to_one_with_its_own_values(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(
        rows_of_columns, "LARGEST_KEY", largest
    )  # The digits fit into one number or not
    rng, names = np.random.default_rng(1), ("tp", "pp", "dp", "cp", "zero_stage")
    columns = columns_of(**{name: rng.integers(0, 5, size=600) * 3 for name in names})
    first, index = unique_rows(columns, names)
    rows = np.stack([getattr(columns, name) for name in names], axis=1)
    assert (rows[first][index] == rows).all()
    assert len(first) == len(np.unique(rows, axis=0))
    nothing, nowhere = unique_rows(columns.take(np.zeros(0, dtype=int)), names)
    assert len(nothing) == len(nowhere) == 0


def test_columns_but_some_kinds_are_all_others() -> None:
    assert set(columns_except()) == set(STRATEGY_FIELDS) - {"num_micro_batches"}
    assert set(columns_except()) - set(columns_except("offload")) == {"offload", "offload_percent"}
