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
from planner.spec.strategy import POLICIES, SCHEDULES, StrategyColumns

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


def test_with_memory_to_spare_nothing_is_recomputed(
    context_of: Contexts, columns_of: Columns
) -> None:
    split = solve_split(stage_model(context_of(), columns_of(pp=2, num_micro_batches=8)))
    assert split is not None
    assert split.is_optimal
    assert not split.counts.any()
    assert split.layers.sum() == 4


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


def test_a_heavy_head_gets_fewer_layers(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    # A vocabulary of 256,000 at h 1024: the head's 2Vh FLOPs are those of 21 layers' 24h²/2.
    context = context_of(model=small_model(num_layers=8, vocab_size=256_000))
    columns = columns_of(pp=2, num_micro_batches=8, micro_batch=16)
    split = solve_split(stage_model(context, columns))
    assert split is not None
    assert split.layers.tolist() == [7, 1]


def test_the_head_takes_the_place_of_at_most_a_chunk_of_an_interleaved_stage(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    # The head takes as long as some layers; of chunks of two the last one may lack both.
    context = context_of(model=small_model(num_layers=6, vocab_size=256_000))
    model = stage_model(context, columns_of(pp=2, vpp=2, num_micro_batches=8))
    split = solve_split(model)
    assert split is not None
    assert split.layers.tolist() == [4, 2]


def test_schedules_of_equal_chunks_keep_interleaved_stages_equal(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    context = context_of(model=small_model(num_layers=8, vocab_size=256_000))
    columns = columns_of(pp=2, vpp=2, num_micro_batches=8, schedule=SCHEDULES.index("zb-v"))
    split = solve_split(stage_model(context, columns))
    assert split is not None
    assert split.layers.tolist() == [4, 4]


def test_the_time_it_returns_is_that_of_its_split(
    context_of: Contexts, columns_of: Columns
) -> None:
    model = stage_model(context_of(), columns_of(pp=3, num_micro_batches=8))
    split = solve_split(model)
    assert split is not None
    args = (split.layers[None], split.counts[:, None, :])
    assert split.iteration_s == model.iteration_s(*args)[0]


def test_just_as_many_layers_are_recomputed_as_memory_asks(
    context_of: Contexts, columns_of: Columns
) -> None:
    # Half way between no layer and all layers recomputed in full.
    context = context_of(global_batch=8)
    columns = columns_of(pp=2, num_micro_batches=8)
    free = stage_model(context, columns)
    need = 0.5 * (peak(free, [2, 2], [0, 0]) + peak(free, [2, 2], [2, 2]))
    model = stage_model(with_memory(context, need), columns)
    split = solve_split(model)
    assert split is not None
    counts = split.counts[:, None, :]
    assert model.peak_bytes(split.layers[None], counts).max() <= need
    assert 0 < split.counts.sum() < 4
    for policy, stage in np.argwhere(split.counts > 0):
        fewer = counts.copy()
        fewer[policy, 0, stage] -= 1
        assert model.peak_bytes(split.layers[None], fewer).max() > need


def test_without_room_there_is_no_split(context_of: Contexts, columns_of: Columns) -> None:
    model = stage_model(context_of(hbm_bytes=2e9), columns_of())
    assert solve_split(model) is None
    assert search(context_of(hbm_bytes=1.5e9, cluster="1xh100-sxm")).plans == ()


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
