"""``planner report``: a plan as a page to look at and to send."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import say
from planner.cli.saved import is_plan, refuse_question, saved_plan
from planner.query.query import Query

if TYPE_CHECKING:
    from planner.formats.format import Format
    from planner.plans.plan import Answer, Plan
    from planner.report.emitted import PlanText

OPTION = "--out"
FRONTIER = "time,gpus"


@options.takes(model=options.PlanOrModel, cluster=options.BesideModel)
def report(
    context: typer.Context,
    out: Annotated[Path, typer.Option(OPTION, "-o", help="File to write, such as report.html.")],
    *,
    query: Query,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 5,
    search: Annotated[
        bool, typer.Option(help="Look for other layouts beside a saved plan.")
    ] = True,
    emit: Annotated[
        str | None, typer.Option(help="Format of the files shown [the framework's].")
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
) -> None:
    """Write one HTML page about a plan: what to run, where time and memory go, its files."""
    from planner.cli.emit import read_target
    from planner.report.files import check_writable, write_atomically
    from planner.report.page.page import render_page
    from planner.report.page.sheet import sheet_of
    from planner.report.plot import library

    check_writable(out, force=force, option=OPTION)
    library("matplotlib", "report")
    target = emit and read_target(emit, launcher, option="--emit", needs_out=False)
    if is_plan(context, query):
        refuse_question(query, ("time_limit",))
        plan, text, answer = _saved(Path(query.model), top, query, search=search)
    else:
        made = target[0] if target else None
        plan, text, answer = _asked(query, top, made)
    target = target or read_target(
        _format_of(plan, query), launcher, option="--emit", needs_out=False
    )
    origin = shlex.join(["planner", *sys.argv[1:]])
    sheet = sheet_of(plan, text, *target, origin=origin, answer=answer)
    write_atomically(out, render_page(sheet), option=OPTION)
    say(f"wrote the page to {out}")


def _saved(
    path: Path, top: int, query: Query, *, search: bool
) -> "tuple[Plan, PlanText, Answer | None]":
    """The plan of a file with its text, and the search for others."""
    from planner.documents.file import read_text
    from planner.report.emitted import PlanText

    path, plan, file = saved_plan(path)
    text = PlanText(text=read_text(path), model=file.inputs.model, cluster=file.inputs.cluster)
    return plan, text, _around(plan, top, query) if search else None


def _around(plan: "Plan", top: int, query: Query) -> "Answer | None":
    """What a search of the whole space finds for the plan's question; None where nothing fits."""
    from planner.answers.answered import answered
    from planner.cli.progress import delayed_progress
    from planner.errors import NothingFitsError
    from planner.notes import Problems
    from planner.plans.around import context_around
    from planner.query.goal import read_time_limit
    from planner.query.objectives import Aim
    from planner.query.resolve import Resolved
    from planner.search.space.space import EVERYTHING

    problems = Problems()
    limit_s = read_time_limit(query.get("time_limit"), problems)
    problems.finish()
    resolved = Resolved(
        query=query,
        contexts=(context_around(plan),),
        narrowing=EVERYTHING,
        aim=Aim(pareto=("iteration_s", "gpus")),
        time_limit_s=limit_s,
        keeps_margin=True,
    )
    try:
        with delayed_progress() as progress:
            return answered(resolved, top, progress)
    except NothingFitsError:
        return None


def _asked(query: Query, top: int, made: "Format | None") -> "tuple[Plan, PlanText, Answer]":
    """The best plan of a question with its text, and the whole answer."""
    from planner.answers.answered import answered
    from planner.cli.progress import delayed_progress
    from planner.plans.plan_file import plan_text
    from planner.query.places import places_for_file
    from planner.query.resolve import resolve
    from planner.report.emitted import PlanText
    from planner.report.sizing_words import unmet_limits

    if query.get("pareto") is None:
        query = query.with_(pareto=FRONTIER)
    resolved = resolve(query, fmt=made)
    with delayed_progress() as progress:
        found = answered(resolved, top, progress)
    if not found.plans:
        raise unmet_limits(found)
    model, cluster = places_for_file(query)
    best = found.plans[0]
    text = plan_text(best, model=model, cluster=cluster)
    return best, PlanText(text=text, model=model, cluster=cluster), found


def _format_of(plan: "Plan", query: Query) -> str:
    """The format whose name the question has in place of a framework's, or the framework's own."""
    from planner.query.software import format_meant

    framework = query.get("framework")
    return framework if format_meant(framework) else plan.framework
