"""``planner sensitivity``: what time and the best layout do when a figure is another one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from planner.cli import options
from planner.cli.saved import is_plan, refuse_question, saved_plan
from planner.query.query import Query

if TYPE_CHECKING:
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.notes import Note
    from planner.plans.plan import Plan


@options.takes(
    *options.OF_THE_FASTEST,
    refused="`sensitivity` asks for the fastest plan",
    model=options.PlanOrModel,
    cluster=options.BesideModel,
)
def sensitivity(
    context: typer.Context,
    *,
    query: Query,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Turn every figure of hardware and job, plan again: what moves time, where others win."""
    from planner.answers.sensitivity import sensitivity as scaled
    from planner.cli.following import measuring
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.errors import NothingFitsError
    from planner.report.sensitivity import print_sensitivity, render_sensitivity_json

    if is_plan(context, query):
        refuse_question(query, ("time_limit",))
        asking = _saved(Path(query.model), query.get("time_limit"))
    else:
        asking = _asked(query)
    with delayed_progress() as progress:
        result = scaled(
            asking.case,
            keeps_margin=asking.keeps_margin,
            deadline=asking.deadline,
            plan=asking.plan,
            progress=progress,
        )
    notes = asking.notes
    if result is None:
        if asking.deadline.limit_s is not None:
            raise asking.deadline.nothing_found()
        raise NothingFitsError("nothing fits; `planner plan` on the same says what is missing")
    following = measuring(result, query.cluster)
    if output_format is options.TableOrJson.json:
        typer.echo(render_sensitivity_json(result, notes, following))
    else:
        print_sensitivity(result, notes, console(), verbose=verbose, following=following)


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """What is planned again, and how."""

    case: "Case"
    keeps_margin: bool
    deadline: "Deadline"
    plan: "Plan | None" = None  # that of the file
    notes: "tuple[Note, ...]" = ()


def _saved(path: Path, time_limit: str | None) -> _Asking:
    """The plan of a file, and what a search around it asks."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.notes import Problems
    from planner.plans.around import context_around
    from planner.query.goal import read_time_limit

    problems = Problems()
    found = problems.read(lambda: saved_plan(path))
    limit_s = read_time_limit(time_limit, problems)
    problems.finish()
    assert found is not None
    plan = found[1]
    return _Asking(
        case=Case(contexts=(context_around(plan),)),
        keeps_margin=True,
        deadline=Deadline(limit_s),
        plan=plan,
    )


def _asked(query: Query) -> _Asking:
    """What a question asks, and what was assumed."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.query.resolve import resolve

    resolved = resolve(query)
    return _Asking(
        case=Case(contexts=resolved.contexts, narrowing=resolved.narrowing),
        keeps_margin=resolved.keeps_margin,
        deadline=Deadline(resolved.time_limit_s),
        notes=resolved.notes,
    )
