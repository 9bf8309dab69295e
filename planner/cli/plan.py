"""``planner plan``: ranked plans for a model on a cluster."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.catalog.paths import EXAMPLE_NODE
from planner.cli import options
from planner.cli.output import say
from planner.query.query import Query

if TYPE_CHECKING:
    from planner.answers.base import Answer, Plan
    from planner.formats.format import Format as FileFormat
    from planner.launchers.launcher import Launcher
    from planner.notes import Problems
    from planner.query.resolve import Resolved


TOP = 5
"""Layouts that are shown."""


class Maximize(StrEnum):
    """What may be as large as possible."""

    sequence = "seq-len"
    micro_batch = "micro-batch"


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What ``--emit`` asks for."""

    made: "FileFormat"
    launcher: "Launcher"
    out: Path


@options.takes()
def plan(
    context: typer.Context,
    *,
    query: Query,
    space: Annotated[
        bool, typer.Option("--space", help="Show what would be searched, and stop.")
    ] = False,
    versus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Compare with the same question asked otherwise: precision=fp8, cp=1, "
            f"cluster=8x{EXAMPLE_NODE}; several with commas; repeatable.",
        ),
    ] = None,
    maximize: Annotated[
        Maximize | None,
        typer.Option(
            help="Find the longest sequence that fits, or first the largest micro-batch, "
            "and what binds them."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = TOP,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the variants of every layout too.")
    ] = False,
    verbose: options.Verbose = False,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.")
    ] = Format.table,
    save: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    emit: Annotated[
        str | None,
        typer.Option(help="Write the best plan as files of this format, into --out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for --emit.")] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
) -> None:
    """Search all layouts, keep what fits, rank by iteration time or another objective."""
    from planner.answers.plan import answered
    from planner.cli.progress import delayed_progress
    from planner.notes import Problems
    from planner.query.resolve import resolve
    from planner.report.files import check_writable
    from planner.report.sizing_words import unmet_limits

    if save is not None:
        check_writable(save, force=force)
    problems = Problems()
    target = problems.read(lambda: _target(emit, out, launcher, force=force))
    if versus or maximize:
        option = "--versus" if versus else "--maximize"
        writes = bool(target or save or space or (versus and maximize))
        _refuse_writing(problems, option, writes=writes, to=output_format)
    if maximize:
        _maximize(context, query, maximize, output_format, verbose=verbose)
        return
    if versus:
        _compare(query, versus, output_format)
        return
    resolved = resolve(query, fmt=target.made if target else None, problems=problems)
    if space:
        _print_space(resolved, output_format)
        return
    with delayed_progress() as progress:
        result = answered(resolved, top, progress)
    if save is not None and result.plans:
        _save(result.plans[0], save, query)
    if output_format is Format.table:
        from planner.answers.plan import beside_screen
        from planner.cli.following import writing
        from planner.cli.output import console
        from planner.report.plan import print_answer

        is_last = result.plans and target is None
        following = writing(context, result.plans[0], resolved.fmt) if is_last else ""
        told = beside_screen(result, verbose=verbose, show_all=show_all)
        print_answer(
            result, told, console(), verbose=verbose, show_all=show_all, following=following
        )
    else:
        _render(result, output_format)
    if not result.plans:
        raise unmet_limits(result)
    if target is not None:
        _emit(result, target, query, force=force)


def _refuse_writing(problems: "Problems", option: str, *, writes: bool, to: Format) -> None:
    """Raise InputError where an answer that is no ranking is to be written."""
    if writes or to is Format.csv:
        problems.add(option, "stands alone and writes nothing; without --emit, --save, csv")
    problems.finish()


def _maximize(
    context: typer.Context,
    query: Query,
    maximize: Maximize,
    output_format: Format,
    *,
    verbose: bool,
) -> None:
    """Show the largest value at which some layout fits, and what keeps it from being larger."""
    import shlex

    from planner.answers.base import Deadline
    from planner.answers.largest import MICRO_BATCH, SEQUENCE, largest
    from planner.answers.nothing_fits import nothing_fits
    from planner.answers.whatif import Case
    from planner.cli.following import typed
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.query.resolve import resolve
    from planner.report.plan_options import print_largest, render_largest_json

    options.refuse(query, options.OF_THE_FASTEST, "--maximize asks what fits")
    resolved = resolve(query)
    has_batch = any(query.get(name) is not None for name in ("global_batch", "global_batch_tokens"))
    case = Case(contexts=resolved.contexts, narrowing=resolved.narrowing)
    deadline = Deadline(resolved.time_limit_s)
    with delayed_progress() as progress:
        answer = largest(
            case,
            quantities=(MICRO_BATCH, SEQUENCE) if maximize is Maximize.micro_batch else (SEQUENCE,),
            has_batch=has_batch,
            keeps_margin=resolved.keeps_margin,
            notes=resolved.without_note("global_batch").notes,
            deadline=deadline,
            progress=progress,
        )
    if not answer.has_any:
        if answer.is_cut:
            raise deadline.nothing_found()
        raise nothing_fits(case)
    if output_format is Format.json:
        typer.echo(render_largest_json(answer))
    else:
        following = shlex.join(typed(context, without={"maximize"}))
        print_largest(answer, console(), verbose=verbose, following=following)


def _compare(query: Query, versus: list[str], output_format: Format) -> None:
    """Show the best plan as asked beside those of the question asked otherwise."""
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.cli.versus import compare
    from planner.report.plan_options import print_versus, render_versus_json

    with delayed_progress() as progress:
        found = compare(query, versus, progress)
    if output_format is Format.json:
        typer.echo(render_versus_json(found))
    else:
        print_versus(found, console())


def _print_space(resolved: "Resolved", output_format: Format) -> None:
    """Show the space; raises InputError where there is no such form of it."""
    from planner.cli.output import console
    from planner.errors import InputError
    from planner.report.plan_options import print_spaces, render_spaces_json
    from planner.search.space.count import count_space

    if output_format is Format.csv:
        message = "--space has the forms table and json; given csv"
        raise InputError.single("command line", "--format", message)
    spaces = [count_space(context, resolved.narrowing) for context in resolved.contexts]
    if output_format is Format.json:
        typer.echo(render_spaces_json(spaces, resolved.notes))
    else:
        print_spaces(spaces, resolved.notes, console())


def _target(
    emit: str | None, out: Path | None, launcher: str | None, *, force: bool
) -> _Target | None:
    """Read the options that belong to ``--emit``; raises InputError."""
    from planner.cli.emit import read_target
    from planner.errors import InputError, Problem
    from planner.report.emitted import ALWAYS
    from planner.report.files import check_targets

    if emit is None:
        problems = [
            Problem(where="command line", key=option, message="belongs to --emit, which is missing")
            for option, given in (("--out", out), ("--launcher", launcher))
            if given is not None
        ]
        if problems:
            raise InputError(problems)
        return None
    made, starter = read_target(emit, launcher, option="--emit", needs_out=False)
    if out is None:
        message = "writes files, which needs a folder; give --out DIR"
        raise InputError.single("command line", "--emit", message)
    check_targets(out, ALWAYS, force=force)
    return _Target(made=made, launcher=starter, out=out)


def _emit(result: "Answer", target: _Target, query: Query, *, force: bool) -> None:
    """Write the best plan of the format's framework."""
    from planner.answers.plan_file import plan_text
    from planner.cli.emit import write
    from planner.query.places import places_for_file
    from planner.report.emitted import PlanText

    framework = target.made.framework
    best = next((plan for plan in result.plans if plan.framework == framework), result.plans[0])
    model, cluster = places_for_file(query)
    text = PlanText(
        text=plan_text(best, model=model, cluster=cluster), model=model, cluster=cluster
    )
    write(
        target.made,
        target.launcher,
        best.context,
        best.strategy,
        text,
        target.out,
        force=force,
    )


def _save(best: "Plan", path: Path, query: Query) -> None:
    from planner.answers.plan_file import plan_text
    from planner.query.places import places_for_file
    from planner.report.files import write_atomically

    model, cluster = places_for_file(query)
    text = plan_text(best, model=model, cluster=cluster)
    write_atomically(path, text)
    say(f"saved plan 1 to {path}")


def _render(result: "Answer", output_format: Format) -> None:
    """Write the answer for programs."""
    if output_format is Format.json:
        from planner.answers.plan import beside_document
        from planner.report.document import serialise
        from planner.report.plan import plan_document

        typer.echo(serialise("plan", plan_document(result, beside_document(result))))
    else:
        from planner.report.tables import render_csv

        typer.echo(render_csv(result), nl=False)
