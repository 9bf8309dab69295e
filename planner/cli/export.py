"""``planner export``: a plan as a page, or one of its iterations as a trace."""

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.defaults import is_given
from planner.cli.output import say
from planner.cli.saved import is_plan, refuse_question, saved_plan
from planner.query.query import Query

if TYPE_CHECKING:
    from planner.answers.base import Answer, Plan
    from planner.formats.format import Format
    from planner.report.emitted import PlanText

OPTION = "--out"
FRONTIER = "time,gpus"
OF_THE_PAGE = {
    "top": "--top",
    "search": "--no-search",
    "emit": "--emit",
    "launcher": "--launcher",
}
"""Options that other targets have no use for."""


class Target(StrEnum):
    """What a plan is exported to."""

    HTML = "html"
    PERFETTO = "perfetto"
    CHAKRA = "chakra"
    ASTRA_SIM = "astra-sim"


FOLDERS = (Target.CHAKRA, Target.ASTRA_SIM)


@options.takes(model=options.PlanOrModel, cluster=options.BesideModel)
def export(
    context: typer.Context,
    to: Annotated[
        Target,
        typer.Option(
            help="html: a page; perfetto: a trace for ui.perfetto.dev; chakra: a trace per rank; "
            "astra-sim: these and all that ASTRA-sim is started with."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            OPTION, "-o", help="File to write, such as plan.html; a folder of chakra and astra-sim."
        ),
    ],
    *,
    query: Query,
    top: Annotated[int, typer.Option(min=1, help="Layouts on the page.")] = 5,
    search: Annotated[
        bool, typer.Option(help="Look for other layouts beside a saved plan on the page.")
    ] = True,
    emit: Annotated[
        str | None, typer.Option(help="Format of the files on the page [the framework's].")
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
) -> None:
    """Write a plan as one HTML page, or its iteration for Perfetto or ASTRA-sim."""
    from planner.cli.emit import read_target
    from planner.report.files import check_folder, check_writable

    is_page = to is Target.HTML
    if to in FOLDERS:
        check_folder(out)
    else:
        check_writable(out, force=force, option=OPTION)
    if not is_page:
        _refuse_of_the_page(context)
    target = emit and read_target(emit, launcher, option="--emit", needs_out=False)
    answer = None
    if is_plan(context, query):
        refuse_question(query, ("time_limit",) if is_page else ())
        plan, text = _saved(Path(query.model))
        if is_page and search:
            answer = _around(plan, top, query)
    else:
        if is_page and query.get("pareto") is None:
            query = query.with_(pareto=FRONTIER)
        plan, text, answer = _asked(query, top, target[0] if target else None)
    if not is_page:
        _write_iteration(plan, query.model, to, out, force=force)
        return
    from planner.report.files import write_atomically
    from planner.report.page import page_of, render_page

    target = target or read_target(
        _format_of(plan, query), launcher, option="--emit", needs_out=False
    )
    origin = shlex.join(["planner", *sys.argv[1:]])
    page = page_of(plan, text, *target, origin=origin, answer=answer)
    write_atomically(out, render_page(page), option=OPTION)
    say(f"wrote the page to {out}")


def _refuse_of_the_page(context: typer.Context) -> None:
    """Raise InputError with the options that only a page has."""
    from planner.errors import InputError, Problem

    problems = [
        Problem(where="command line", key=option, message="belongs to --to html")
        for name, option in OF_THE_PAGE.items()
        if is_given(context, name)
    ]
    if problems:
        raise InputError(problems)


def _saved(path: Path) -> "tuple[Plan, PlanText]":
    """The plan of a file, with its text."""
    from planner.documents.file import read_text
    from planner.report.emitted import PlanText

    path, plan, file = saved_plan(path)
    return plan, PlanText(
        text=read_text(path), model=file.inputs.model, cluster=file.inputs.cluster
    )


def _around(plan: "Plan", top: int, query: Query) -> "Answer | None":
    """What a search of the whole space finds for the plan's question; None where nothing fits."""
    from planner.answers.base import context_around
    from planner.answers.plan import answered
    from planner.cli.progress import delayed_progress
    from planner.errors import InputError, NothingFitsError
    from planner.query.objectives import Aim
    from planner.query.resolve import Resolved
    from planner.search.space.space import EVERYTHING

    if query.problems:
        raise InputError(query.problems)
    resolved = Resolved(
        query=query,
        contexts=(context_around(plan),),
        narrowing=EVERYTHING,
        aim=Aim(pareto=("iteration_s", "gpus")),
        time_limit_s=query.get("time_limit"),
        keeps_margin=True,
    )
    try:
        with delayed_progress() as progress:
            return answered(resolved, top, progress)
    except NothingFitsError:
        return None


def _asked(query: Query, top: int, made: "Format | None") -> "tuple[Plan, PlanText, Answer]":
    """The best plan of a question with its text, and the whole answer."""
    from planner.answers.plan import answered
    from planner.answers.plan_file import plan_text
    from planner.cli.progress import delayed_progress
    from planner.query.places import places_for_file
    from planner.query.resolve import resolve
    from planner.report.emitted import PlanText
    from planner.report.sizing_words import unmet_limits

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


def _write_iteration(plan: "Plan", place: str, to: Target, out: Path, *, force: bool) -> None:
    """Write one iteration; raises InputError for what cannot be simulated, or written in it."""
    from planner.answers.execution import iteration, too_long, why_no_execution
    from planner.cost.priced import price
    from planner.cost.timeline import timeline
    from planner.errors import InputError
    from planner.report.astra_sim import TRACES, check_size, folder_files, is_trace
    from planner.report.files import write_atomically, write_folder
    from planner.report.trace import render_trace

    strategy = plan.strategy
    if problem := too_long(strategy):
        raise InputError.single(place, "strategy.num_micro_batches", problem)
    if to is Target.PERFETTO:
        write_atomically(out, render_trace(plan, iteration(plan)), option=OPTION)
        say(f"wrote one iteration to {out}; open it at ui.perfetto.dev")
        return
    check_size(strategy, place)
    if problem := why_no_execution(plan):
        raise InputError.single(place, "strategy", f"{problem}: not carried by --to {to}")
    drawn = timeline(price(plan.context, strategy))
    files = folder_files(plan, drawn, place)
    if to is Target.CHAKRA:
        write_folder(out, list(filter(is_trace, files)), force=force, replaces=TRACES)
        say(f"wrote {strategy.num_gpus} traces to {out}")
        return
    write_folder(out, files, force=force, replaces=TRACES)
    say(
        f"wrote {strategy.num_gpus} traces and ASTRA-sim's files to {out}; "
        "README.md says how to run it"
    )
