"""What would fit: the nearest change of every kind, with the plan and the time it gives."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from planner.cost.context import Context
from planner.frameworks.registry import CURRENT, FRAMEWORKS, load_traits
from planner.plans.limits import (
    more_nodes,
    narrowing_of,
    with_nodes,
    without_memory_limits,
)
from planner.search.explaining.feasible import Fit, OutOfTimeError, first_fit, smallest_fit
from planner.search.search import search
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy

SEQUENCE_DIVISORS = (2, 4, 8)
BATCH_DIVISORS = (2, 8)
BATCH_STEPS = (8, 64, 512)
PLAN_S = 2.0
"""Seconds for the best plan after one change; what is found by then is shown."""
FEWEST_S = 6.0
"""Seconds for the fewest nodes that fit; the fewest found by then are shown."""
ALLOWABLE = ("cross-domain-tp", "short-context-parallel")
"""What a search leaves out, and may take less memory."""
MOST_COMBINATIONS = 3

Question = tuple[Context, Narrowing]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to the question, in the words of the command line."""

    words: str
    question: Question


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """A change that lets something fit, and the best plan then."""

    words: str
    context: Context
    strategy: Strategy
    iteration_s: float
    is_optimal: bool
    """The plan was proved best; else it is the best found in the time given."""
    ideal: "Ideal | None" = None
    """What it is measured by."""

    @property
    def time_factor(self) -> float | None:
        """Seconds per token and GPU over those of the ideal; None without one."""
        if self.ideal is None:
            return None
        return _gpu_seconds_per_token(
            self.context, self.strategy, self.iteration_s
        ) / _gpu_seconds_per_token(self.ideal.context, self.ideal.strategy, self.ideal.iteration_s)


@dataclass(frozen=True, kw_only=True)
class Ideal:
    """The best plan of the question as asked, if memory were no limit."""

    context: Context
    strategy: Strategy
    iteration_s: float


def _gpu_seconds_per_token(context: Context, strategy: Strategy, iteration_s: float) -> float:
    return iteration_s * strategy.num_gpus / context.job.tokens_per_iteration


def ideal_of(context: Context, narrowing: Narrowing) -> Ideal | None:
    """The best plan without memory limits; None where no layout is legal."""
    found = best_of(without_memory_limits(context), narrowing)
    if found is None:
        return None
    return Ideal(context=context, strategy=found[0].strategy, iteration_s=found[0].iteration_s)


def best_of(context: Context, narrowing: Narrowing) -> tuple[Fit, bool] | None:
    """The fastest plan, and whether that is proved; None where nothing fits."""
    result = search(context, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=PLAN_S)
    if not result.plans:
        if result.is_complete:
            return None
        fit = first_fit(context, narrowing, deadline=time.monotonic() + PLAN_S)
        return None if fit is None else (fit, False)
    best = result.plans[0]
    return Fit(strategy=best.strategy, iteration_s=best.iteration_s), result.proved_optimal


def relaxations(
    contexts: Sequence[Context],
    narrowing: Narrowing,
    *,
    ideal: Ideal | None,
    deadline: float,
    known: Sequence[Relaxation] = (),
) -> list[Relaxation]:
    """The smallest change of each kind after which something fits; else pairs of changes.

    Changes of the user's options come first. ``contexts`` are of the frameworks asked; the first
    one is changed. ``known`` holds plans found before, by the words of the change.
    """
    question = (contexts[0], narrowing)
    plans = {one.words: replace(one, ideal=ideal) for one in known}
    nodes = _fewest_nodes(question, ideal, deadline)
    found = []
    for maker in _makers(contexts, narrowing):
        changes = list(maker(question))
        found += _known(changes, plans) or _first(changes, ideal, deadline)
    found += nodes
    if found:
        return found
    pairs: list[Relaxation] = []
    for first, second in combinations(_makers(contexts, narrowing), 2):
        pairs += _first(list(_both(question, first, second)), ideal, deadline)
        if len(pairs) == MOST_COMBINATIONS:
            break
    return pairs


def _known(changes: Sequence[Change], plans: dict[str, Relaxation]) -> list[Relaxation]:
    """The plan found before, where it is of the first change."""
    return [plans[change.words] for change in changes[:1] if change.words in plans]


def _first(changes: Sequence[Change], ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The first change after which something fits, with its best plan; none where none does."""
    for change in changes:
        try:
            if first_fit(*change.question, deadline=deadline) is None:
                continue
            best = best_of(*change.question)
        except OutOfTimeError:
            return []
        return [] if best is None else [_relaxation(change, best, ideal)]
    return []


def _relaxation(change: Change, best: tuple[Fit, bool], ideal: Ideal | None) -> Relaxation:
    fit, is_optimal = best
    return Relaxation(
        words=change.words,
        context=change.question[0],
        strategy=fit.strategy,
        iteration_s=fit.iteration_s,
        is_optimal=is_optimal,
        ideal=ideal,
    )


def _fewest_nodes(question: Question, ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The fewest nodes that fit: the smallest layout of a cluster large enough.

    No assumption that more nodes fit more: the space of a cluster holds the layouts of every
    smaller one, so the smallest layout that fits is looked for among all of them.
    """
    context, narrowing = question
    per_node, own = context.cluster.node.num_accelerators, context.cluster.num_nodes
    deadline = min(deadline, time.monotonic() + FEWEST_S)
    try:
        for tried in dict.fromkeys((2 * own, *more_nodes(context))):
            found = smallest_fit(with_nodes(context, tried), narrowing, deadline=deadline)
            if found is None:
                continue
            fit, is_smallest = found
            num_nodes = -(-fit.strategy.num_gpus // per_node)
            larger = with_nodes(context, num_nodes)
            more, all_gpus = (num_nodes - own) * per_node, num_nodes * per_node
            most = "" if is_smallest else "at most "
            node = context.cluster.node.name
            words = f"{most}{more:,} more GPUs ({num_nodes} x {node}, {all_gpus:,})"
            change = Change(words=words, question=(larger, narrowing))
            return [_relaxation(change, best_of(larger, narrowing) or (fit, False), ideal)]
    except OutOfTimeError:
        pass
    return []


Maker = Callable[[Question], Iterator[Change]]
"""Changes of one kind, the smallest first."""


def _makers(contexts: Sequence[Context], narrowing: Narrowing) -> list[Maker]:
    def dropping(text: str) -> Maker:
        return lambda question: _without(question, text)

    texts = [text for text in narrowing.texts if not text.startswith("--allow ")]
    asked = {context.traits.name for context in contexts}
    return [
        *map(dropping, texts),
        _allowed,
        _no_margin,
        lambda question: _other_frameworks(question, asked),
        _shorter_sequences,
        _other_batches,
    ]


def _both(question: Question, first: Maker, second: Maker) -> Iterator[Change]:
    for one in first(question):
        for other in second(one.question):
            yield Change(words=f"{one.words} and {other.words}", question=other.question)


def _without(question: Question, text: str) -> Iterator[Change]:
    context, narrowing = question
    if text in narrowing.texts:
        yield Change(words=f"without {text}", question=(context, narrowing.without(text)))


def _allowed(question: Question) -> Iterator[Change]:
    context, narrowing = question
    for name in ALLOWABLE:
        if name not in narrowing.allowed:
            text = f"--allow {name}"
            wider = narrowing_of((*narrowing.texts, text))
            yield Change(words=text, question=(context, wider))


def _no_margin(question: Question) -> Iterator[Change]:
    context, narrowing = question
    if context.margin_fraction:
        yield Change(
            words="--margin 0", question=(replace(context, margin_fraction=0.0), narrowing)
        )


def _other_frameworks(question: Question, asked: set[str]) -> Iterator[Change]:
    context, narrowing = question
    back = "" if context.traits.profile == CURRENT else f" --profile {CURRENT}"
    for name in FRAMEWORKS:
        if name in asked:
            continue
        traits = load_traits(name, CURRENT, context.traits.settings)
        support = traits.support
        other = replace(
            context,
            traits=traits,
            placements=support.placements,
            schedules=tuple(s for s in context.schedules if s in support.schedules),
            module_sets=(),
        )
        yield Change(words=f"--framework {name}{back}", question=(other, narrowing))


def _shorter_sequences(question: Question) -> Iterator[Change]:
    context, narrowing = question
    for divisor in SEQUENCE_DIVISORS:
        seq_len = context.job.seq_len // divisor
        if seq_len:
            job = replace(context.job, seq_len=seq_len)
            yield Change(
                words=f"--seq-len {seq_len}", question=(replace(context, job=job), narrowing)
            )


def _other_batches(question: Question) -> Iterator[Change]:
    """Rounder batches, which have more divisors, then smaller ones."""
    context, narrowing = question
    batch = context.job.global_batch
    rounder = [-(-batch // step) * step for step in BATCH_STEPS]
    smaller = [batch // divisor for divisor in BATCH_DIVISORS]
    for other in dict.fromkeys((*rounder, *smaller)):
        if other not in (0, batch):
            job = replace(context.job, global_batch=other)
            yield Change(
                words=f"--global-batch {other}", question=(replace(context, job=job), narrowing)
            )
