"""``planner emit`` and ``planner export``: a plan as files of a framework, a page or a trace."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner.cli import options
from planner.cli.output import say
from planner.documents.file import write_atomically
from planner.errors import InputError, NothingFitsError
from planner.query.query import Query
from planner.report.document import Shown
from planner.report.files import check_folder, check_writable, write_folder

if TYPE_CHECKING:
    from rich.console import Console

    from planner.answers.base import Answer, Plan
    from planner.cli.saved import Target
    from planner.formats.format import OutputFile
    from planner.report.emitted import PlanText
    from planner.search.search import Progress

Form = Literal["html", "perfetto", "chakra", "astra-sim"]
OPTION = "--out"


@options.takes(model=options.PLAN_OR_MODEL, cluster=options.BESIDE_MODEL, form=("files", "json"))
def emit(
    *,
    query: Query,
    to: Annotated[str, typer.Option("--to", help="Format, such as megatron or deepspeed.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write into [only the configuration, on standard output]."),
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
    progress: "Progress",
) -> Shown:
    """``planner emit``: into a folder, else the configuration on standard output."""
    from planner.cli.saved import read_target, say_mismatch, write
    from planner.report.emitted import emit_document

    target = read_target(to, launcher, "--to", needs_out=out is None)
    made = target[0]
    if out is not None:
        check_folder(out)
    plan, text = _asked(query, progress, target)[:2]
    context, strategy = plan.context, plan.strategy
    if out is not None:
        files = write(target, context, strategy, text, out, force=force)
    else:
        files = made.emitted(context, strategy).files

    def screen(files: "tuple[OutputFile, ...]", console: "Console") -> None:
        first, *others = files
        if out is None:
            console.file.write(first.text + "\n" * (not first.text.endswith("\n")))
            say_mismatch(made, context)
        if out is None and others:
            names = ", ".join(each.name for each in others)
            say(f"note: this is {first.name}; --out writes {names} too")

    return Shown(
        kind="emit",
        found=files,
        body=lambda files: emit_document(made, files, context, strategy, out),
        screen=screen,
    )


def _asked(
    query: Query,
    progress: "Progress",
    target: "Target | None",
    top: int = 1,
    taken: tuple[str, ...] = (),
) -> "tuple[Plan, PlanText, Answer | None]":
    """The plan of a file, beside which ``taken`` may stand, or of a question; its text, answer."""
    from planner.cli.saved import best_of, plan_file, saved_plan
    from planner.report.emitted import PlanText

    if query.cluster:
        answer = best_of(query, progress, top, target[0] if target else None)
        return answer.plans[0], PlanText.of(answer.plans[0], query), answer
    plan, file = saved_plan(query, taken)
    return plan, PlanText.of_file(plan_file(Path(query.model)), file), None


@options.takes(model=options.PLAN_OR_MODEL, cluster=options.BESIDE_MODEL, form=())
def export(
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
    top: Annotated[int | None, typer.Option(min=1, help="Layouts on the page [5].")] = None,
    search: Annotated[
        bool, typer.Option(help="Look for other layouts beside a saved plan on the page.")
    ] = True,
    emit: Annotated[
        str | None, typer.Option(help="Format of the files on the page [the framework's].")
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
    progress: "Progress",
) -> None:
    """``planner export``."""
    from planner.cli.saved import read_target
    from planner.query.software import format_meant

    is_page = to == "html"
    if to in ("chakra", "astra-sim"):
        check_folder(out)
    else:
        check_writable(out, force=force, option=OPTION)
    if not is_page:
        of_page = {"--top": top, "--no-search": not search, "--emit": emit, "--launcher": launcher}
        options.refuse_all(of_page, "belongs to --to html")
    target = read_target(emit, launcher) if emit else None
    if is_page and query.cluster and query.get("pareto") is None:
        query = query.with_(pareto="time,gpus")
    taken = ("time_limit",) if is_page else ()
    plan, text, answer = _asked(query, progress, target, top or 5, taken)
    if not is_page:
        _write_iteration(plan, query.model, to, out, force=force)
        return
    from planner.report.page import page_of

    if answer is None and search:
        answer = _around(plan, top or 5, query, progress)
    if target is None:
        # A question may name a format where others name a framework.
        framework = query.get("framework")
        name = framework if format_meant(framework) else plan.framework
        target = read_target(name, launcher)
    page = page_of(
        plan, text, *target, origin=shlex.join(["planner", *sys.argv[1:]]), answer=answer
    )
    write_atomically(out, page, option=OPTION)
    say(f"wrote the page to {out}")


def _around(plan: "Plan", top: int, query: Query, progress: "Progress") -> "Answer | None":
    """Return the answer for the plan's question over the whole space; None if nothing fits."""
    from planner.answers.base import search_context
    from planner.answers.plan import answer_or_raise
    from planner.query.objectives import Aim
    from planner.query.resolve import Resolved
    from planner.search.space.space import EVERYTHING

    resolved = Resolved(
        query=query,
        contexts=(search_context(plan),),
        narrowing=EVERYTHING,
        aim=Aim(pareto=("iteration_s", "gpus")),
        time_limit_s=query.get("time_limit"),
        keeps_margin=True,
    )
    try:
        return answer_or_raise(resolved, top, progress)
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
