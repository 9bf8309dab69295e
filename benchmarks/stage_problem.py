"""Milliseconds of the stage problem: layers and policies of one strategy.

Run: python benchmarks/stage_problem.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from dataclasses import replace

import numpy as np

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.stage import StageModel
from planner.cost.stage_model import stage_model
from planner.frameworks.registry import load_traits
from planner.search.space.narrow import Narrowing
from planner.search.space.space import Enumeration
from planner.search.stages.solver import solve_split
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
    strategy = enumeration.strategies(enumeration.shapes()).take(np.array([0]))
    return stage_model(context, strategy), context.model.num_blocks


def least_bytes(model: StageModel, num_layers: int) -> float:
    """Memory below which no split fits, to a thousandth."""
    low, high = 0.0, 1e13
    while high - low > 1e-3 * high:
        middle = 0.5 * (low + high)
        fits = solve_split(replace(model, usable_bytes=middle), num_layers) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def milliseconds(model: StageModel, num_layers: int) -> float:
    """Median of several runs."""
    walls = []
    for _ in range(RUNS):
        started = time.perf_counter()
        solve_split(model, num_layers)
        walls.append(1e3 * (time.perf_counter() - started))
    return statistics.median(walls)


def main() -> None:
    for num_stages, vpp in ((16, 1), (16, 4), (64, 1)):
        model, num_layers = model_of(num_stages, vpp)
        least = least_bytes(model, num_layers)
        plenty = 4.0 * least
        title = f"{num_stages} stages x {num_layers} layers, vpp {vpp}"
        print(f"{title}: at least {least / 1e9:.1f} GB")
        for factor in (1.001, 1.02, 1.1, 1.3, 4.0):
            tight = replace(model, usable_bytes=min(factor * least, plenty))
            split = solve_split(tight, num_layers)
            assert split is not None
            policies = "selective {:.0f}, full {:.0f}, offloaded {:.0f}".format(
                *split.counts.sum(axis=1)
            )
            print(
                f"  {factor:.3f} x that memory ({policies} of {num_layers} layers): "
                f"{milliseconds(tight, num_layers):.1f} ms"
            )


if __name__ == "__main__":
    main()
