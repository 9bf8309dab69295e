"""Searches for the best plan of a changed question."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from planner.answers.base import Deadline, Found, Plan, plans_of
from planner.answers.cache import remembered
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.query.resolve import Case
from planner.search.feasible import SearchTimeoutError, first_feasible
from planner.search.search import FoundLayout, Progress, SearchResult, no_progress
from planner.search.space.legality import Violation, violations
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to a question, in the words of the command line."""

    words: str
    case: Case
    options: tuple[str, ...] = ()  # to add to the command; none where one is taken away
    cluster: str = ""  # what to say in place of the cluster, where that changes

    def then(self, further: "Change") -> "Change":
        """Both changes: this one, and a further one of its question."""
        return replace(
            further,
            words=f"{self.words} and {further.words}",
            options=(*self.options, *further.options),
            cluster=self.cluster,
        )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Changes of one kind by how much: if one lets something fit, those behind it do as well."""

    at: Callable[[int], Change]  # the change of so many steps
    num_steps: int


def found_by(asked: Iterable[tuple[Context, SearchResult]], known: Plan | None = None) -> Found:
    """Return the results of searches, one per framework, as plans; one may be ``known``."""
    searches = list[SearchResult]()
    plans: dict[str, list[Plan]] = {}
    for context, result in asked:
        searches.append(result)
        kinds = {
            "plans": result.plans,
            "frontier": result.frontier,
            "ladder": result.ladder,
            "fastest_of_each": (result.fastest,) if result.fastest else (),
        }
        made = iter(plans_of(context, [*chain(*kinds.values())], known))
        for kind, found in kinds.items():
            plans.setdefault(kind, []).extend(islice(made, len(found)))
    return Found(searches=tuple(searches), **{kind: tuple(each) for kind, each in plans.items()})


def search_each(
    case: Case,
    deadline: Deadline,
    *,
    within: Callable[[Context], Context] = lambda context: context,
    known: Plan | None = None,
    progress: Progress = no_progress,
    **options: Any,  # noqa: ANN401 - as planner.search.search.search has them
) -> Found:
    """The plans of a question over all frameworks, ``within`` contexts that differ from theirs.

    One that is ``known`` is not priced again.
    """
    number = len(case.contexts)

    def told_of(place: int, name: str) -> Progress:
        words = f"{name}: " if number > 1 else ""
        return lambda message, done: progress(f"{words}{message}", (place + done) / number)

    asked = [
        (
            context,
            remembered(
                within(context),
                narrowing=case.narrowing,
                time_limit_s=deadline.share_s(),
                progress=told_of(place, context.traits.name),
                **options,
            ),
        )
        for place, context in enumerate(case.contexts)
    ]
    return found_by(asked, known)


def first_of_each(plans: Sequence[Plan], key: Callable[[Plan], Any]) -> list[Plan]:
    """The first plan of each framework, then the others; of one framework as they were ranked."""
    first: dict[str, Plan] = {}
    for plan in plans:
        first.setdefault(plan.framework, plan)
    leading = sorted(first.values(), key=key)
    others = [plan for plan in plans if first[plan.framework] is not plan]
    if len(first) > 1:
        others.sort(key=key)
    return leading + others


def best(
    case: Case,
    deadline: Deadline,
    *,
    top: int = 1,
    with_frontier: bool = False,
    **options: Any,  # noqa: ANN401 - as planner.search.search.search has them
) -> Found:
    """The best plans of a question over all frameworks, proved only where no time limit struck."""
    found = search_each(case, deadline, top=top, with_frontier=with_frontier, **options)
    ranked = first_of_each(found.plans, lambda plan: (plan.ranked_s, plan.num_gpus))
    proved = (replace(plan, is_optimal=plan.is_optimal and found.is_complete) for plan in ranked)
    return replace(found, plans=tuple(proved))


def first_plan(
    case: Case,
    deadline: Deadline,
    *,
    keeps_margin: bool = False,
    **options: Any,  # noqa: ANN401 - as search_each has them
) -> Plan | None:
    """The plan that ``planner plan`` puts first, by time; None where nothing fits.

    With ``keeps_margin`` never one inside the margin of memory; else where there is no other.
    """
    found = best(case, deadline, **options).plan
    if not found and not keeps_margin and any(each.margin_fraction for each in case.contexts):
        return best(without_margin(case), deadline).plan
    return found


def without_margin(case: Case) -> Case:
    """The question with all of HBM to be filled."""
    return case.with_each(lambda context: replace(context, margin_fraction=0.0))


def fits(case: Case, deadline: Deadline) -> FoundLayout | None:
    """Some layout that fits; None where there is none. Raises SearchTimeoutError."""
    for context in case.contexts:
        found = first_feasible(context, case.narrowing, deadline=deadline.ends_s)
        if found is not None:
            return found
    return None


def best_within(case: Case, deadline: Deadline) -> Plan | None:
    """The best plan of a question, else any that fits; None where none does or time ran out."""
    found = best(case, deadline.within(Deadline.PLAN_S))
    if found.plan is not None or found.is_complete:
        return found.plan
    try:
        fit = fits(case, deadline.within(Deadline.PLAN_S))
    except SearchTimeoutError:
        return None
    return None if fit is None else unproved(case.context, fit.strategy)


def least(changes: Iterator[Change] | Scale, deadline: Deadline) -> Change | None:
    """The first change, or fewest steps, after which something fits; SearchTimeoutError."""
    if isinstance(changes, Scale):
        at, most = changes.at, changes.num_steps

        def is_enough(steps: int) -> bool:
            return fits(at(steps).case, deadline) is not None

        if most < 1 or not is_enough(most):
            return None
        _, steps = bisect(0, most, is_enough)
        return at(steps)
    for change in changes:
        if fits(change.case, deadline):
            return change
    return None


def price_layout(context: Context, strategy: Strategy) -> Plan | tuple[Violation, ...]:
    """A layout as it stands, without search; the rules it breaks where it is illegal."""
    return tuple(violations(context, strategy)) or unproved(context, strategy)


def unproved(context: Context, strategy: Strategy) -> Plan:
    """A legal layout as a plan; that none is better was not looked at."""
    return Plan(
        context=context, strategy=strategy, estimate=estimate(context, strategy), is_optimal=False
    )


def bisect(low: int, high: int, holds: Callable[[int], bool]) -> tuple[int, int]:
    """Bisect a monotone test that fails at ``low`` and holds at ``high``.

    Returns the last count at which it fails and the first at which it holds: neighbours, but where
    a test ran out of time.
    """
    try:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
    except SearchTimeoutError:
        pass
    return low, high
