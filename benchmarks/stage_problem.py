"""Milliseconds of the stage problem: layers and policies of one strategy, sweep and CP-SAT.

Run: python benchmarks/stage_problem.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.stage import StageModel
from planner.cost.stage_model import stage_model
from planner.frameworks.registry import load_traits
from planner.search.space.narrow import Narrowing
from planner.search.space.space import Enumeration
from planner.search.stages.cp_sat import solve_cells
from planner.search.stages.solver import _split, solve_split
from planner.search.stages.stage_table import stage_table
from planner.spec.job import JobSpec

RUNS = 7


def model_of(num_stages: int, vpp: int) -> tuple[StageModel, int]:
    """llama3.1-405b, tp 8, on the given stages, one strategy."""
    context = Context(
        model=load_model("llama3.1-405b"),
        job=JobSpec(global_batch=512, seq_len=8192),
        cluster=load_cluster(f"{num_stages}xdgx-h100"),
        traits=load_traits("megatron"),
    )
    values = {"tp": 8, "pp": num_stages, "dp": 1, "vpp": vpp, "micro_batch": 1, "zero_stage": 0}
    values |= {"sequence_parallel": 1, "offload": 0, "placement": 0}
    narrowing = Narrowing(values={name: (value,) for name, value in values.items()})
    enumeration = Enumeration(context=context, narrowing=narrowing)
    strategy = enumeration.strategies_of(enumeration.shapes())[0].take(np.array([0]))
    return stage_model(context, strategy), context.model.num_blocks


def least_bytes(model: StageModel) -> float:
    """Memory below which no split fits, to a thousandth."""
    low, high = 0.0, 1e13
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        fits = solve_split(replace(model, usable_bytes=middle)) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def by_cp_sat(model: StageModel) -> float:
    """Seconds of the split that CP-SAT alone finds, -1 where it is not proved."""
    table = stage_table(model, 1e12)
    columns, is_proved = solve_cells(model, table)
    return _split(model, table, columns).iteration_s if is_proved and columns is not None else -1.0


def by_sweep(model: StageModel) -> float:
    """Seconds of the best split as the search finds it."""
    split = solve_split(model)
    assert split is not None
    return split.iteration_s


def timed(function: Callable[[], float], runs: int) -> tuple[float, float]:
    """Median milliseconds, and the last result."""
    walls = []
    for _ in range(runs):
        started = time.perf_counter()
        found = function()
        walls.append(1e3 * (time.perf_counter() - started))
    return statistics.median(walls), found


def main() -> None:
    for num_stages, vpp in ((16, 1), (16, 4), (64, 1)):
        model, num_layers = model_of(num_stages, vpp)
        least = least_bytes(model)
        plenty = 4.0 * least
        title = f"{num_stages} stages x {num_layers} layers, vpp {vpp}"
        print(f"{title}: at least {least / 1e9:.1f} GB")
        for factor in (1.001, 1.02, 1.1, 1.3, 4.0):
            tight = replace(model, usable_bytes=min(factor * least, plenty))
            split = solve_split(tight)
            assert split is not None
            policies = "selective {:.0f}, full {:.0f}, offloaded {:.0f}".format(
                *split.counts.sum(axis=1)
            )
            sweep, found = timed(partial(by_sweep, tight), RUNS)
            solver, proved = timed(partial(by_cp_sat, tight), 1)
            same = "not proved" if proved < 0 else f"{abs(proved / found - 1.0):.0e} apart"
            print(
                f"  {factor:.3f} x that memory ({policies} of {num_layers} layers): "
                f"{sweep:.1f} ms, CP-SAT alone {solver:.0f} ms, {same}"
            )


if __name__ == "__main__":
    main()
