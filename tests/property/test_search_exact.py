"""The search against brute force over every strategy, every split and every policy count.

Brute force uses only ``iteration_s`` and ``fits``; bounds, solver and ranking are what is tested.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.stage import StageModel, fits, iteration_s, stage_peak_bytes
from planner.search.bounds import feasible, free_bound_s, refine
from planner.search.search import SearchResult, search
from planner.search.solver import solve_split
from planner.search.space import enumerate_space
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec

TIME_TOLERANCE = 1e-4
"""The solver rounds times to 2**-16 of a layer's."""
MEMORY_SLACK_BYTES = 64.0
"""It rounds bytes of at most 6 layers, 6 recomputed ones and 2 constants per stage."""
GAIN = 0.01
PROFILES = (
    ("megatron", "current"),
    ("megatron", "classic"),
    ("deepspeed", "current"),
    ("deepspeed", "megatron"),
    ("torchtitan", "current"),
    ("torchtitan", "eager"),
    ("megatron", "zero-bubble"),
)
Splits = tuple[np.ndarray, np.ndarray, np.ndarray]


@cache
def all_splits(num_layers: int, num_stages: int) -> Splits:
    """Every (layers, selective, full) per stage, as three matrices."""
    rows = []
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        layers = np.diff([0, *cuts, num_layers]).tolist()
        policies = [[(c, f) for c in range(n + 1) for f in range(n + 1 - c)] for n in layers]
        rows += [(layers, *zip(*choice, strict=True)) for choice in product(*policies)]
    layers, selective, full = (np.array(part, dtype=float) for part in zip(*rows, strict=True))
    return layers, selective, full


@dataclass(frozen=True)
class Brute:
    """The best time of every strategy, with the memory limit as it is and a little tighter."""

    num_gpus: np.ndarray
    exact_s: np.ndarray
    strict_s: np.ndarray


def best_by_force(model: StageModel, num_layers: int) -> float:
    """Least iteration time of a model of one row, infinite where nothing fits."""
    assert len(model) == 1
    layers, selective, full = all_splits(num_layers, int(model.strategy.pp[0]))
    vpp, pp = int(model.strategy.vpp[0]), int(model.strategy.pp[0])
    if vpp > 1:  # equal chunks; the loss, then also the embedding, may stand in for a layer
        missing = next(k for k in range(3) if (num_layers + k) % (pp * vpp) == 0)
        whole = layers.copy()
        whole[:, -1] += missing >= 1
        whole[:, 0] += missing == 2
        even = (whole == whole[:, :1]).all(axis=1)
        layers, selective, full = layers[even], selective[even], full[even]
    many = model.take(np.zeros(len(layers), dtype=int))
    legal = fits(many, layers, selective, full)
    return float(np.where(legal, iteration_s(many, layers, selective, full), np.inf).min())


def force(context: Context) -> tuple[StageModel, Brute]:
    model = stage_model(context, enumerate_space(context).strategy)
    waste = MEMORY_SLACK_BYTES * (1.0 + model.fragmentation_fraction)
    tight = replace(model, usable_bytes=model.usable_bytes - waste)
    rows = [np.array([row]) for row in range(len(model))]
    return model, Brute(
        num_gpus=model.strategy.num_gpus,
        exact_s=np.array([best_by_force(model.take(r), context.model.num_blocks) for r in rows]),
        strict_s=np.array([best_by_force(tight.take(r), context.model.num_blocks) for r in rows]),
    )


@dataclass(frozen=True)
class Case:
    """A small model on 1-8 GPUs with a share of the memory that one GPU would need."""

    num_layers: int
    global_batch: int
    seq_len: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    num_gpus: int
    framework: tuple[str, str]
    tied: bool
    memory_percent: int

    def context(
        self, context_of: Callable[..., Context], small_model: Callable[..., ModelSpec]
    ) -> Context:
        model = small_model(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            ffn_size=4 * self.hidden_size,
            vocab_size=self.vocab_size,
            tied_embeddings=self.tied,
        )
        context = context_of(
            model=model,
            cluster=f"{self.num_gpus}xh100-sxm",
            framework=self.framework[0],
            profile=self.framework[1],
            global_batch=self.global_batch,
            seq_len=self.seq_len,
        )
        # Communicators of 200 MB would be all that matters to models this small.
        overheads = replace(context.traits.overheads, communicator_bytes=1e6)
        context = replace(context, traits=replace(context.traits, overheads=overheads))
        context = replace(context, schedules=context.traits.support.schedules)
        return replace(context, cluster=scarce(context, self.memory_percent / 100))


CASES = st.builds(
    Case,
    num_layers=st.sampled_from([6, 5, 4, 3, 2]),
    global_batch=st.sampled_from([2, 4, 6]),
    seq_len=st.sampled_from([256, 1024]),
    hidden_size=st.sampled_from([256, 512, 1024]),
    num_heads=st.sampled_from([2, 4, 8]),
    vocab_size=st.sampled_from([1000, 32000]),
    num_gpus=st.sampled_from([8, 6, 4, 2, 1]),
    framework=st.sampled_from(PROFILES),
    tied=st.booleans(),
    memory_percent=st.integers(8, 110),
)


def scarce(context: Context, share: float) -> ClusterSpec:
    """Memory for overheads and a share of what the whole model takes on one GPU."""
    lowest = min(context.traits.support.zero_stages)
    fixed = {"tp": [1], "pp": [1], "dp": [1], "micro_batch": [1], "zero_stage": [lowest]}
    model = stage_model(context, enumerate_space(context, fixed).strategy).take(np.array([0]))
    layers, none = np.array([[float(context.model.num_blocks)]]), np.zeros((1, 1))
    peak = float(stage_peak_bytes(model, layers, none, none)[0, 0])
    overhead = float(model.overhead_bytes[0])
    node = context.cluster.node
    accelerator = replace(node.accelerator, hbm_bytes=overhead + share * (peak - overhead))
    return replace(context.cluster, node=replace(node, accelerator=accelerator))


def smallest(values: np.ndarray, k: int) -> list[float]:
    return [float(value) for value in np.sort(values)[:k] if np.isfinite(value)]


def assert_best_plans(result: SearchResult, brute: Brute, top: int) -> None:
    """Plans lie between the optimum and the optimum under slightly less memory."""
    possible = np.isfinite(brute.exact_s)
    certain = np.isfinite(brute.strict_s)
    most = max(brute.num_gpus[possible], default=0)
    least = max(brute.num_gpus[certain], default=0)
    assert least <= result.num_gpus <= most
    here = brute.num_gpus == result.num_gpus
    found = [plan.iteration_s for plan in result.plans]
    exact, strict = smallest(brute.exact_s[here], top), smallest(brute.strict_s[here], top)
    assert len(strict) <= len(found) <= len(exact)
    for time_s, lower_s in zip(found, exact, strict=False):
        assert time_s >= lower_s * (1.0 - 1e-9)
    for time_s, upper_s in zip(found, strict, strict=False):
        assert time_s <= upper_s * (1.0 + TIME_TOLERANCE)


def expected_frontier(num_gpus: np.ndarray, best_s: np.ndarray) -> tuple[dict[int, float], bool]:
    """Walk up the counts, keep those 1 % faster than the fastest kept; and: is none near 1 %?"""
    kept: dict[int, float] = {}
    fastest, clear = np.inf, True
    for count in np.unique(num_gpus):
        best = best_s[num_gpus == count].min()
        if not np.isfinite(best):
            continue
        gate = fastest * (1.0 - GAIN)
        clear &= not np.isfinite(gate) or abs(best / gate - 1.0) > 2 * TIME_TOLERANCE
        if best < gate:
            kept[int(count)] = fastest = float(best)
    return kept, bool(clear)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES)
def test_plans_and_frontier_equal_brute_force(
    case: Case,
    context_of: Callable[..., Context],
    small_model: Callable[..., ModelSpec],
) -> None:
    context = case.context(context_of, small_model)
    _, brute = force(context)
    event(
        f"some fit: {np.isfinite(brute.exact_s).any()}, all fit: {np.isfinite(brute.exact_s).all()}"
    )
    result = search(context, top=3)
    assert_best_plans(result, brute, 3)
    assert result.proved_optimal
    exact, clear = expected_frontier(brute.num_gpus, brute.exact_s)
    assume(clear and expected_frontier(brute.num_gpus, brute.strict_s) == (exact, True))
    found = {plan.strategy.num_gpus: plan.iteration_s for plan in result.frontier}
    assert list(found) == list(exact)
    assert list(found.values()) == pytest.approx(list(exact.values()), rel=TIME_TOLERANCE)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES)
def test_bounds_never_exceed_the_best_split_and_never_drop_one(
    case: Case,
    context_of: Callable[..., Context],
    small_model: Callable[..., ModelSpec],
) -> None:
    context = case.context(context_of, small_model)
    model, brute = force(context)
    num_layers = context.model.num_blocks
    for num_stages in np.unique(model.strategy.pp):
        rows = np.flatnonzero(model.strategy.pp == num_stages)
        part, best_s = model.take(rows), brute.exact_s[rows]
        possible = np.isfinite(best_s)
        assert feasible(part, int(num_stages), num_layers)[possible].all()
        assert (free_bound_s(part, num_layers) <= best_s * (1 + 1e-9)).all()
        found = refine(part, int(num_stages), num_layers)
        assert (found.lower_s <= best_s * (1 + 1e-9))[possible].all()
        assert (found.upper_s >= best_s * (1 - 1e-9)).all()
        claimed = np.isfinite(found.upper_s)
        args = (found.layers[claimed], found.selective[claimed], found.full[claimed])
        assert fits(part.take(claimed), *args).all()
        assert (args[0].sum(axis=1) == num_layers).all()
        assert (args[1] + args[2] <= args[0]).all()
        assert (args[1] >= 0).all()
        assert (args[2] >= 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=CASES, position=st.floats(0.0, 1.0, exclude_max=True))
def test_the_solver_alone_finds_the_best_split_of_a_strategy(
    case: Case,
    position: float,
    context_of: Callable[..., Context],
    small_model: Callable[..., ModelSpec],
) -> None:
    context = case.context(context_of, small_model)
    model, brute = force(context)
    solvable = np.flatnonzero(np.isfinite(brute.strict_s) | np.isinf(brute.exact_s))
    assume(len(solvable))
    for shift in range(5):
        index = (int(position * len(solvable)) + shift * 7) % len(solvable)
        row = int(solvable[index])
        split = solve_split(model.take(np.array([row])), context.model.num_blocks)
        if not np.isfinite(brute.exact_s[row]):
            assert split is None
            continue
        assert split is not None
        assert split.is_optimal
        assert split.iteration_s >= brute.exact_s[row] * (1 - 1e-9)
        assert split.iteration_s <= brute.strict_s[row] * (1 + TIME_TOLERANCE)


def test_two_runs_of_the_search_give_identical_results(context_of: Callable[..., Context]) -> None:
    context = context_of(framework="deepspeed", hbm_bytes=3.2e9, global_batch=8)
    first, second = (search(context, top=5) for _ in range(2))
    assert first.plans
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
