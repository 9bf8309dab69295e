"""What would fit: the nearest change of every kind, with the plan and the time it gives."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

from planner.cost.context import Context
from planner.plans.changes import Change, Maker, Question, Scale, ScaleMaker, makers
from planner.plans.clock import LEAST_S
from planner.plans.limits import more_nodes, with_nodes, without_memory_limits
from planner.plans.machines import argument_of, resized
from planner.search.explaining.feasible import Fit, OutOfTimeError, first_fit, smallest_fit
from planner.search.search import search
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy

PLAN_S = 2.0
"""Seconds for the best plan after one change; what is found by then is shown."""
PAIRS_S = 6.0
"""Seconds for pairs of changes, where none alone is enough."""
FEWEST_S = 6.0
"""Seconds for the fewest nodes that fit; the fewest found by then are shown."""
MOST_COMBINATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """A change that lets something fit, and the best plan then."""

    words: str
    context: Context
    strategy: Strategy
    iteration_s: float
    is_optimal: bool
    """The plan was proved best; else it is the best found in the time given."""
    options: tuple[str, ...] = ()
    """What to add to the command."""
    cluster: str = ""
    """What to say in place of the cluster, where that changes."""
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


def ideal_of(context: Context, narrowing: Narrowing, deadline: float) -> Ideal | None:
    """The best plan without memory limits; None where no layout is legal."""
    found = best_of(without_memory_limits(context), narrowing, deadline)
    if found is None:
        return None
    return Ideal(context=context, strategy=found[0].strategy, iteration_s=found[0].iteration_s)


def best_of(context: Context, narrowing: Narrowing, deadline: float) -> tuple[Fit, bool] | None:
    """The fastest plan, and whether that is proved; None where nothing fits, or was found in time.

    PLAN_S, or until the deadline.
    """
    seconds = min(PLAN_S, max(deadline - time.monotonic(), LEAST_S))
    result = search(context, top=1, narrowing=narrowing, with_frontier=False, time_limit_s=seconds)
    if not result.plans:
        if result.is_complete:
            return None
        with suppress(OutOfTimeError):
            fit = first_fit(context, narrowing, deadline=min(deadline, time.monotonic() + PLAN_S))
            return None if fit is None else (fit, False)
        return None
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

    In the order of what they cost: the rest of the node, the user's options, what the framework
    can do otherwise, shorter sequences, less margin, other frameworks, other batches, more nodes.
    ``contexts`` are of the frameworks asked; the first one is changed. ``known`` holds plans
    found before, by the words of the change.
    """
    question = (contexts[0], narrowing)
    plans = {one.words: replace(one, ideal=ideal) for one in known}
    filled = _filled_node(question, ideal, deadline)
    nodes = [] if filled else _fewest_nodes(question, ideal, deadline)
    found: list[Relaxation] = []
    for maker in makers(contexts, narrowing):
        found += _least_of(maker(question), ideal, deadline, plans)
    found = found or _pairs(question, contexts, ideal, deadline)
    return _of_framework([*filled, *found, *nodes], contexts)


def _pairs(
    question: Question, contexts: Sequence[Context], ideal: Ideal | None, deadline: float
) -> list[Relaxation]:
    """Two changes at once, where none alone is enough."""
    pairs: list[Relaxation] = []
    deadline = min(deadline, time.monotonic() + PAIRS_S)
    for first, second in combinations(makers(contexts, question[1]), 2):
        pairs += _both(question, first, second, ideal, deadline)
        if len(pairs) == MOST_COMBINATIONS:
            break
    return pairs


def _of_framework(found: list[Relaxation], contexts: Sequence[Context]) -> list[Relaxation]:
    """The changes, with the framework they are for where several were asked."""
    if len(contexts) == 1:
        return found
    options = ("--framework", contexts[0].traits.name)
    return [
        one
        if "--framework" in one.options
        else replace(
            one, words=f"{one.words} {' '.join(options)}", options=(*one.options, *options)
        )
        for one in found
    ]


def _least_of(
    changes: Iterator[Change] | Scale | None,
    ideal: Ideal | None,
    deadline: float,
    plans: dict[str, Relaxation],
) -> list[Relaxation]:
    """The smallest change of one kind after which something fits; none where none does."""
    if changes is None:
        return []
    if isinstance(changes, Scale):
        return _least_step(changes, ideal, deadline)
    listed = list(changes)
    return _known(listed, plans) or _first(listed, ideal, deadline)


def _least_step(scale: Scale, ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The fewest steps of a scale, by halving; what was found by the deadline, else."""
    low, high = 0, scale.num_steps
    try:
        if high < 1 or first_fit(*scale.at(high).question, deadline=deadline) is None:
            return []
        while high - low > 1:
            middle = (low + high) // 2
            fits = first_fit(*scale.at(middle).question, deadline=deadline) is not None
            low, high = (low, middle) if fits else (middle, high)
    except OutOfTimeError:
        if high == scale.num_steps:
            return []
    change = scale.at(high)
    best = best_of(*change.question, deadline)
    return [] if best is None else [_relaxation(change, best, ideal)]


def _known(changes: Sequence[Change], plans: dict[str, Relaxation]) -> list[Relaxation]:
    """The plan found before, where it is of the first change."""
    return [plans[change.words] for change in changes[:1] if change.words in plans]


def _first(changes: Iterable[Change], ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The first change after which something fits, with its best plan; none where none does."""
    for change in changes:
        try:
            if first_fit(*change.question, deadline=deadline) is None:
                continue
            best = best_of(*change.question, deadline)
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
        options=change.options,
        ideal=ideal,
    )


def _filled_node(question: Question, ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The fewest GPUs of the node that fit, where only a part of it was asked for."""
    context, narrowing = question
    whole = context.cluster.node.whole
    if whole is None:
        return []
    own = context.cluster.num_accelerators
    try:
        found = smallest_fit(
            _of_size(context, whole.num_accelerators), narrowing, deadline=deadline
        )
        if found is None:
            return []
        for num_gpus in sorted({found[0].strategy.num_gpus, whole.num_accelerators}):
            larger = _of_size(context, num_gpus)
            best = best_of(larger, narrowing, deadline) if num_gpus > own else None
            if best is not None:
                more = num_gpus - own
                words = f"{more} more GPU{'s' * (more > 1)} of the node"
                return [_on(larger, narrowing, words, best, ideal)]
    except OutOfTimeError:
        pass
    return []


def _of_size(context: Context, num_gpus: int) -> Context:
    return replace(context, cluster=resized(context.cluster, num_gpus))


def _on(
    larger: Context, narrowing: Narrowing, words: str, best: tuple[Fit, bool], ideal: Ideal | None
) -> Relaxation:
    """A change of the cluster, the batch as it is."""
    cluster = argument_of(larger.cluster)
    options = ("--global-batch", str(larger.job.global_batch))
    place = cluster or f"{larger.cluster.num_nodes} x {larger.cluster.node.name}"
    change = Change(words=f"{words} ({place})", question=(larger, narrowing), options=options)
    return replace(_relaxation(change, best, ideal), cluster=cluster)


def _fewest_nodes(question: Question, ideal: Ideal | None, deadline: float) -> list[Relaxation]:
    """The fewest nodes that fit: the smallest layout of a cluster large enough.

    No assumption that more nodes fit more: the space of a cluster holds the layouts of every
    smaller one, so the smallest layout that fits is looked for among all of them.
    """
    context, narrowing = question
    node, own = context.cluster.node, context.cluster.num_nodes
    per_node = (node.whole or node).num_accelerators
    least = 1 if node.whole else 0
    deadline = min(deadline, time.monotonic() + FEWEST_S)
    try:
        for tried in dict.fromkeys((2 * own, *more_nodes(context))):
            found = smallest_fit(with_nodes(context, tried), narrowing, deadline=deadline)
            if found is None:
                continue
            fit, is_smallest = found
            num_nodes = max(-(-fit.strategy.num_gpus // per_node), own + 1 - least)
            larger = _of_size(context, num_nodes * per_node)
            more = larger.cluster.num_accelerators - context.cluster.num_accelerators
            words = f"{'' if is_smallest else 'at most '}{more:,} more GPUs"
            best = best_of(larger, narrowing, deadline) or (fit, False)
            return [_on(larger, narrowing, words, best, ideal)]
    except OutOfTimeError:
        pass
    return []


def _both(
    question: Question,
    first: Maker | ScaleMaker,
    second: Maker | ScaleMaker,
    ideal: Ideal | None,
    deadline: float,
) -> list[Relaxation]:
    """Changes of two kinds; the second one first where only it makes room for the other."""
    if next(_listed(first(question)), None) is None:
        first, second = second, first
    for one in _listed(first(question)):
        for found in _least_of(second(one.question), ideal, deadline, {}):
            words, options = f"{one.words} and {found.words}", (*one.options, *found.options)
            return [replace(found, words=words, options=options)]
    return []


def _listed(changes: Iterator[Change] | Scale | None) -> Iterator[Change]:
    """All changes of a kind; of a scale its halves: few enough to pair."""
    if changes is None:
        return
    if not isinstance(changes, Scale):
        yield from changes
        return
    steps = changes.num_steps
    for part in (steps // 4, steps // 2, steps):
        if part:
            yield changes.at(part)
