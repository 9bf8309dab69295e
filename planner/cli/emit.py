"""``planner emit``: a plan as configuration and launch files of a framework."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.formats.format import Format, OutputFile
    from planner.launchers.launcher import Launcher
    from planner.report.emitted import PlanText
    from planner.spec.strategy import Strategy

DEFAULT_LAUNCHER = "torchrun"


def emit(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    to: Annotated[str, typer.Option("--to", help="Format, such as megatron or deepspeed.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write into [only the configuration, on standard output]."),
    ] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
    output_format: options.FilesFormat = options.FilesOrJson.files,
) -> None:
    """Write a plan as the configuration and launch script of a framework."""
    from planner.answers.plan_file import load_plan
    from planner.documents.file import read_text
    from planner.report.document import serialise
    from planner.report.emitted import PlanText, emit_document
    from planner.report.files import check_folder

    made, starter = read_target(to, launcher, option="--to", needs_out=out is None)
    if out is not None:
        check_folder(out)
    context, strategy, file = load_plan(plan)
    as_json = output_format is options.FilesOrJson.json
    if out is None:
        if as_json:
            files = made.emitted(context, strategy).files
            typer.echo(serialise("emit", emit_document(made, files, context, strategy, None)))
        else:
            _print_config(made, context, strategy)
        return
    text = PlanText(
        text=read_text(plan),
        model=file.inputs.model,
        cluster=file.inputs.cluster,
    )
    files = write(made, starter, context, strategy, text, out, force=force)
    if as_json:
        typer.echo(serialise("emit", emit_document(made, files, context, strategy, out)))


def read_target(
    to: str, launcher: str | None, *, option: str, needs_out: bool
) -> tuple["Format", "Launcher"]:
    """Return format and launcher by name; raises one InputError with all that is wrong."""
    from planner.formats.registry import format_names, load_format, written_names
    from planner.launchers.schedulers import load_launcher
    from planner.notes import Problems
    from planner.query.words import SEVERAL, meant_word
    from planner.spelling import did_you_mean

    problems = Problems()
    known, written = format_names(), written_names()
    given, to = to, meant_word(option, to, known)
    if to != given:
        say(f"{option} {given} is read as {to}")
    if to not in known:
        hint = SEVERAL.get(to.lower()) or did_you_mean(to, written)
        message = f"unknown format {to!r}; allowed are {', '.join(written)}. {hint}"
        problems.add(option, message.rstrip())
    elif not load_format(to).is_written:
        message = f"{to} is read, checked and repaired, not written; allowed are "
        problems.add(option, message + ", ".join(written))
    if launcher is not None and needs_out:
        problems.add("--launcher", f"writes files, which needs --out; given {launcher}")
    starter = problems.read(lambda: load_launcher(launcher or DEFAULT_LAUNCHER))
    problems.finish()
    assert starter is not None
    return load_format(to), starter


def _print_config(made: "Format", context: "Context", strategy: "Strategy") -> None:
    """The first file of the configuration on standard output; what else there is, in a note."""
    from planner.report.emitted import mismatch

    first, *others = made.emitted(context, strategy).files
    typer.echo(first.text, nl=not first.text.endswith("\n"))
    notes = [mismatch(made, context)]
    if others:
        names = ", ".join(file.name for file in others)
        notes.append(f"this is {first.name}; --out writes {names} too")
    for note in filter(None, notes):
        say(f"note: {note}")


def write(
    made: "Format",
    launcher: "Launcher",
    context: "Context",
    strategy: "Strategy",
    plan: "PlanText",
    out: Path,
    *,
    force: bool,
) -> "tuple[OutputFile, ...]":
    """Write all files of a plan into a folder, and return them.

    Raises ExpressError and InputError.
    """
    from planner.report.emitted import mismatch, output_files
    from planner.report.files import write_folder

    files = output_files(made, launcher, context, strategy, plan)
    write_folder(out, files, force=force)
    say(f"wrote {', '.join(file.name for file in files)} to {out}")
    note = mismatch(made, context)
    if note:
        say(f"note: {note}")
    return files
