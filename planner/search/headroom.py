"""Searches with less usable memory: what the frontier of time over GPUs costs in headroom."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.stage_model import price_all
from planner.search.search import Progress, SearchResult, search
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.units import GIB


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


def headroom_frontiers(
    context: Context,
    *,
    narrowing: Narrowing = EVERYTHING,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Iterator[SearchResult]:
    """Yield searches whose frontiers hold every trade of time, GPUs and whole GiB of headroom.

    By epsilon constraints: the frontier of time over GPUs is complete under each lower limit of
    headroom. A plan that nothing dominates is on the frontier whose limit is its own headroom;
    between two limits at which every plan of a frontier leaves enough, the frontier is the same.
    Together they may hold plans that others dominate, and a plan more than once.
    """
    ends_s = time.monotonic() + (math.inf if time_limit_s is None else time_limit_s)
    most_gib, step_gib = most_headroom_gib(context), 0
    # The headroom is raised to where the frontier changes next, until nothing fits.
    while step_gib <= most_gib:
        progress(f"frontier with {step_gib} GiB of headroom", step_gib / (most_gib + 1))
        left_s = max(ends_s - time.monotonic(), 0.0)
        tighter = with_headroom(context, step_gib)
        found = search(
            tighter,
            top=0,
            narrowing=narrowing,
            time_limit_s=None if time_limit_s is None else left_s,
        )
        yield found
        is_late = not found.is_complete and time.monotonic() >= ends_s
        if is_late or not found.frontier:
            return
        subjects = price_all(context, [plan.strategy for plan in found.frontier])
        peaks = [memory_estimate(subject).peak_bytes for subject in subjects]
        left_gib = min(headroom_gib(context, peak_bytes) for peak_bytes in peaks)
        step_gib = max(step_gib, left_gib) + 1
