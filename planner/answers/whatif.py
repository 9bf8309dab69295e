"""Searches for the best plan of a changed question, and what they found before."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import planner
from planner.answers.base import Deadline, Found, Plan, plans_of
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.documents.file import read_text, write_atomically
from planner.errors import InputError
from planner.query.resolve import Case as Case
from planner.search.feasible import SearchTimeoutError, first_feasible
from planner.search.ranking.goals import FASTEST_AT_MOST, Goal
from planner.search.search import Found as FeasiblePlan
from planner.search.search import Progress, SearchResult, search
from planner.search.space.legality import Violation, violations
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy

# Searches that are kept, and bytes of each, usually 10,000: 32 MiB at most. Quicker ones are not
# worth a file.
MOST_KEPT, MOST_KEPT_BYTES = 256, 2**17
WORTH_KEEPING_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to a question, in the words of the command line."""

    words: str
    case: Case
    options: tuple[str, ...] = ()  # to add to the command; none where one is taken away
    cluster: str = ""  # what to say in place of the cluster, where that changes


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Changes of one kind by how much: if one lets something fit, those behind it do as well."""

    at: Callable[[int], Change]  # the change of so many steps
    num_steps: int


def found_by(asked: Iterable[tuple[Context, SearchResult]]) -> Found:
    """Return the results of searches, one per framework, as plans."""
    both = list(asked)

    def plans(of: Callable[[SearchResult], Sequence[FeasiblePlan]]) -> tuple[Plan, ...]:
        return tuple(plan for context, result in both for plan in plans_of(context, of(result)))

    return Found(
        searches=tuple(result for _, result in both),
        plans=plans(lambda result: result.plans),
        frontier=plans(lambda result: result.frontier),
        ladder=plans(lambda result: result.ladder),
        fastest_of_each=plans(lambda result: (result.fastest,) if result.fastest else ()),
    )


def search_each(
    case: Case,
    deadline: Deadline,
    *,
    within: Callable[[Context], Context] = lambda context: context,
    progress: Progress = lambda _message, _fraction: None,
    **options: Any,  # noqa: ANN401 - as planner.search.search.search has them
) -> Found:
    """The plans of a question over all frameworks, ``within`` contexts that differ from theirs."""
    number = len(case.contexts)

    def told_of(place: int, name: str) -> Progress:
        words = f"{name}: " if number > 1 else ""
        return lambda message, done: progress(f"{words}{message}", (place + done) / number)

    return found_by(
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
    )


def remembered(
    context: Context,
    *,
    narrowing: Narrowing,
    goal: Goal = FASTEST_AT_MOST,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
    **options: Any,  # noqa: ANN401 - the others of planner.search.search.search
) -> SearchResult:
    """The result of a search, or of the same one before, from the folder of the user's caches.

    The same is one of the same program with equal contexts, which hold what every file said. Only
    what was searched to the end is kept, as the time limit is no part of the question.
    ``PLANNER_CACHE=off``: nothing is read or written.
    """
    # Conditions of a narrowing are known by their texts, limits of a goal by their times.
    part = replace(narrowing, rules=(), allowed=frozenset())
    said = ([rule.name for rule in narrowing.rules], sorted(narrowing.allowed))
    longest_s = goal.longest_s(np.arange(1.0, context.cluster.num_accelerators + 1.0)).tobytes()
    aim = (goal.order, longest_s, sorted(options.items()))
    path = _entry(repr((planner.__version__, _sources(), context, part, said, aim)))
    known = path and _kept(path)
    if known:
        return known
    found = search(
        context,
        narrowing=narrowing,
        goal=goal,
        time_limit_s=time_limit_s,
        progress=progress,
        **options,
    )
    if path and found.is_complete and found.seconds >= WORTH_KEEPING_S:
        _keep(path, found)
    return found


def _entry(question: str) -> Path | None:
    """Where the answer to a question is kept; None where that is off, or there is no home."""
    if os.environ.get("PLANNER_CACHE") == "off":
        return None
    with suppress(RuntimeError):
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return home / "planner" / f"{sha256(question.encode()).hexdigest()}.json"
    return None


@cache
def _sources() -> tuple[tuple[str, int], ...]:
    """The files of the program: in a checkout they change under one version."""
    root = Path(planner.__file__).parent
    return tuple((str(path), path.stat().st_mtime_ns) for path in sorted(root.rglob("*.py")))


def _kept(path: Path) -> SearchResult | None:
    """What was found before; None where nothing is kept, or not as it was written."""
    with suppress(InputError):
        digest, _, text = read_text(path, MOST_KEPT_BYTES).partition("\n")
        if digest == sha256(text.encode()).hexdigest():
            values = json.loads(text)
            fastest = values["fastest"] and _layout(values["fastest"])
            for name in ("plans", "frontier", "ladder"):
                values[name] = tuple(map(_layout, values[name]))
            return SearchResult(**values | {"fastest": fastest, "is_remembered": True})
    return None


def _layout(values: Mapping[str, Any]) -> FeasiblePlan:
    """A layout with its times, of which JSON holds tuples as lists."""
    fields = values["strategy"].items()
    strategy: Any = {name: tuple(it) if isinstance(it, list) else it for name, it in fields}
    return FeasiblePlan(**{**values, "strategy": Strategy(**strategy)})


def _keep(path: Path, found: SearchResult) -> None:
    """Keep what was found, as far as there is room for it; the oldest goes."""
    text = json.dumps(asdict(found), default=lambda number: number.item())
    if len(text) > MOST_KEPT_BYTES - 100:
        return
    with suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{sha256(text.encode()).hexdigest()}\n{text}")
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for oldest in kept[:-MOST_KEPT]:
            oldest.unlink(missing_ok=True)


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


def first_plan(case: Case, deadline: Deadline, *, keeps_margin: bool = False) -> Plan | None:
    """The plan that ``planner plan`` puts first, by time; None where nothing fits.

    With ``keeps_margin`` never one inside the margin of memory; else where there is no other.
    """
    found = best(case, deadline).plan
    has_margin = any(context.margin_fraction for context in case.contexts)
    if found is None and has_margin and not keeps_margin:
        return best(without_margin(case), deadline).plan
    return found


def without_margin(case: Case) -> Case:
    """The question with all of HBM to be filled."""
    return case.with_each(lambda context: replace(context, margin_fraction=0.0))


def fits(case: Case, deadline: Deadline) -> FeasiblePlan | None:
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
        _, steps = smallest(0, most, is_enough)
        return at(steps)
    for change in changes:
        if fits(change.case, deadline):
            return change
    return None


def price(context: Context, strategy: Strategy) -> Plan | tuple[Violation, ...]:
    """A layout as it stands, without search; the rules it breaks where it is illegal."""
    return tuple(violations(context, strategy)) or unproved(context, strategy)


def unproved(context: Context, strategy: Strategy) -> Plan:
    """A legal layout as a plan; that none is better was not looked at."""
    return Plan(
        context=context, strategy=strategy, estimate=estimate(context, strategy), is_optimal=False
    )


def smallest(
    low: int,
    high: int,
    holds: Callable[[int], bool],
) -> tuple[int, int]:
    """The last count at which a test does not hold, and the next one, from which on it does.

    It does not at ``low`` and does at ``high``. Counts between the two are left where a test ran
    out of time.
    """
    try:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
    except SearchTimeoutError:
        pass
    return low, high


def crossing(
    near: float,
    far: float,
    holds: Callable[[float], bool],
    *,
    ratio: float,
    possible: Callable[[float], float] = lambda value: value,
    guesses: Iterable[float] = (),
) -> tuple[float, float]:
    """Values around where a test that holds at ``near`` stops to hold, not at ``far`` any more.

    They differ by at most ``ratio``, or have no ``possible`` value in between. ``guesses`` are
    tried first, the last one in front.
    """
    waiting = list(guesses)
    while max(far / near, near / far) > ratio:
        is_guess = bool(waiting)
        middle = possible(waiting.pop() if is_guess else math.sqrt(far * near))
        if not min(near, far) < middle < max(near, far):
            if is_guess:
                continue
            break
        near, far = (middle, far) if holds(middle) else (near, middle)
    return near, far
