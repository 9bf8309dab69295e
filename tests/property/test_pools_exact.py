"""Pipelines over pools and shares of the batch, against brute force over everything there is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from brute_force import cuts_of, part_splits
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from planner.catalog.clusters import load_cluster
from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.stage import (
    stage_held_bytes,
    stage_host_bytes,
    stage_peak_bytes,
    stage_tail_s,
    stage_time_s,
)
from planner.pools.pipelines import PoolContext, best_pipelines, layouts, priced_pipeline
from planner.pools.replicas import Shares, balanced
from planner.search.space.interleaving import default_layers, fits_chunks
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.spec.pools import Pool, bordering, stretched
from planner.spec.strategy import KINDS, StrategyColumns, ranks_of_stage
from planner.units import GIB

FEW = ("offload=none", "micro_batch=1|2", "schedule=1f1b", "cp=1")
SOME = read_narrowing(fix=["offload=none", "micro_batch=1|2", "cp=1|2"])
SLOW = LevelSpec(
    name="between", num_accelerators=1, bytes_per_s=2e9, latency_s=2e-5, efficiency_fraction=0.8
)


def with_hbm(cluster: ClusterSpec, hbm_bytes: float) -> ClusterSpec:
    accelerator = replace(cluster.accelerator, hbm_bytes=hbm_bytes)
    return replace(cluster, node=replace(cluster.node, accelerator=accelerator))


def pool_of(context: Context, name: str, machine: str, hbm_bytes: float) -> PoolContext:
    cluster = with_hbm(load_cluster(machine), hbm_bytes)
    return PoolContext(
        pool=Pool(name=name, cluster=cluster), context=replace(context, cluster=cluster)
    )


def policies(num_layers: int, pp: int, vpp: int) -> tuple[np.ndarray, np.ndarray]:
    """Every split, and how many layers of each stage are under each policy: alike on all stages."""
    cuts = np.array(cuts_of(num_layers, pp), dtype=float)
    cuts = cuts[fits_chunks(cuts, np.full(len(cuts), vpp))]
    splits = [cuts] * 3
    counts = [np.stack([cuts * (kind == each) for each in KINDS[1:]]) for kind in KINDS[:3]]
    for kind in ("full", "offloaded"):
        part, under = part_splits(num_layers, pp, vpp, kind)
        splits.append(part)
        counts.append(under)
    return np.concatenate(splits), np.concatenate(counts, axis=1)


def least_s(pools: list[PoolContext], between: LevelSpec, narrowing: Narrowing) -> float:
    """The fastest iteration of all pipelines over two pools: every layout, order and split."""
    best = np.inf
    contexts, columns = layouts(pools, narrowing)
    ranks = ranks_of_stage(vars(columns))
    for row, order in product(range(len(columns)), permutations(range(2))):
        one = columns.take(np.array([row]))
        stages = [pools[place].pool.num_accelerators // int(ranks[row]) for place in order]
        here = [contexts[place] for place in order]
        splits = policies(here[0].model.num_blocks, sum(stages), int(one.vpp[0]))
        if len(splits[0]):
            best = min(best, iterations_s(here, stages, one, *splits, between).min())
    return best


def iterations_s(
    contexts: list[Context],
    stages: list[int],
    one: StrategyColumns,
    layers: np.ndarray,
    counts: np.ndarray,
    between: LevelSpec,
) -> np.ndarray:
    """Pipelines of one layout by their definition; infinite where a stage does not fit its pool."""
    owner, last = [0] * stages[0] + [1] * stages[1], sum(stages) - 1
    seconds, tails, constant = [], [], 0.0
    legal = np.ones(len(layers), dtype=bool)
    every = np.zeros(len(layers), dtype=int)
    wraps = one.vpp[0] > 1
    for stage, place in enumerate(owner):
        context = contexts[place]
        at_border = replace(context, cluster=bordering(context.cluster, between))
        border = stage_model(at_border, one)
        model = stage_model(context, one)
        constant = max(constant, float(border.constant_s[0]))
        extra = float((border.link_s - model.link_s)[0])
        offers = model.policies.saved_bytes[2, 0] < model.saved_bytes[0]
        model = model.take(every)
        legal &= offers | (counts[2] == 0).all(axis=1)
        legal &= stage_held_bytes(model, layers, counts)[:, stage] <= model.held_limit_bytes
        legal &= stage_host_bytes(model, layers, counts)[:, stage] <= model.host_limit_bytes
        sides = [owner[(stage + step) % len(owner)] != place for step in (-1, 1)]
        if not wraps and stage in (0, last):
            sides = [sides[1 if stage == 0 else 0]] * 2
        own = stage_time_s(model, layers, counts)[:, stage]
        seconds.append(own + sum(sides) / 2.0 * extra)
        tails.append(stage_tail_s(model, layers)[:, stage])
    m, v = int(one.num_micro_batches[0]), int(one.vpp[0])
    slowest, work = np.max(seconds, axis=0), np.sum(seconds, axis=0)
    total = m * slowest + (work - slowest) / v + np.max(tails, axis=0) + constant
    return np.where(legal, total, np.inf)


def memory_of(pools: list[PoolContext], narrowing: Narrowing) -> float:
    """What the fullest GPU of the first layout takes, with layers dealt out evenly."""
    contexts, columns = layouts(pools, narrowing)
    models = [stage_model(context, columns.take(np.array([0]))) for context in contexts]
    pp = int(columns.pp[0])
    layers = np.array([default_layers(contexts[0].model.num_blocks, pp, 1)], dtype=float)
    return max(float(stage_peak_bytes(model, layers).max()) for model in models)


@given(
    num_layers=st.integers(5, 7),
    percents=st.tuples(*[st.sampled_from([97, 101, 106, 115, 300])] * 2),
    sizes=st.sampled_from([(2, 2), (1, 2), (2, 1)]),
    degrees=st.sampled_from([["tp=1", "dp=1"], ["tp=1", "dp=1", "vpp=1"], ["tp=1|2"]]),
)
@settings(max_examples=5)
@example(num_layers=6, percents=(101, 101), sizes=(2, 2), degrees=["tp=1", "dp=1", "vpp=1"])
@example(num_layers=7, percents=(300, 97), sizes=(1, 2), degrees=["tp=1", "dp=1", "vpp=1"])
def test_the_best_pipeline_over_pools_is_that_of_brute_force(
    context_of: Callable[..., Context],
    small_model: Callable[..., object],
    num_layers: int,
    percents: tuple[int, int],
    sizes: tuple[int, int],
    degrees: list[str],
) -> None:
    model = small_model(num_layers=num_layers, tied_embeddings=num_layers == 5)
    context = context_of(model=model, global_batch=8)
    few = read_narrowing(fix=[*FEW, *degrees])
    machines = (f"{sizes[0]}xh100", f"{sizes[1]}xa100-sxm-80")
    roomy = [pool_of(context, name, name, 80 * GIB) for name in machines]
    need = memory_of(roomy, few)
    pools = [
        pool_of(context, name, name, need * percent / 100.0)
        for name, percent in zip(machines, percents, strict=True)
    ]
    found = best_pipelines(pools, SLOW, few, top=1)
    least = least_s(pools, SLOW, few)
    assert found.is_complete
    event(f"fits: {bool(found.pipelines)}")
    if not found.pipelines:
        assert np.isinf(least)
        return
    assert found.pipelines[0].is_optimal
    assert found.pipelines[0].iteration_s == pytest.approx(least, rel=1e-5)
    best = found.pipelines[0]
    again = priced_pipeline(best.pools, best.stages, best.strategy, SLOW)
    assert again.iteration_s == pytest.approx(best.iteration_s, rel=1e-9)


@given(number=st.sampled_from([(1, 1), (1, 2), (2, 1)]), hbm_gib=st.sampled_from([2.5, 3.0, 80.0]))
@settings(max_examples=4)
def test_pools_of_one_kind_are_the_uniform_cluster(
    context_of: Callable[..., Context], number: tuple[int, int], hbm_gib: float
) -> None:
    context = context_of(global_batch=16)
    pools = [
        pool_of(context, name, f"{count}xdgx-h100", hbm_gib * GIB)
        for name, count in zip("ab", number, strict=True)
    ]
    whole = stretched(pools[0].pool.cluster, 8 * sum(number))
    between = replace(whole.fabric, num_accelerators=whole.num_accelerators)
    uniform = replace(context, cluster=whole)
    found = best_pipelines(pools, between, SOME, top=4)
    assert found.pipelines
    for pipeline in found.pipelines:
        made = estimate(uniform, pipeline.strategy)
        assert pipeline.iteration_s == pytest.approx(made.iter_time_s, rel=1e-9)
        assert made.memory.fits


@given(
    times=st.lists(
        st.lists(st.one_of(st.just(np.inf), st.floats(0.1, 10.0)), min_size=7, max_size=7),
        min_size=2,
        max_size=3,
    )
)
def test_shares_of_the_batch_are_those_of_brute_force(times: list[list[float]]) -> None:
    pools = [Shares(seconds=np.array(one), layout=np.zeros(7, dtype=int)) for one in times]
    batch = 6
    every = [
        shares for shares in product(range(1, batch + 1), repeat=len(pools)) if sum(shares) == batch
    ]
    least = min(max(times[k][share] for k, share in enumerate(shares)) for shares in every)
    found = balanced(pools)
    if found is None:
        assert np.isinf(least)
        return
    assert sum(found) == batch
    assert min(found) > 0
    assert max(times[k][share] for k, share in enumerate(found)) == least
