"""Configurations per second of the column cost model, on one core.

Run: python benchmarks/cost_model.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import statistics
import time

import numpy as np

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.even import even_estimate
from planner.frameworks.registry import load_traits
from planner.search.candidates import CHUNK_ROWS, screen
from planner.search.space import enumerate_space
from planner.spec.job import JobSpec
from planner.spec.strategy import StrategyColumns

RUNS = 5
NEAREST_PEER_PER_S = 85.0
"""Calculon as shipped, 22-billion-parameter GPT on 64 GPUs, one core of a 2.5 GHz Xeon."""


def whole_estimate(context: Context, strategy: StrategyColumns) -> float:
    """CPU seconds for time and memory of every strategy, all stages under an even split."""
    started = time.process_time()
    for start in range(0, len(strategy), CHUNK_ROWS):
        rows = strategy.take(np.arange(start, min(start + CHUNK_ROWS, len(strategy))))
        even_estimate(stage_model(context, rows), context.model.num_blocks)
    return time.process_time() - started


def main() -> None:
    cases = (
        ("gpt3-175b", "128xdgx-a100-640", 2048, 2048),
        ("llama3.1-405b", "2048xdgx-h100", 2048, 8192),
        ("korthikanti-22b", "8xdgx-a100-640", 64, 2048),
    )
    for model, cluster, batch, seq_len in cases:
        context = Context(
            model=load_model(model),
            job=JobSpec(global_batch=batch, seq_len=seq_len),
            cluster=load_cluster(cluster),
            traits=load_traits("megatron"),
        )
        strategy = enumerate_space(context).strategy
        count = len(strategy)
        seconds = statistics.median(whole_estimate(context, strategy) for _ in range(RUNS))
        started = time.process_time()
        screen(context, strategy)
        screened = time.process_time() - started
        print(
            f"{model} on {cluster}: {count:,} strategies, time and memory at "
            f"{count / seconds:,.0f}/s ({count / seconds / NEAREST_PEER_PER_S:,.0f} x the nearest "
            f"peer), screened at {count / screened:,.0f}/s"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
