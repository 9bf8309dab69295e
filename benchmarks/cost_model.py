"""Strategies enumerated and priced per second, on one core: time and memory of every stage.

Every legal strategy of the space is priced under an even split; nothing is set aside by a bound.

Run: python benchmarks/cost_model.py
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import resource
import time

import numpy as np
from even import even_estimate

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.stage_model import stage_model
from planner.frameworks.registry import load_traits
from planner.search.space.space import Enumeration, take
from planner.spec.job import JobSpec

NEAREST_PEER_PER_S = {"as shipped": 85.0, "with its logging silenced": 583.0}
"""Calculon, 22-billion-parameter GPT on 64 GPUs, one core of a 2.5 GHz Xeon."""
CASES = (
    ("korthikanti-22b", "8xdgx-a100-640", 64, 2048),
    ("gpt3-175b", "128xdgx-a100-640", 2048, 2048),
    ("llama3.1-405b", "2048xdgx-h100", 2048, 8192),
)
SHAPES_AT_ONCE = 512
MOST_STRATEGIES = 1_000_000


def priced(context: Context) -> tuple[int, int, float]:
    """Strategies priced, branches cut on the way, and CPU seconds for all of it."""
    started, number = time.process_time(), 0
    enumeration = Enumeration(context=context)
    shapes = enumeration.shapes()
    for start in range(0, len(shapes["tp"]), SHAPES_AT_ONCE):
        rows = np.arange(start, min(start + SHAPES_AT_ONCE, len(shapes["tp"])))
        strategy, _ = enumeration.strategies_of(take(shapes, rows))
        even_estimate(stage_model(context, strategy), context.model.num_blocks)
        number += len(strategy)
        if number >= MOST_STRATEGIES:
            break
    return number, sum(enumeration.dropped.values()), time.process_time() - started


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    for model, cluster, batch, seq_len in CASES:
        traits = load_traits("megatron")
        context = Context(
            model=load_model(model),
            job=JobSpec(global_batch=batch, seq_len=seq_len),
            cluster=load_cluster(cluster),
            traits=traits,
            placements=traits.support.placements,
        )
        runs = [priced(context) for _ in range(3)]
        number, cut, seconds = sorted(runs, key=lambda run: run[2])[1]
        rate = number / seconds
        ratios = ", ".join(f"{rate / of:,.0f} x {name}" for name, of in NEAREST_PEER_PER_S.items())
        print(
            f"{model} on {cluster}: {number:,} strategies ({cut:,} branches cut) in {seconds:.2f} "
            f"s, {rate:,.0f}/s ({ratios})"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main()
