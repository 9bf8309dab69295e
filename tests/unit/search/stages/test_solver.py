"""The stage problem on its own, and what the search does at the edge of memory."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.cost.stage import FULL, StageModel
from planner.cost.stage_model import stage_model
from planner.search.search import search
from planner.search.space.narrow import Narrowing
from planner.search.stages import stage_table as choices
from planner.search.stages.solver import solve_split
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
