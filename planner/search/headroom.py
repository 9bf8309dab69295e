"""Searches with less usable memory: what the frontier of time over GPUs costs in headroom."""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.stage_model import price_all
from planner.search.ranking.exploration import Exploration, explored
from planner.search.ranking.rank import Ranked, frontier
from planner.search.search import Found, Progress, SearchResult, found_of
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING, Enumeration
from planner.spec.strategy import Strategy
from planner.units import GIB, Array, Index


def with_headroom(context: Context, headroom_gib: int) -> Context:
    """The context with so many GiB less of usable memory."""
    hbm_bytes = context.cluster.accelerator.hbm_bytes
    margin = context.margin_fraction + headroom_gib * GIB / hbm_bytes
    return replace(context, margin_fraction=margin)


def most_headroom_gib(context: Context) -> int:
    """Whole GiB of usable memory: no plan leaves more."""
    return int(context.usable_bytes // GIB)


def headroom_gib(context: Context, peak_bytes: float) -> int:
    """Whole GiB between the usable memory and a peak."""
    rounding_gib = 1e-6
    return math.floor((context.usable_bytes - peak_bytes) / GIB + rounding_gib)


class _Keeping(Exploration):
    """One that keeps every strategy that can fit: slow ones are needed with less memory."""

    def open(self, shapes: Index, limit_s: Array) -> None:
        """Price all strategies of these shapes; keep what can fit, whatever the limit."""
        super().open(shapes, np.full(len(limit_s), np.inf))


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A strategy of a frontier, and what memory it leaves."""

    ranked: Ranked
    found: Found
    headroom_gib: int


class _Steps:
    """Frontiers of time over GPUs with less and less memory; what was learnt stays."""

    def __init__(self, enumeration: Enumeration, deadline: float | None) -> None:
        self.context = enumeration.context
        first, self.num_shapes = explored(enumeration, deadline=deadline)
        self.exploration: Exploration = _Keeping(
            enumeration=enumeration, shapes=first.shapes, deadline=deadline
        )
        self.line: list[_Point] = []
        self.bound_s = float("inf")

    def advance(self, step_gib: int) -> None:
        """Trace the frontier with ``step_gib`` less of memory.

        Lower bounds stay valid. So do splits that leave enough, and where they were the fastest
        with more memory they still are: only the other numbers of GPUs are searched again.
        """
        old, context = self.exploration, with_headroom(self.context, step_gib)
        tight = _Keeping(
            enumeration=replace(old.enumeration, context=context, dropped={}),
            shapes=old.shapes,
            deadline=old.deadline,
            num_priced=old.num_priced,
            num_fitting=old.num_fitting,
        )
        tight.solving.num_solved = old.solving.num_solved
        rows = tight.candidates
        rows.add([old.candidates.bounded])
        rows.is_refined = np.isinf(rows.lower_s)
        known = {point.ranked.row: point for point in self.line if point.headroom_gib >= step_gib}
        for row, point in known.items():
            split = point.ranked.split
            rows.splits[row], rows.upper_s[row] = split, split.iteration_s
            rows.is_refined[row] = True
        self.exploration = tight
        found = frontier(self.exploration)
        self.bound_s = min([self.bound_s, *(best.bound_s for best in found)])
        ranked = [one for best in found for one in best.ranked]
        new = [one for one in ranked if one.row not in known]
        plans = [found_of(self.exploration.candidates, one) for one in new]
        subjects = price_all(self.context, [plan.strategy for plan in plans])
        for one, plan, subject in zip(new, plans, subjects, strict=True):
            left_gib = headroom_gib(self.context, memory_estimate(subject).peak_bytes)
            known[one.row] = _Point(ranked=one, found=plan, headroom_gib=left_gib)
        self.line = [known[one.row] for one in ranked]


def headroom_frontier(
    context: Context,
    *,
    narrowing: Narrowing = EVERYTHING,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> SearchResult:
    """Plans of every trade of time, GPUs and whole GiB of headroom, as a ``frontier``.

    By epsilon constraints: the frontier of time over GPUs is complete under each lower limit of
    headroom. A plan that nothing dominates is on the frontier whose limit is its own headroom;
    between two limits at which every plan of a frontier leaves enough, the frontier is the same.
    The result may hold plans that others dominate, and a plan of several frontiers once.
    """
    started = time.perf_counter()
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    enumeration = Enumeration(context=context, narrowing=narrowing)
    steps = _Steps(enumeration, deadline)
    most_gib, step_gib, found = most_headroom_gib(context), 0, dict[Strategy, Found]()
    # The headroom is raised to where the frontier changes next, until nothing fits.
    while step_gib <= most_gib and not steps.exploration.is_late:
        progress(f"frontier with {step_gib} GiB of headroom", step_gib / (most_gib + 1))
        steps.advance(step_gib)
        if not steps.line:
            break
        found |= {point.found.strategy: point.found for point in steps.line}
        step_gib = max(step_gib, min(point.headroom_gib for point in steps.line)) + 1
    dropped = dict(enumeration.dropped)
    return SearchResult(
        num_gpus=max((one.strategy.num_gpus for one in found.values()), default=0),
        plans=(),
        frontier=tuple(found.values()),
        num_configurations=steps.num_shapes + steps.exploration.num_priced + sum(dropped.values()),
        num_shapes=steps.num_shapes,
        num_priced=steps.exploration.num_priced,
        num_fitting=steps.exploration.num_fitting,
        num_solved=steps.exploration.solving.num_solved,
        bound_s=0.0 if enumeration.is_cut else steps.bound_s,
        dropped=dropped,
        seconds=time.perf_counter() - started,
        is_complete=not (steps.exploration.is_late or enumeration.is_cut),
    )
