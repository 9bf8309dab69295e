"""The search as a whole: enumerate, bound, rank, and report how it went.

Searches with less usable memory say what the frontier of time over GPUs costs in headroom.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.stage_model import price_all
from planner.search.ranking.candidates import LAYOUT, Candidates
from planner.search.ranking.exploration import Exploration, explored, ranked_by
from planner.search.ranking.goals import (
    FASTEST_AT_MOST,
    Goal,
    best_of,
    simplest_of,
    smaller_gpu_frontier,
    without_job_limits,
)
from planner.search.ranking.rank import Best, Ranked, frontier
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING, Enumeration
from planner.spec.strategy import POLICIES, Strategy, split_values
from planner.units import GIB

# Called with what is being done and the fraction of the search behind it.
Progress = Callable[[str, float], None]


def no_progress(_message: str, _fraction: float) -> None:
    """Report no progress."""


@dataclass(frozen=True, kw_only=True)
class FoundLayout:
    """A complete strategy the search returned."""

    strategy: Strategy
    iteration_s: float
    is_optimal: bool
    weighed_s: float  # Its time with the penalties of what it uses


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Best plans under a goal, the frontier over GPU counts, and the search's own figures."""

    num_gpus: int  # GPUs of the best plan: without another goal those of all plans
    plans: tuple[FoundLayout, ...]
    frontier: tuple[FoundLayout, ...]
    """Fastest plan of every number of GPUs that beats all smaller ones, where it was asked for."""
    ladder: tuple[FoundLayout, ...] = ()
    """Best on at most a half, a quarter and an eighth of the best plan's GPUs."""
    fastest: FoundLayout | None = None
    """The best by time with penalties; the first plan is the simplest that ties with it."""
    num_configurations: int  # Shapes, strategies of those opened, branches that a rule dropped
    num_shapes: int  # Bounded; few of them have no legal micro-batch
    num_priced: int
    """Legal strategies whose time and memory were computed; bounds set the others aside."""
    num_solved: int
    bound_s: float = float("inf")
    """No strategy that was not looked at to the end can be faster, on ``num_gpus``; in the units
    of the best plan where the goal weighs GPUs."""
    dropped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    is_complete: bool = True  # no limit of time or work struck
    is_remembered: bool = False  # found by an earlier search, which took the seconds

    @property
    def proved_optimal(self) -> bool:
        """True when every returned plan was proved best under the model."""
        found = (*self.plans, *self.frontier, *self.ladder)
        return self.is_complete and all(plan.is_optimal for plan in found)

    @property
    def gap(self) -> float:
        """Largest possible gap of the best plan to the optimum, as a fraction of its time.

        1 where a limit struck before any plan was found.
        """
        if self.proved_optimal:
            return 0.0
        if not self.plans:
            return 1.0
        best = min(plan.weighed_s for plan in (self.fastest, self.plans[0]) if plan)
        return max(0.0, 1.0 - min(self.bound_s, best) / best)


def found_of(candidates: Candidates, ranked: Ranked) -> FoundLayout:
    """Join a candidate's row and its split into one strategy, with its times."""
    split = ranked.split
    under = dict(zip(POLICIES, split.counts, strict=True))
    values = candidates.strategy.values(ranked.row) | split_values(split.layers, under)
    modules = split.modules if any(values["selective_layers_per_stage"]) else None
    own_s = split.iteration_s / split.weight
    return FoundLayout(
        strategy=Strategy(**values, recompute_modules=modules),
        iteration_s=own_s,
        weighed_s=own_s * float(candidates.penalty[ranked.row]),
        is_optimal=split.is_optimal,
    )


def search(
    context: Context,
    *,
    top: int = 5,
    narrowing: Narrowing = EVERYTHING,
    with_frontier: bool = True,
    with_ladder: bool = False,
    uses_all: bool = False,
    one_per_layout: bool = False,
    time_limit_s: float | None = None,
    goal: Goal = FASTEST_AT_MOST,
    guess_s: float = math.inf,
    progress: Progress = no_progress,
) -> SearchResult:
    """Find the ``top`` best plans under a goal, and the frontier of all plans, limits or not.

    Without a goal the best is the fastest of all, and the others are on as many GPUs. Exact under
    the model: a strategy is set aside only by a rule, because no split of it can fit, or because
    its lower bound is no better than a plan already found. ``uses_all`` asks only for layouts of
    the whole cluster; with ``top`` 0 there is only the frontier. With ``one_per_layout`` plans
    differ in degrees or ZeRO stage. ``guess_s``: as of :func:`best_of`.
    """
    started = time.perf_counter()
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    progress("enumerating shapes", 0.0)
    # Who asks for the least GPU time gets the least.
    breaks_ties = context.ranking == "simplicity" and goal.order != "gpu_seconds"
    is_weighed = context.ranking != "time"
    enumeration = Enumeration(
        context=replace(context, ranking="evidence") if is_weighed else context,
        narrowing=narrowing,
        uses_all=uses_all,
    )
    exploration, num_shapes = explored(
        enumeration, deadline=deadline, one_per_layout=one_per_layout
    )
    progress(f"searching {num_shapes:,} shapes", 0.2)
    best = Best(ranked=(), bound_s=float("inf"))
    if top:
        # Beside the simplest that tie with the best few others are shown, mostly none.
        best = best_of(exploration, goal, 1 if breaks_ties else top, guess_s)
    plans = _found(exploration, best)
    num_gpus = plans[0].strategy.num_gpus if plans else 0
    progress("looking at fewer GPUs", 0.5)
    rungs = smaller_gpu_frontier(exploration, num_gpus) if with_ladder and plans else []
    ladder = [_found(exploration, rung)[0] for rung in rungs]
    fastest = plans[0] if plans else None
    if breaks_ties and plans:
        progress("looking for the simplest that ties", 0.75)
        best_s = {plan.strategy.num_gpus: plan.weighed_s for plan in (plans[0], *ladder)}
        # What uses GPUs that the best leaves idle may tie with it.
        most = exploration.shapes.gpus.max() if goal.order == "at_most" else num_gpus
        counts = [*best_s, *range(num_gpus + 1, most + 1)]
        simple = ranked_by(exploration, context, counts)
        of_first, *of_ladder = simplest_of(simple, goal, best_s, top)
        # The best itself where the time is over.
        ties = _found(simple, of_first) or plans[:1]
        ladder = [
            (*_found(simple, of), rung)[0] for of, rung in zip(of_ladder, ladder, strict=True)
        ]
        if len(ties) < top:
            plans = _found(exploration, best_of(exploration, goal, top))
        layouts = {_layout(plan) for plan in ties}
        slower = [plan for plan in plans if _layout(plan) not in layouts][: top - len(ties)]
        if goal.order != "fewest_gpus":
            slower.sort(key=lambda plan: plan.iteration_s)
        plans = (*ties, *slower)
    if with_frontier:
        progress("looking at every number of GPUs", 0.9)
        exploration.keep_to(without_job_limits(exploration.shapes.gpus))
    line = frontier(exploration) if with_frontier else []
    num_too_big = num_shapes - len(exploration.shapes.group)
    return SearchResult(
        num_gpus=plans[0].strategy.num_gpus if plans else 0,
        plans=plans,
        frontier=tuple(found for one in line for found in _found(exploration, one)),
        ladder=tuple(ladder),
        fastest=fastest,
        num_configurations=num_shapes
        + exploration.num_configurations
        + sum(enumeration.dropped.values()),
        num_shapes=num_shapes,
        num_priced=exploration.num_priced,
        num_solved=exploration.solving.num_solved,
        bound_s=0.0 if enumeration.is_cut else best.bound_s,
        dropped=enumeration.dropped | {"fits_in_memory": num_too_big},
        seconds=time.perf_counter() - started,
        is_complete=not (
            exploration.is_late or exploration.solving.is_unsure or enumeration.is_cut
        ),
    )


def _layout(plan: FoundLayout) -> tuple[object, ...]:
    """Key that tells layouts apart."""
    return tuple(getattr(plan.strategy, name) for name in LAYOUT)


def _found(exploration: Exploration, best: Best) -> tuple[FoundLayout, ...]:
    return tuple(found_of(exploration.candidates, one) for one in best.ranked)


def with_headroom(context: Context, headroom_gib: int) -> Context:
    """The context with so many GiB less of usable memory."""
    hbm_bytes = context.cluster.accelerator.hbm_bytes
    return replace(
        context, margin_fraction=context.margin_fraction + headroom_gib * GIB / hbm_bytes
    )


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
    progress: Progress = no_progress,
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
        found = search(
            with_headroom(context, step_gib),
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
