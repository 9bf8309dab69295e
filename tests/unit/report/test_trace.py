"""The trace: what the Trace Event Format asks for, and the numbers of the estimate."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of, plan_of

from planner.answers.base import Plan
from planner.answers.execution import MAX_PASSES, iteration, too_long
from planner.cost.topology import stage_ranks
from planner.report.trace import render_trace

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}
"""Fields of complete, counter and metadata events (Trace Event Format)."""


RANKS = (0, 4, 8, 12)
"""First of each stage: 16 GPUs as dp 2 x tp 2 x pp 4, the pipeline outermost, 4 ranks in a row."""


@pytest.fixture
def plan() -> Plan:
    context = context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=16, seq_len=2048)
    return plan_of(context, tp=2, pp=4, global_batch=16)


@pytest.fixture
def document(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render_trace(plan, iteration(plan)))
    return found


def slices_of(document: dict[str, Any], stage: int) -> list[dict[str, Any]]:
    """Complete events of a stage in the order of the file: parents before what is inside them."""
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == RANKS[stage]]


def edges(event: dict[str, Any]) -> tuple[int, int]:
    start: int = event["ts"]
    return start, start + event["dur"]


def outermost(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that lie in no other."""
    found: list[dict[str, Any]] = []
    for event in events:
        if not found or edges(event)[0] >= edges(found[-1])[1]:
            found.append(event)
    return found


def test_every_event_has_the_fields_of_its_phase(document: dict[str, Any]) -> None:
    for event in document["traceEvents"]:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
        # Whole numbers: ts + dur of one slice is ts of the next, whoever adds them.
        assert isinstance(event.get("ts", 0), int)
        assert isinstance(event.get("dur", 1), int)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_slices_of_a_stage_nest_and_sum_to_the_iteration(
    plan: Plan, document: dict[str, Any]
) -> None:
    whole = round(plan.estimate.iter_time_s * 1e6)
    for stage in range(4):
        events = slices_of(document, stage)
        top = outermost(events)
        assert sum(end - start for start, end in map(edges, top)) == whole
        assert all(edges(before)[1] == edges(after)[0] for before, after in itertools.pairwise(top))
        for event in events:
            start, end = edges(event)
            assert any(edges(one)[0] <= start <= end <= edges(one)[1] for one in top)


def test_what_is_inside_a_pass_sums_to_it(document: dict[str, Any]) -> None:
    events = slices_of(document, 0)
    forward = next(e for e in events if e["name"] == "forward 3")
    start, end = edges(forward)
    inside = [e for e in events if e is not forward and start <= edges(e)[0] < end]
    assert len(inside) > 1
    assert sum(b - a for a, b in map(edges, inside)) == end - start


def test_the_hbm_counter_reaches_the_peak_of_every_stage(
    plan: Plan, document: dict[str, Any]
) -> None:
    for stage, peak in enumerate(plan.estimate.memory.stage_peak_bytes):
        counted = [
            e["args"]["GiB"]
            for e in document["traceEvents"]
            if e["ph"] == "C" and e["name"] == f"stage {stage} HBM"
        ]
        assert max(counted) == pytest.approx(peak / 2**30, abs=1e-6)


def test_stages_are_named_with_their_first_rank(plan: Plan, document: dict[str, Any]) -> None:
    names = {
        e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    assert tuple(stage_ranks(plan.strategy, stage)[0] for stage in range(4)) == RANKS
    assert tuple(names) == RANKS
    assert names[4] == "stage 1: 8 layers (rank 4 and 3 alike)"
    inner = replace(plan.strategy, placement="tp-cp-ep-pp-dp")
    assert [stage_ranks(inner, stage)[0] for stage in range(4)] == [0, 2, 4, 6]


def test_names_of_models_stay_inside_their_strings(plan: Plan) -> None:
    model = replace(plan.context.model, name='"}], </script>\n')
    plan = replace(plan, context=replace(plan.context, model=model))
    text = render_trace(plan, iteration(plan))
    assert json.loads(text)["otherData"]["model"] == model.name


def test_iterations_of_too_many_passes_are_named(plan: Plan) -> None:
    assert not too_long(plan.strategy)
    long = replace(plan.strategy, num_micro_batches=MAX_PASSES)
    assert f"{MAX_PASSES:,} micro-batches" in too_long(long)
