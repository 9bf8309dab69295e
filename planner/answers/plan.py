"""Ranked plans of a question: searches per framework, frontiers, and results about plans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.answers.base import Answer, Deadline, Found, Plan
from planner.answers.layout import short_layout
from planner.answers.nothing_fits import nothing_fits
from planner.answers.recipe import Placed, placed
from planner.answers.variants import Variant, is_spared, resident_variant, useful_switches, variants
from planner.answers.whatif import bisect, first_of_each, found_by, search_each
from planner.cost.context import Context
from planner.notes import Note, NoteKind
from planner.query.objectives import FASTEST, OBJECTIVES, Aim, objective_matrix
from planner.query.resolve import Case, Resolved
from planner.search.ranking.goals import Goal, non_dominated
from planner.search.search import (
    Progress,
    SearchResult,
    headroom_frontiers,
    most_headroom_gib,
    no_progress,
    with_headroom,
)
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.units import format_seconds


def _ranked(plans: Sequence[Plan], aim: Aim, top: int) -> tuple[Plan, ...]:
    """The best plans over all frameworks that keep the limits, the best of each first."""
    plans = [plan for plan in plans if not aim.limits.missed_by(plan)]
    objective = OBJECTIVES[aim.objective]
    by_time = objective.order in ("at_most", "fastest")

    def key(plan: Plan) -> tuple[float, float]:
        return 0.0 if by_time else objective.value(plan), plan.ranked_s

    return tuple(first_of_each(plans, key)[:top])


def answer(
    contexts: Sequence[Context],
    *,
    top: int,
    notes: Sequence[Note] = (),
    narrowing: Narrowing = EVERYTHING,
    aim: Aim = FASTEST,
    deadline: Deadline | None = None,
    progress: Progress = no_progress,
) -> Answer:
    """Search every context (one per framework) and rank the plans across them."""
    deadline = deadline or Deadline()
    case = Case(contexts=tuple(contexts), narrowing=narrowing)
    job, node = case.context.job, case.context.cluster.node
    goal = Goal(
        order=OBJECTIVES[aim.objective].order,
        longest_s=lambda gpus: aim.limits.longest_on(gpus, job, node),
    )
    ask = partial(search_each, deadline=deadline, goal=goal, one_per_layout=True, progress=progress)
    by_headroom = aim.objective == "headroom_bytes"
    headroom_gib, before = _most_headroom(case, deadline, ask) if by_headroom else (0, [])
    frontier_is_apart = bool(aim.pareto) and (by_headroom or "headroom_bytes" in aim.pareto)
    by_time = aim.objective == "iteration_s"
    deadline.num_left = len(contexts) * (1 + frontier_is_apart)
    found = ask(
        case,
        within=lambda context: with_headroom(context, headroom_gib),
        top=top,
        with_frontier=bool(aim.pareto) and not frontier_is_apart,
        with_ladder=by_time,
    )
    chosen = _ranked(found.plans, aim, top)
    is_missed = not chosen and not aim.limits.is_empty and not aim.pareto
    needs_frontier = frontier_is_apart or is_missed
    apart = _full_frontier(case, aim, deadline, progress) if needs_frontier else None
    points = (apart or found).frontier
    first = chosen[0] if chosen and by_time else None
    # By time with penalties; the first one where it is no slower.
    candidates = (first, *found.fastest_of_each) if first else ()
    fastest = min(candidates, key=lambda plan: plan.estimate.iter_time_s, default=None)
    # Of several frameworks' ladders the best plan of every number of GPUs below the first one's.
    ladder: dict[int, Plan] = {}
    for plan in sorted(found.ladder, key=lambda plan: plan.ranked_s):
        if first and plan.num_gpus < first.num_gpus:
            ladder.setdefault(plan.num_gpus, plan)
    return Answer(
        contexts=case.contexts,
        plans=chosen,
        pareto=merged(points, aim.pareto) if aim.pareto else (),
        searches=(*before, *found.searches, *(apart.searches if apart else ())),
        notes=tuple(notes),
        aim=aim,
        narrowing=narrowing,
        frontier=merged(points, ("iteration_s", "gpus")) if points else (),
        headroom_gib=headroom_gib if by_headroom else None,
        ladder=tuple(ladder[num_gpus] for num_gpus in sorted(ladder, reverse=True)),
        fastest=None if fastest is first else fastest,
    )


def _most_headroom(
    case: Case, deadline: Deadline, ask: Callable[..., Found]
) -> tuple[int, list[SearchResult]]:
    """Largest headroom in whole GiB at which a plan keeps the limits, by bisection; the searches.

    Exact: less memory admits no plan that more does not. 0 where none does without any.
    """
    most = max(most_headroom_gib(context) for context in case.contexts) + 1
    searches: list[SearchResult] = []

    def is_too_much(headroom_gib: int) -> bool:
        deadline.num_left = most.bit_length() * len(case.contexts)
        for context in case.contexts:
            found = ask(case.of(with_headroom(context, headroom_gib)), top=1, with_frontier=False)
            searches.extend(found.searches)
            if found.plans:
                return False
        return True

    return bisect(0, most, is_too_much)[0], searches


def _full_frontier(case: Case, aim: Aim, deadline: Deadline, progress: Progress) -> Found:
    """The frontiers of all frameworks, over headroom too where that is traded off."""
    if "headroom_bytes" not in aim.pareto:
        return search_each(case, deadline, top=0, progress=progress)
    return found_by(
        (context, result)
        for context in case.contexts
        for result in headroom_frontiers(
            context,
            narrowing=case.narrowing,
            time_limit_s=deadline.share_s(),
            progress=progress,
        )
    )


def merged(plans: Sequence[Plan], names: Sequence[str]) -> tuple[Plan, ...]:
    """Return the plans that none dominates, in the order of GPUs, then time, then most headroom.

    The fastest plan of every number of GPUs is enough: at a given number, cost and energy rise with
    the iteration time, and one no faster than that of fewer GPUs costs and draws more as well.
    Headroom is counted in whole GiB (:func:`planner.search.search.headroom_frontiers`).
    """
    if not plans:
        return ()
    kept = [plans[row] for row in non_dominated(objective_matrix(plans, names)).tolist()]
    order = np.lexsort(objective_matrix(kept, ("headroom_bytes", "iteration_s", "gpus")).T)
    return tuple(kept[row] for row in order.tolist())


def respecting_margin(
    ask: Callable[[Sequence[Context]], Answer],
    contexts: Sequence[Context],
    *,
    is_given: bool = False,
) -> Answer:
    """Plans that leave the margin free; where none does, those that need it, noted as tight.

    The margin is kept if the user chose it (``is_given``) or the search ran out of time.
    """
    found = ask(contexts)
    is_decided = bool(found.plans or found.frontier) or not found.is_complete
    if is_decided or is_given or not any(context.margin_fraction for context in contexts):
        return found
    tight = ask([replace(context, margin_fraction=0.0) for context in contexts])
    if not tight.plans and not tight.frontier:
        return found
    margins = {context.traits.name: context.margin_fraction for context in contexts}
    free = ", ".join(f"{name} {fraction:.1%}" for name, fraction in margins.items())
    text = (
        f"tight: no plan leaves the margin free ({free}), by which published peaks exceeded the "
        "model; these plans may run out of memory"
    )
    note = Note(kind=NoteKind.given, text=text, subject="margin")
    return replace(tight, notes=(*tight.notes, note))


def answer_or_raise(resolved: Resolved, top: int, progress: Progress = no_progress) -> Answer:
    """Answer a question; raises NothingFitsError where no plan fits, or none was found in time."""
    deadline = Deadline(resolved.time_limit_s)
    found = answer_question(resolved, top, deadline, progress)
    if found.plans or found.frontier:
        return found
    if deadline.limit_s is not None and not found.is_complete:
        raise deadline.nothing_found()
    progress("looking for what would let it fit", 0.9)
    raise nothing_fits(resolved, found, deadline)


def answer_question(
    resolved: Resolved,
    top: int,
    deadline: Deadline,
    progress: Progress = no_progress,
) -> Answer:
    """Answer a question with its margin and limits; the answer may hold no plan.

    A switch of the framework that takes less memory comes before offload, further axes and
    recomputation of whole layers (:func:`planner.answers.variants.is_spared`).
    """
    ask = partial(
        answer,
        top=top,
        narrowing=resolved.narrowing,
        aim=resolved.aim,
        deadline=deadline,
        progress=progress,
    )
    margin = partial(respecting_margin, is_given=resolved.keeps_margin)
    found = margin(partial(ask, notes=resolved.notes), resolved.contexts)
    if not found.plans or resolved.aim.objective != "iteration_s" or deadline.is_over:
        return found
    first = found.plans[0]
    case = Case(contexts=(first.context,), narrowing=resolved.narrowing)
    for change in useful_switches(first, case):
        switched = change.case.context
        contexts = [
            switched if one.traits.name == first.framework else one for one in resolved.contexts
        ]
        time_s = format_seconds(first.estimate.iter_time_s)
        text = f"with {change.words}; without: {short_layout(first.strategy)}, {time_s}"
        note = Note(kind=NoteKind.given, text=text, subject="settings")
        other = margin(partial(ask, notes=(*resolved.notes, note)), contexts)
        if other.plan and is_spared(other.plan, first):
            found, first = other, other.plan
    return found


def proved(answer: Answer) -> Answer:
    """The answer with CP-SAT's proof that no layout of the first plan's framework is faster."""
    from planner.search.prove import prove  # ortools takes longer to load than most searches

    first = answer.fastest or answer.plans[0]
    shown = [plan.strategy for plan in answer.plans if plan.framework == first.framework]
    return replace(answer, proof=prove(first.context, answer.narrowing, shown, first.ranked_s))


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Results of further searches and estimates about an answer's plans."""

    variants: tuple[tuple[Variant, ...], ...] = ()  # of the first plans, each fastest first
    resident: Variant | None = None  # without offload, and no slower than the first plan
    recipe: Placed | None = None  # the nearest one, priced for the question


def beside_screen(answer: Answer, *, verbose: bool = False, show_all: bool = False) -> Beside:
    """Return the results for screen: ``verbose`` of the first plan, ``show_all`` of every one."""
    if not answer.plans:
        return Beside()
    by_time = answer.aim.objective == "iteration_s"
    shown = answer.plans if show_all else answer.plans[: verbose and by_time]
    limit_s, narrowing = answer.beside_s, answer.narrowing
    return Beside(
        variants=tuple(variants(plan, narrowing, limit_s=limit_s) for plan in shown),
        resident=resident_variant(answer),
        recipe=placed(answer),
    )


def beside_document(answer: Answer) -> Beside:
    """Return the results for JSON: the variants of every plan, and the recipe."""
    return Beside(
        variants=tuple(
            variants(plan, answer.narrowing, limit_s=answer.beside_s) for plan in answer.plans
        ),
        recipe=placed(answer),
    )
