"""Repairs against brute force over every strategy, split, policy and set of modules.

Brute force uses only the rules, ``iteration_s`` and ``fits``; what is tested are the narrowed
enumeration, its filters, bounds and the solver.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import repair_force as brute
from brute_force import tiny_context, tiny_model
from contexts import with_hbm
from depth import of_all
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.module_sets import module_sets
from planner.cost.stage_model import stage_model
from planner.search.near import MOST_CHANGES, Neighborhood, nearest
from planner.search.search import search
from planner.search.space.legality import violations
from planner.spec.cluster import ClusterSpec
from planner.spec.strategy import OFFLOAD_CODES, POLICY_COUNT_FIELDS, SCHEDULES, Strategy

TIME_TOLERANCE = 1e-4  # the solver rounds times to 2**-16 of a layer's


SOFTWARE = ("megatron current", "deepspeed current", "torchtitan current", "megatron zero-bubble")


class Case(SimpleNamespace):
    """A small model on 1-4 GPUs, a share of the memory one needs, and edits that break a plan."""

    def context(self) -> Context:
        model = tiny_model(
            num_layers=self.num_layers, num_heads=self.num_heads, vocab_size=self.vocab_size
        )
        jobs = {"global_batch": self.global_batch, "seq_len": 512}
        context = tiny_context(model, self.cluster, self.framework, **jobs)
        context = replace(context, schedules=context.traits.support.schedules)
        context = replace(context, module_sets=module_sets(context))
        return replace(context, cluster=scarce(context, self.memory_percent))


BREAKS = st.one_of(
    st.tuples(st.sampled_from(["tp", "cp", "pp", "dp", "ep"]), st.integers(1, 5)),
    st.tuples(st.sampled_from(["vpp", "micro_batch", "dp_replicate"]), st.integers(1, 4)),
    st.tuples(st.just("zero_stage"), st.integers(0, 3)),
    st.tuples(st.just("schedule"), st.integers(0, len(SCHEDULES) - 1)),
    st.tuples(st.just("offload"), st.integers(0, len(OFFLOAD_CODES) - 1)),
    st.tuples(st.just("offload_percent"), st.integers(1, 100)),
    st.tuples(st.just("sequence_parallel"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["layers_per_stage", *POLICY_COUNT_FIELDS]), st.integers(0, 4)),
)
CODES = {"schedule": SCHEDULES, "offload": OFFLOAD_CODES, "sequence_parallel": (False, True)}
CASES = st.builds(
    Case,
    num_layers=st.sampled_from([4, 3, 2]),
    global_batch=st.sampled_from([4, 2, 6]),
    num_heads=st.sampled_from([4, 2]),
    vocab_size=st.sampled_from([1000, 32000]),
    framework=st.sampled_from(SOFTWARE),
    cluster=st.sampled_from(["4xh100-sxm", "2xh100-sxm", "4xa100-sxm-80", "3xh100-sxm"]),
    memory_percent=st.integers(60, 120),
    less_percent=st.integers(45, 105),
    breaks=st.lists(BREAKS, max_size=3).map(tuple),
    keeps_gpus=st.booleans(),
)


def scarce(context: Context, percent: float) -> ClusterSpec:
    """Memory for overheads and a share of what the model takes in the leanest layout."""
    whole = stage_model(context, brute.every_strategy(context))
    overhead = float(whole.overhead_bytes.min())
    layers = whole.layer_static_bytes + whole.saved_bytes
    need = float((layers * context.model.num_blocks + whole.first_static_bytes).max())
    cluster = with_hbm(context.cluster, overhead + percent / 100 * need)
    return replace(cluster, node=replace(cluster.node, host_memory_bytes=need))


def broken(strategy: Strategy, breaks: tuple[tuple[str, int], ...]) -> Strategy:
    for name, value in breaks:
        change: Any = value
        if name.endswith("layers_per_stage"):
            others = getattr(strategy, name)[1:] or (value,) * (len(strategy.layers_per_stage) - 1)
            change = (value, *others)
        if name in CODES:
            change = CODES[name][value]
        strategy = replace(strategy, **{name: change})
    return strategy


@settings(max_examples=of_all(24), derandomize=True)
@given(case=CASES)
def test_repairs_equal_brute_force(case: Case) -> None:
    context = case.context()
    plans = search(context, top=1, with_frontier=False).plans
    assume(plans)
    strategy = broken(plans[0].strategy, case.breaks)
    less = context.cluster.accelerator.hbm_bytes * case.less_percent / 100
    context = replace(context, cluster=with_hbm(context.cluster, less))
    assume(search(context, top=1, with_frontier=False).plans)
    num_gpus = context.cluster.num_accelerators if case.keeps_gpus else None
    expected = brute.force(context, strategy, num_gpus)
    near = nearest(context, strategy, top=3, num_gpus=num_gpus)
    event(f"changes: {expected and expected.changes}")
    if expected is None:
        assert not near.found
        assert near.num_changes == MOST_CHANGES
        return
    assert near.found
    assert near.num_changes == expected.changes
    assert near.found[0].iteration_s == pytest.approx(expected.seconds, rel=TIME_TOLERANCE)
    space = Neighborhood(context=context, origin=strategy, num_gpus=num_gpus)
    for one in near.found:
        assert not list(violations(context, one.strategy))
        assert num_gpus in (None, one.strategy.num_gpus)
        assert len(space.changed_fields(one.strategy)) == near.num_changes
        made = estimate(context, one.strategy)
        assert made.memory.fits
        assert made.iter_time_s == pytest.approx(one.iteration_s, rel=1e-9)
