"""``planner report``: a plan as a page to look at and to send."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import completion, options
from planner.cli.output import say
from planner.cli.question import Question, asks
from planner.cli.saved import is_plan, refuse_question, saved_plan

if TYPE_CHECKING:
    from planner.formats.format import Format
    from planner.plans.plan import Answer, Plan
    from planner.report.emitted import PlanText

OPTION = "--out"
FRONTIER = "time,gpus"
OF_ANY_PLAN = ("context", "model", "cluster", "out", "top", "search", "time_limit")
FILES = ("emit", "launcher", "force")
"""With those above, what a saved plan takes too."""


@asks
def report(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="PLAN-OR-MODEL",
            autocompletion=completion.models,
            help="Plan file written by --save; or a model, as `planner plan` takes it.",
        ),
    ],
    out: Annotated[Path, typer.Option(OPTION, "-o", help="File to write, such as report.html.")],
    cluster: options.BesideModel = None,
    *,
    question: Question,
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
    if is_plan(context, model, cluster):
        refuse_question(context, model, (*OF_ANY_PLAN, *FILES))
        plan, text, answer = _saved(Path(model), top, question, search=search)
    else:
        made = target[0] if target else None
        plan, text, answer = _asked(model, cluster or "", top, question, made)
    target = target or read_target(
        _format_of(plan, question), launcher, option="--emit", needs_out=False
    )
    origin = shlex.join(["planner", *sys.argv[1:]])
    sheet = sheet_of(plan, text, *target, origin=origin, answer=answer)
    write_atomically(out, render_page(sheet), option=OPTION)
    say(f"wrote the page to {out}")


def _saved(
    path: Path, top: int, question: Question, *, search: bool
) -> "tuple[Plan, PlanText, Answer | None]":
    """The plan of a file with its text, and the search for others."""
    from planner.documents.file import read_text
    from planner.report.emitted import PlanText

    path, plan, file = saved_plan(path)
    text = PlanText(text=read_text(path), model=file.inputs.model, cluster=file.inputs.cluster)
    return plan, text, _around(plan, top, question) if search else None


def _around(plan: "Plan", top: int, question: Question) -> "Answer | None":
    """What a search of the whole space finds for the plan's question; None where nothing fits."""
    from planner.cli.aims import read_time_limit
    from planner.cli.ask import Asked
    from planner.cli.collector import Collector
    from planner.cli.progress import delayed_progress
    from planner.errors import NothingFitsError
    from planner.plans.around import context_around
    from planner.plans.objectives import Aim
    from planner.search.space.space import EVERYTHING

    collector = Collector()
    limit_s = read_time_limit(collector, question["time_limit"])
    collector.finish()
    asked = Asked(
        contexts=(context_around(plan),),
        narrowing=EVERYTHING,
        aim=Aim(pareto=("iteration_s", "gpus")),
        notes=(),
        time_limit_s=limit_s,
        keeps_margin=True,
    )
    try:
        with delayed_progress() as progress:
            return asked.answered(top, progress)
    except NothingFitsError:
        return None


def _asked(
    model: str, cluster: str, top: int, question: Question, made: "Format | None"
) -> "tuple[Plan, PlanText, Answer]":
    """The best plan of a question with its text, and the whole answer."""
    from planner.cli import ask
    from planner.cli.inputs import argument_for_file, model_for_file, place_of
    from planner.cli.progress import delayed_progress
    from planner.plans.plan_file import plan_text
    from planner.report.emitted import PlanText

    words = {**question, "pareto": question["pareto"] or FRONTIER}
    asked = ask.read(model, cluster, made=made, **words)
    with delayed_progress() as progress:
        found = asked.answered(top, progress)
    if not found.plans:
        raise ask.unmet_limits(found)
    names = (
        model_for_file(model),
        argument_for_file(place_of(cluster, question["host_memory"]) or cluster),
    )
    best = found.plans[0]
    text = plan_text(best, model=names[0], cluster=names[1])
    return best, PlanText(text=text, model=names[0], cluster=names[1]), found


def _format_of(plan: "Plan", question: Question) -> str:
    """The format whose name the question has in place of a framework's, or the framework's own."""
    from planner.cli.formats import format_meant

    return question["framework"] if format_meant(question["framework"]) else plan.framework
