"""A resolved question answered: searched, and why where there is nothing to show."""

from functools import partial

from planner.answers.deadline import Deadline
from planner.answers.nothing_fits import nothing_fits
from planner.answers.whatif import Case
from planner.plans.plan import Answer, answer
from planner.plans.tight import with_room
from planner.query.resolve import Resolved
from planner.search.search import Progress


def answered(
    resolved: Resolved, top: int, progress: Progress = lambda _message, _fraction: None
) -> Answer:
    """Search, and raise where there is nothing to show: nothing fits, or not in time."""
    deadline = Deadline(resolved.time_limit_s)
    found = searched(resolved, top, deadline, progress)
    if found.plans or found.frontier:
        return found
    if deadline.limit_s is not None and not found.is_complete:
        raise deadline.nothing_found()
    case = Case(contexts=found.contexts, narrowing=resolved.narrowing)
    raise nothing_fits(case, found, deadline)


def searched(
    resolved: Resolved,
    top: int,
    deadline: Deadline,
    progress: Progress = lambda _message, _fraction: None,
) -> Answer:
    """Search; what is found may be nothing, and nobody asks why."""
    ask = partial(
        answer,
        top=top,
        notes=resolved.notes,
        narrowing=resolved.narrowing,
        aim=resolved.aim,
        deadline=deadline,
        progress=progress,
    )
    return with_room(ask, resolved.contexts, is_given=resolved.keeps_margin)
