"""``planner emit`` and ``planner export``: a plan as files of a framework, a page or a trace."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner.cli import options
from planner.cli.options import is_given
from planner.cli.output import delayed_progress, say
from planner.errors import InputError, NothingFitsError
from planner.query.query import Query
from planner.report.document import serialise
from planner.report.files import check_folder, check_writable, write_atomically, write_folder

if TYPE_CHECKING:
    from planner.answers.base import Answer, Plan

Form = Literal["html", "perfetto", "chakra", "astra-sim"]
OPTION = "--out"


def emit(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    to: Annotated[str, typer.Option("--to", help="Format, such as megatron or deepspeed.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write into [only the configuration, on standard output]."),
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
    output_format: options.FilesFormat = "files",
) -> None:
    """``planner emit``: into a folder, else the configuration on standard output."""
    from planner.answers.plan_file import load_plan
    from planner.cli.saved import read_target, say_mismatch, write
    from planner.report.emitted import PlanText, emit_document

    target = read_target(to, launcher, "--to", needs_out=out is None)
    made = target[0]
    if out is not None:
        check_folder(out)
    context, strategy, file = load_plan(plan)
    if out is not None:
        files = write(target, context, strategy, PlanText.of_file(plan, file), out, force=force)
    else:
        files = made.emitted(context, strategy).files
    if output_format == "json":
        typer.echo(serialise("emit", emit_document(made, files, context, strategy, out)))
    elif out is None:
        # The first file of the configuration; what else there is, in a note.
        first, *others = files
        typer.echo(first.text, nl=not first.text.endswith("\n"))
        say_mismatch(made, context)
        if others:
            names = ", ".join(each.name for each in others)
            say(f"note: this is {first.name}; --out writes {names} too")


@options.takes(model=options.PLAN_OR_MODEL, cluster=options.BESIDE_MODEL)
def export(
    context: typer.Context,
    to: Annotated[
        Form,
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
    """``planner export``."""
    from planner.cli.saved import (
        best_of,
        is_plan,
        plan_file,
        read_saved,
        read_target,
        refuse_question,
    )
    from planner.query.software import format_meant
    from planner.report.emitted import PlanText

    is_page = to == "html"
    if to in ("chakra", "astra-sim"):
        check_folder(out)
    else:
        check_writable(out, force=force, option=OPTION)
    if not is_page:
        of_page = {"top": "", "search": "no-", "emit": "", "launcher": ""}
        given = (f"--{no}{name}" for name, no in of_page.items() if is_given(context, name))
        options.refuse_all(given, "belongs to --to html")
    target = read_target(emit, launcher) if emit else None
    answer = None
    if is_plan(context, query):
        refuse_question(query, ("time_limit",) if is_page else ())
        plan, file = read_saved(Path(query.model))
        text = PlanText.of_file(plan_file(Path(query.model)), file)
        if is_page and search:
            answer = _around(plan, top, query)
    else:
        if is_page and query.get("pareto") is None:
            query = query.with_(pareto="time,gpus")
        answer = best_of(query, top, target[0] if target else None)
        plan = answer.plans[0]
        text = PlanText.of(plan, query)
    if not is_page:
        _write_iteration(plan, query.model, to, out, force=force)
        return
    from planner.report.page import page_of, render_page

    if target is None:
        # A question may name a format where others name a framework.
        framework = query.get("framework")
        name = framework if format_meant(framework) else plan.framework
        target = read_target(name, launcher)
    origin = shlex.join(["planner", *sys.argv[1:]])
    page = page_of(plan, text, *target, origin=origin, answer=answer)
    write_atomically(out, render_page(page), option=OPTION)
    say(f"wrote the page to {out}")


def _around(plan: "Plan", top: int, query: Query) -> "Answer | None":
    """Return the answer for the plan's question over the whole space; None if nothing fits."""
    from planner.answers.base import search_context
    from planner.answers.plan import answered
    from planner.query.objectives import Aim
    from planner.query.resolve import Resolved
    from planner.search.space.space import EVERYTHING

    if query.problems:
        raise InputError(query.problems)
    resolved = Resolved(
        query=query,
        contexts=(search_context(plan),),
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


def _write_iteration(plan: "Plan", place: str, to: Form, out: Path, *, force: bool) -> None:
    """Write one iteration; raises InputError for what cannot be simulated, or written in it."""
    from planner.answers.execution import iteration, too_long
    from planner.cost.stage_model import price
    from planner.cost.timeline import timeline
    from planner.cost.traffic import why_no_traffic
    from planner.report.astra_sim import TRACES, BinaryFile, check_size, folder_files
    from planner.report.trace import render_trace

    strategy = plan.strategy
    if problem := too_long(strategy):
        raise InputError.single(place, "strategy.num_micro_batches", problem)
    if to == "perfetto":
        write_atomically(out, render_trace(plan, iteration(plan)), option=OPTION)
        say(f"wrote one iteration to {out}; open it at ui.perfetto.dev")
        return
    check_size(strategy, place)
    subject = price(plan.context, strategy)
    if problem := why_no_traffic(subject):
        raise InputError.single(place, "strategy", f"{problem}: not carried by --to {to}")
    files = folder_files(plan, timeline(subject), place)
    what = f"{strategy.num_gpus} traces"
    if to == "chakra":
        files = tuple(file for file in files if isinstance(file, BinaryFile))
    else:
        what = f"{what} and ASTRA-sim's files"
    write_folder(out, files, force=force, replaces=TRACES)
    say(f"wrote {what} to {out}{'' if to == 'chakra' else '; README.md says how to run it'}")
