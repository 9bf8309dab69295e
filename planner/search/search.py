"""The search as a whole: enumerate, screen, rank, and report how it went."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.cost.context import Context
from planner.search.candidates import Candidates, screen
from planner.search.rank import Ranked, frontier, top_k
from planner.search.space import enumerate_space
from planner.spec.strategy import (
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    SCHEDULES,
    Strategy,
    StrategyColumns,
)

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction of the search behind it."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A complete strategy the search returned."""

    strategy: Strategy
    iteration_s: float
    is_optimal: bool


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Best plans for one GPU count, the frontier over all, and the search's own figures."""

    num_gpus: int
    """Largest usable GPU count: every plan of ``plans`` uses it."""
    plans: tuple[Found, ...]
    frontier: tuple[Found, ...]
    num_configurations: int
    num_legal: int
    num_fitting: int
    num_solved: int
    dropped: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def proved_optimal(self) -> bool:
        """True when every returned plan was proved best under the model."""
        return all(found.is_optimal for found in (*self.plans, *self.frontier))


def to_strategy(columns: StrategyColumns, ranked: Ranked) -> Strategy:
    """Join a row of columns and its split into one strategy."""

    def at(name: str) -> int:
        return int(getattr(columns, name)[ranked.row])

    split = ranked.split
    return Strategy(
        dp=at("dp"),
        dp_replicate=at("dp_replicate"),
        tp=at("tp"),
        pp=at("pp"),
        vpp=at("vpp"),
        cp=at("cp"),
        ep=at("ep"),
        zero_stage=at("zero_stage"),
        micro_batch=at("micro_batch"),
        num_micro_batches=at("num_micro_batches"),
        sequence_parallel=bool(at("sequence_parallel")),
        offload=OFFLOAD_CODES[at("offload")],
        placement=PLACEMENT_NAMES[at("placement")],
        schedule=SCHEDULES[at("schedule")],
        layers_per_stage=tuple(int(n) for n in split.layers),
        selective_layers_per_stage=tuple(int(n) for n in split.selective),
        recompute_layers_per_stage=tuple(int(n) for n in split.full),
    )


def search(
    context: Context,
    *,
    top: int = 5,
    fixed: dict[str, list[int]] | None = None,
    with_frontier: bool = True,
    uses_all: bool = False,
    progress: Progress = lambda _message, _fraction: None,
) -> SearchResult:
    """Find the ``top`` fastest plans on the most GPUs that can be used, and the frontier.

    Exact under the model: a strategy is set aside only by a rule, because no split of it can
    fit, or because its lower bound is no better than a plan already found. ``uses_all`` asks
    only for layouts of the whole cluster.
    """
    started = time.perf_counter()
    progress("enumerating strategies", 0.0)
    space = enumerate_space(context, fixed, uses_all=uses_all)
    screening = f"screening {len(space.strategy):,} legal strategies"
    can_fit, lower = screen(
        context, space.strategy, lambda done: progress(screening, 0.1 + 0.5 * done)
    )
    rows = np.flatnonzero(can_fit)
    candidates = Candidates(
        context=context, strategy=space.strategy.take(rows), lower_s=lower[rows]
    )
    progress(f"solving the best of {len(rows):,} that can fit", 0.6)
    gpus = candidates.strategy.num_gpus
    best, num_gpus = _best_on_most_gpus(candidates, top)
    progress("tracing the frontier over GPU counts", 0.75)
    line = frontier(candidates) if with_frontier else []
    dropped = dict(space.dropped)
    num_too_big = int(len(can_fit) - np.count_nonzero(can_fit))
    if num_too_big:
        dropped["fits_in_memory"] = num_too_big
    return SearchResult(
        num_gpus=num_gpus if len(gpus) else 0,
        plans=_found(candidates, best),
        frontier=_found(candidates, line),
        num_configurations=space.num_configurations,
        num_legal=len(space.strategy),
        num_fitting=len(rows),
        num_solved=candidates.num_solved,
        dropped=dropped,
        seconds=time.perf_counter() - started,
    )


def _best_on_most_gpus(candidates: Candidates, top: int) -> tuple[list[Ranked], int]:
    """Top plans on the largest GPU count for which at least one split exists."""
    gpus = candidates.strategy.num_gpus
    for count in sorted(set(gpus.tolist()), reverse=True):
        best = top_k(candidates, np.flatnonzero(gpus == count), top)
        if best:
            return best, int(count)
    return [], 0


def _found(candidates: Candidates, ranked: list[Ranked]) -> tuple[Found, ...]:
    return tuple(
        Found(
            strategy=to_strategy(candidates.strategy, one),
            iteration_s=one.split.iteration_s,
            is_optimal=one.split.is_optimal,
        )
        for one in ranked
    )
