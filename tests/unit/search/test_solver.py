"""The stage problem on its own, and what the search does at the edge of memory."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.stage import StageModel, iteration_s, stage_peak_bytes
from planner.search.search import search
from planner.search.solver import solve_split
from planner.search.space import enumerate_space
from planner.spec.strategy import StrategyColumns

Contexts = Callable[..., Context]
Columns = Callable[..., StrategyColumns]


def with_memory(context: Context, hbm_bytes: float) -> Context:
    accelerator = replace(context.cluster.accelerator, hbm_bytes=hbm_bytes)
    node = replace(context.cluster.node, accelerator=accelerator)
    return replace(context, cluster=replace(context.cluster, node=node))


def peak(model: StageModel, layers: list[int], full: list[int]) -> float:
    none = np.zeros((1, len(layers)))
    return float(stage_peak_bytes(model, np.array([layers]), none, np.array([full])).max())


def test_with_memory_to_spare_nothing_is_recomputed(
    context_of: Contexts, columns_of: Columns
) -> None:
    split = solve_split(stage_model(context_of(), columns_of(pp=2, num_micro_batches=8)), 4)
    assert split is not None
    assert split.is_optimal
    assert split.full.tolist() == split.selective.tolist() == [0, 0]
    assert split.layers.sum() == 4


def test_a_heavy_head_gets_fewer_layers(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    # A vocabulary of 256,000 at h 1024: the head's 2Vh FLOPs are those of 21 layers' 24h²/2.
    context = context_of(model=small_model(num_layers=8, vocab_size=256_000))
    split = solve_split(stage_model(context, columns_of(pp=2, num_micro_batches=8)), 8)
    assert split is not None
    assert split.layers.tolist() == [7, 1]


def test_interleaved_stages_stay_equal(
    context_of: Contexts, columns_of: Columns, small_model: Callable[..., object]
) -> None:
    context = context_of(model=small_model(num_layers=8, vocab_size=256_000))
    model = stage_model(context, columns_of(pp=2, vpp=2, num_micro_batches=8))
    split = solve_split(model, 8)
    assert split is not None
    assert split.layers.tolist() == [4, 4]


def test_the_time_it_returns_is_that_of_its_split(
    context_of: Contexts, columns_of: Columns
) -> None:
    model = stage_model(context_of(), columns_of(pp=3, num_micro_batches=8))
    split = solve_split(model, 4)
    assert split is not None
    args = (split.layers[None], split.selective[None], split.full[None])
    assert split.iteration_s == iteration_s(model, *args)[0]


def test_just_as_many_layers_are_recomputed_as_memory_asks(
    context_of: Contexts, columns_of: Columns
) -> None:
    # Room (1 MB to spare) for 2 of 4 layers recomputed with 2 micro-batches in flight.
    context = context_of(global_batch=8)
    columns = columns_of(pp=2, num_micro_batches=8)
    free = stage_model(context, columns)
    need = peak(free, [2, 2], [1, 0]) + 1e6
    model = stage_model(with_memory(context, need), columns)
    split = solve_split(model, 4)
    assert split is not None
    assert peak(model, *([list(map(int, part)) for part in (split.layers, split.full)])) <= need
    assert split.full.sum() <= 1


def test_without_room_there_is_no_split(context_of: Contexts, columns_of: Columns) -> None:
    model = stage_model(context_of(hbm_bytes=2e9), columns_of())
    assert solve_split(model, 4) is None
    assert search(context_of(hbm_bytes=1.5e9, cluster="1xh100-sxm")).plans == ()


@pytest.mark.parametrize("spare_bytes", [1.0, 1e4, 1e5, 1e6])
def test_a_plan_that_fits_by_less_than_the_solvers_rounding_is_kept(
    spare_bytes: float, context_of: Contexts, columns_of: Columns
) -> None:
    # The solver counts bytes in units of 64 KiB; the bounds know the split exactly.
    context = context_of(cluster="2xh100-sxm", global_batch=8)
    fixed = {"tp": [1], "dp": [1], "pp": [2], "micro_batch": [1], "zero_stage": [0]}
    model = stage_model(context, enumerate_space(context, fixed).strategy).take(np.array([0]))
    need = min(peak(model, [n, 4 - n], [n, 4 - n]) for n in (1, 2, 3))
    found = search(with_memory(context, need + spare_bytes), fixed=fixed)
    assert found.plans
    assert all(plan.iteration_s < np.inf for plan in found.plans)
