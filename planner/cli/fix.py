"""``planner check --fix``: the smallest repair of a plan or a configuration file, written in place.

The file is read for the same request as its check.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from planner.cli.output import console, say

if TYPE_CHECKING:
    from planner.check.fix import FixedFile
    from planner.check.job import Request
    from planner.cost.context import Context
    from planner.formats.format import SourceText

BOM = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class FixOptions:
    """Where the repair goes and how it is shown."""

    apply: bool
    out: Path | None
    force: bool
    as_json: bool
    of_job: tuple[str, ...] = ()
    """Options given that say what the job is, which a plan file states itself."""


def fix(name: str, request: "Request", options: FixOptions) -> None:
    """Print the smallest repair of a file, and write it where that is asked for.

    Exits with 1 where errors are left that no layout fixes, 3 where nothing fits, 4 where the
    format cannot express what fits.
    """
    from planner.check.plan import check_format_name, is_plan_file
    from planner.formats.source import read_source

    path = Path(name)
    target = _target(path, options)
    check_format_name(request.framework)
    if path.is_dir():
        refuse("--fix", f"changes files, one at a time; {name} is a folder")
    source = read_source(path)
    if is_plan_file(source, request.framework):
        for option in options.of_job:
            refuse(option, "is for configuration files; a plan file states its own")
        _fix_plan(path, request, target, as_json=options.as_json)
    else:
        _fix_configuration(source, request, target, as_json=options.as_json)


def refuse(option: str, message: str) -> NoReturn:
    """Raise InputError about an option."""
    from planner.errors import InputError

    raise InputError.single("command line", option, message)


def _target(path: Path, options: FixOptions) -> Path | None:
    """Where the repair is to be written; None: nowhere."""
    from planner.report.files import check_replaceable, check_writable

    if options.apply and options.out is not None:
        refuse("--apply", "only one of --apply and --out can be given")
    if options.apply:
        check_replaceable(path, option="--apply")
        return path
    if options.out is not None:
        check_writable(options.out, force=options.force, option="--out")
    return options.out


def _fix_plan(path: Path, request: "Request", target: Path | None, *, as_json: bool) -> None:
    """Repair a plan file for a cluster, its own where none is given."""
    from planner.cli.progress import delayed_progress
    from planner.plans.plan_file import plan_text, read_plan
    from planner.plans.repair import own_context, repair
    from planner.query.places import cluster_for_file
    from planner.report.files import write_atomically
    from planner.report.repair import print_repair, render_repair_json

    context, strategy, file = read_plan(path, cluster=request.cluster)
    with delayed_progress() as progress:
        answer = repair(
            context,
            strategy,
            own=own_context(path),
            time_limit_s=request.time_limit_s,
            progress=progress,
        )
    place = request.cluster or file.inputs.cluster
    command = _search_command(context, file.inputs.model, place)
    if as_json:
        typer.echo(render_repair_json(answer, path=str(path), command=command))
    else:
        print_repair(answer, console(), path=str(path), command=command)
    if answer.plan is None:
        raise typer.Exit(3)
    if target == path and answer.is_sound:
        say(f"{path} stays as it is")
    elif target is not None:
        text = plan_text(answer.plan, model=file.inputs.model, cluster=cluster_for_file(place))
        write_atomically(target, text)
        say(f"saved the plan to {target}")


def _fix_configuration(
    source: "SourceText", request: "Request", target: Path | None, *, as_json: bool
) -> None:
    """Repair a configuration file in its own words."""
    from planner.check.fix import fix_file
    from planner.cli.progress import delayed_progress
    from planner.report.repair import print_repair, render_repair_json

    with delayed_progress() as progress:
        made = fix_file(source, request, progress=progress)
    answer = made.answer
    command = _search_command(answer.context, request.model or "", request.cluster or "")
    if as_json:
        typer.echo(render_repair_json(answer, path=source.path, command=command, file=made))
    else:
        print_repair(answer, console(), path=source.path, command=command, file=made)
    if made.written is None and not made.is_sound:
        raise typer.Exit(3)
    if target is not None:
        _write(made, target)
    if made.written is not None and made.written.errors:
        raise typer.Exit(1)


def _search_command(context: "Context", model: str, cluster: str) -> str:
    """``planner plan`` with the same question."""
    from planner.query.traits import software_options

    traits, job = context.traits, context.job
    words = ["planner", "plan", model, cluster, "--framework", traits.name]
    words += software_options(traits)
    words += ["--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)]
    words += ["--precision", job.precision, "--optimizer", traits.optimizer.name]
    words += traits.training.options
    return shlex.join([*words, "--margin", f"{100.0 * context.margin_fraction:g}"])


def _write(made: "FixedFile", target: Path) -> None:
    """The repaired file, with mark, line ends, permissions and owner of the one it comes from."""
    from planner.report.files import write_atomically

    source = Path(made.source.path)
    is_own = target.exists() and target.samefile(source)
    if is_own and made.written is None:
        say(f"{target} stays as it is")
        return
    text = made.written.text if made.written else made.source.text
    mark = BOM if source.read_bytes().startswith(BOM.encode()) else ""
    option = "--apply" if is_own else "--out"
    text = mark + with_line_ends(text, like=made.source.text)
    write_atomically(target, text, option=option, like=source)
    say(f"wrote the repair to {target}")


def with_line_ends(text: str, *, like: str) -> str:
    """The text with CRLF throughout, where the other one has nothing else."""
    is_crlf = like.count("\r\n") == like.count("\n") > 0
    return re.sub(r"(?<!\r)\n", "\r\n", text) if is_crlf else text
