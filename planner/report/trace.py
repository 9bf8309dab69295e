"""An iteration in the Trace Event Format, which Perfetto opens.

Source: Trace Event Format, Google, 2016 ("JSON Object Format"; complete, counter and metadata
events). Edges are whole microseconds: viewers add ``ts`` and ``dur``, and fractions would make
slices overlap by rounding.

Stages are threads of one process: Perfetto shows threads in the order of their numbers, processes
in that of how many slices they have.
"""

import json
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

from planner import __version__
from planner.answers.base import Plan
from planner.answers.execution import Iteration
from planner.cost.estimate import item_title
from planner.cost.timeline import PASSES, WAIT, MemoryCurve, Slice
from planner.cost.topology import stage_ranks
from planner.spec.strategy import Strategy
from planner.units import GIB

Event = dict[str, Any]


def _event(kind: str, name: str, rank: int, args: Event, **more: object) -> Event:
    return {"name": name, "ph": kind, "pid": 0, "tid": rank, "args": args, **more}


def _complete(
    name: str, category: str, rank: int, edges_s: tuple[float, float], args: Event
) -> Event:
    start, end = (round(edge * 1e6) for edge in edges_s)
    return _event("X", name, rank, args, cat=category, ts=start, dur=end - start)


def _slice_events(rank: int, each: Slice) -> Iterator[Event]:
    """The slice, and inside it what it spends its time on, where that is more than one thing."""
    args: Event = {
        PASSES[kind]: {"chunk": chunk, "micro_batch": number} for kind, chunk, number in each.slot
    }
    category, title = each.kind, "waiting"
    if each.slot:
        numbers = dict.fromkeys(str(operation.micro_batch) for operation in each.slot)
        title = f"{each.kind} {'+'.join(numbers)}"
    elif each.kind != WAIT:
        category, title = "tail", item_title(each.kind)
    yield _complete(title, category, rank, (each.start_s, each.end_s), args)
    if len(each.seconds) < 2:
        return
    edges = list(accumulate(each.seconds.values(), initial=each.start_s))
    # The last part ends where the slice does, whatever rounding says.
    edges[-1] = each.end_s
    for name, ends in zip(each.seconds, pairwise(edges), strict=True):
        yield _complete(item_title(name), category, rank, ends, {"item": f"time.{name}"})


def _counters(curve: MemoryCurve, digits: int) -> Iterator[Event]:
    """HBM in GiB, in all and what the schedule changes, wherever it changes."""
    stage, before = f"stage {curve.stage:0{digits}}", None
    named = {
        "HBM": curve.total_bytes,
        "activations": curve.bytes_by_group["activations"],
        "transient": curve.bytes_by_group["transient"],
    }
    for position, time_s in enumerate(curve.times_s[:-1]):
        values = {f"{stage} {name}": sizes[position] for name, sizes in named.items()}
        if values == before:
            continue
        before = values
        yield from (
            {
                "name": name,
                "ph": "C",
                "ts": round(time_s * 1e6),
                "pid": 0,
                "args": {"GiB": round(num_bytes / GIB, 6)},
            }
            for name, num_bytes in values.items()
        )


def _events(strategy: Strategy, found: Iteration) -> Iterator[Event]:
    """Every stage's name, slices of a microsecond or more, and counters."""
    stages, same = found.timeline.stages, strategy.num_gpus // strategy.pp
    alike = f" and {same - 1} alike" if same > 1 else ""
    yield _event("M", "process_name", stage_ranks(strategy, 0)[0], {"name": "one iteration"})
    for stage, slices in enumerate(stages):
        rank, layers = stage_ranks(strategy, stage)[0], strategy.layers_per_stage[stage]
        name = f"stage {stage}: {layers} layers (rank {rank}{alike})"
        yield _event("M", "thread_name", rank, {"name": name})
        for each in slices:
            yield from (event for event in _slice_events(rank, each) if event["dur"])
        # Numbers of one length: viewers sort counters by their names.
        yield from _counters(found.curves[stage], digits=len(str(len(stages) - 1)))


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
        json.dumps(event, separators=(",", ":")) for event in _events(plan.strategy, found)
    )
    head = f'{{"displayTimeUnit":"ms",\n"otherData":{json.dumps(about)},\n"traceEvents":[\n'
    return f"{head}{events}\n]}}\n"
