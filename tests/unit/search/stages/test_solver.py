"""The stage problem on its own, sets of modules worth one, and the search at the edge of memory."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.cost.module_sets import SelectiveCosts
from planner.cost.stage import FULL, StageModel
from planner.cost.stage_model import stage_model
from planner.search.search import search
from planner.search.space.narrow import Narrowing
from planner.search.stages import stage_table as choices
from planner.search.stages.solver import non_dominated, solve_split
from planner.spec.strategy import POLICIES, StrategyColumns

Contexts = Callable[..., Context]
Columns = Callable[..., StrategyColumns]


def with_memory(context: Context, hbm_bytes: float) -> Context:
    accelerator = replace(context.cluster.accelerator, hbm_bytes=hbm_bytes)
    node = replace(context.cluster.node, accelerator=accelerator)
    return replace(context, cluster=replace(context.cluster, node=node))


def peak(model: StageModel, layers: list[int], full: list[int]) -> float:
    counts = np.zeros((len(POLICIES), 1, len(layers)))
    counts[FULL, 0] = full
    return float(model.peak_bytes(np.array([layers]), counts).max())


def test_choices_in_steps_or_past_the_deadline_prove_nothing(
    context_of: Contexts, columns_of: Columns
) -> None:
    model = stage_model(context_of(), columns_of(pp=2, num_micro_batches=8))
    best = solve_split(model)
    with mock.patch.object(choices, "MOST_CELLS", 4):
        coarse = solve_split(model)
        late = solve_split(model, deadline=0.0)
    assert best is not None
    assert coarse is not None
    assert late is not None
    assert not coarse.is_optimal
    assert not late.is_optimal
    assert late.iteration_s >= coarse.iteration_s >= best.iteration_s


def test_the_head_takes_the_place_of_at_most_a_chunk_of_an_interleaved_stage(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    # The head takes as long as some layers; of chunks of two the last one may lack both.
    context = context_of(model=small_model(num_layers=6, vocab_size=256_000))
    model = stage_model(context, columns_of(pp=2, vpp=2, num_micro_batches=8))
    split = solve_split(model)
    assert split is not None
    assert split.layers.tolist() == [4, 2]


@pytest.mark.parametrize("spare_bytes", [1.0, 1e4, 1e5, 1e6])
def test_a_plan_that_fits_by_a_byte_is_found(
    spare_bytes: float, context_of: Contexts, columns_of: Columns
) -> None:
    context = context_of(cluster="2xh100-sxm", global_batch=8)
    values = {"tp": 1, "dp": 1, "pp": 2, "vpp": 1, "micro_batch": 1, "zero_stage": 0}
    fixed = Narrowing(values={name: (value,) for name, value in values.items()})
    model = stage_model(context, enumerate_space(context, fixed).strategy).take(np.array([0]))
    need = min(peak(model, [n, 4 - n], [n, 4 - n]) for n in (1, 2, 3))
    found = search(with_memory(context, need + spare_bytes), narrowing=fixed)
    assert found.plans
    assert all(plan.iteration_s < np.inf for plan in found.plans)


def options_of(added: list[float], saved: list[float], workspace: list[float]) -> SelectiveCosts:
    """Sets of one strategy."""
    column = {"added_s": added, "saved_bytes": saved, "workspace_bytes": workspace}
    return SelectiveCosts(
        **{name: np.array(values)[:, None] for name, values in column.items()},
        lead_saved_bytes=np.zeros((len(added), 1)),
    )


def kept(options: SelectiveCosts, weights: list[float]) -> list[bool]:
    return non_dominated(options, np.array(weights))[:, 0].tolist()


@pytest.mark.parametrize(
    ("added", "saved", "workspace", "weights", "expected"),
    [
        # The third adds as long as the second and keeps more; the fourth needs more workspace.
        ([1, 2, 2, 2], [9, 5, 6, 5], [1, 1, 1, 2], [1, 1, 1, 1], [True, True, False, False]),
        ([1, 2, 3], [9, 5, 6], [2, 2, 1], [1, 1, 1], [True, True, True]),
        # A lighter weight is an advantage.
        ([1, 2], [5, 6], [1, 1], [1, 1], [True, False]),
        ([1, 2], [5, 6], [1, 1], [1.01, 1], [True, True]),
        # Of sets that do the same the first is tried.
        ([1, 1, 1], [5, 5, 5], [1, 1, 1], [1, 1, 1], [True, False, False]),
    ],
)
def test_a_set_that_is_worse_in_everything_is_not_tried(
    added: list[float],
    saved: list[float],
    workspace: list[float],
    weights: list[float],
    expected: list[bool],
) -> None:
    assert kept(options_of(added, saved, workspace), weights) == expected


def test_every_strategy_has_its_own_sets() -> None:
    options = SelectiveCosts(
        added_s=np.array([[1.0, 2.0], [2.0, 1.0]]),
        saved_bytes=np.array([[5.0, 5.0], [5.0, 5.0]]),
        lead_saved_bytes=np.array([[0.0, 0.0], [0.0, -1.0]]),
        workspace_bytes=np.ones((2, 2)),
    )
    found = non_dominated(options, np.ones(2)).tolist()
    assert found == [[True, False], [False, True]]
