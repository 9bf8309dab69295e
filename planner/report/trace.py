"""An iteration in the Trace Event Format, which Perfetto opens.

Source: Trace Event Format, Google, 2016 ("JSON Object Format"; complete, counter and metadata
events). Edges are whole microseconds: viewers add ``ts`` and ``dur``, and fractions would make
slices overlap by rounding.

Stages are threads of one process: Perfetto shows threads in the order of their numbers, processes
in that of how many slices they have.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from planner import __version__
from planner.answers.base import Plan
from planner.answers.execution import Iteration
from planner.answers.items import item_title
from planner.cost.timeline import PASSES, WAIT, MemoryCurve, Slice, Timeline
from planner.cost.topology import stage_ranks
from planner.spec.strategy import Strategy
from planner.units import GIB

Event = dict[str, Any]
PROCESS = 0
"""The only one: the iteration."""


def first_rank(strategy: Strategy, stage: int) -> int:
    """The lowest global rank of a stage."""
    return stage_ranks(strategy, stage)[0]


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _complete(
    name: str, category: str, rank: int, edges_s: tuple[float, float], args: Event
) -> Event:
    start, end = map(_microseconds, edges_s)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": end - start,
        "pid": PROCESS,
        "tid": rank,
        "args": args,
    }


def slice_title(each: Slice) -> str:
    """What a slice is called: ``forward 3``, ``optimizer step``."""
    if each.kind == WAIT:
        return "waiting"
    numbers = dict.fromkeys(operation.micro_batch for operation in each.slot)
    if not numbers:
        return item_title(each.kind)
    return " ".join([each.kind, "+".join(map(str, numbers))])


def _slice_events(rank: int, each: Slice) -> Iterator[Event]:
    """The slice, and inside it what it spends its time on, where that is more than one thing."""
    args: Event = {
        PASSES[kind]: {"chunk": chunk, "micro_batch": number} for kind, chunk, number in each.slot
    }
    category = each.kind if each.slot or each.kind == WAIT else "tail"
    edges = (each.start_s, each.end_s)
    yield _complete(slice_title(each), category, rank, edges, args)
    if len(each.seconds) < 2:
        return
    start = each.start_s
    for position, (name, seconds) in enumerate(each.seconds.items(), start=1):
        end = each.end_s if position == len(each.seconds) else start + seconds
        yield _complete(item_title(name), category, rank, (start, end), {"item": f"time.{name}"})
        start = end


def _named(what: str, name: str, rank: int) -> Event:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": rank, "args": {"name": name}}


def stage_name(strategy: Strategy, stage: int) -> str:
    """What the track of a stage is called: ``stage 1: 8 layers (rank 4 and 3 alike)``."""
    rank = first_rank(strategy, stage)
    same = strategy.num_gpus // strategy.pp
    alike = f"rank {rank}" if same == 1 else f"rank {rank} and {same - 1} alike"
    return f"stage {stage}: {strategy.layers_per_stage[stage]} layers ({alike})"


def _counters(curve: MemoryCurve, digits: int) -> Iterator[Event]:
    """HBM in GiB, in all and what the schedule changes, wherever it changes.

    ``digits`` of the largest stage's number: viewers sort counters by their names.
    """
    stage = f"stage {curve.stage:0{digits}}"
    totals, before = curve.total_bytes, None
    for position, time_s in enumerate(curve.times_s[:-1]):
        values = {
            f"{stage} HBM": totals[position],
            **{
                f"{stage} {group}": curve.bytes_by_group[group][position]
                for group in ("activations", "transient")
            },
        }
        if values == before:
            continue
        before = values
        for name, num_bytes in values.items():
            yield {
                "name": name,
                "ph": "C",
                "ts": _microseconds(time_s),
                "pid": PROCESS,
                "args": {"GiB": round(num_bytes / GIB, 6)},
            }


def trace_events(
    strategy: Strategy, drawn: Timeline, curves: Sequence[MemoryCurve]
) -> Iterator[Event]:
    """Every stage's name, slices of a microsecond or more, and counters."""
    digits = len(str(len(drawn.stages) - 1))
    yield _named("process_name", "one iteration", first_rank(strategy, 0))
    for stage, slices in enumerate(drawn.stages):
        rank = first_rank(strategy, stage)
        yield _named("thread_name", stage_name(strategy, stage), rank)
        events = (event for each in slices for event in _slice_events(rank, each))
        yield from (event for event in events if event["dur"])
        yield from _counters(curves[stage], digits)


def render_trace(plan: Plan, found: Iteration) -> str:
    """The trace as JSON, an event a line."""
    estimate, drawn = plan.estimate, found.timeline
    about = {
        "planner_version": __version__,
        "model": plan.context.model.name,
        "cluster": plan.context.cluster.name,
        "framework": plan.framework,
        "iteration_s": estimate.iter_time_s,
        "pipeline_s": drawn.modelled_s,
        "simulated_pipeline_s": drawn.simulated_s,
        "peak_bytes": estimate.memory.peak_bytes,
    }
    events = ",\n".join(
        json.dumps(event, separators=(",", ":"))
        for event in trace_events(plan.strategy, drawn, found.curves)
    )
    head = f'{{"displayTimeUnit":"ms",\n"otherData":{json.dumps(about)},\n"traceEvents":[\n'
    return f"{head}{events}\n]}}\n"
