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
    from planner.query.from_file import Request

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
    from planner.check.fix import fix_file, fix_plan
    from planner.check.plan import check_format_name, is_plan_file
    from planner.cli.progress import delayed_progress
    from planner.formats.format import read_source
    from planner.report.repair import print_repair, render_repair_json

    path = Path(name)
    target = _target(path, options)
    check_format_name(request.framework)
    if path.is_dir():
        refuse("--fix", f"changes files, one at a time; {name} is a folder")
    source = read_source(path)
    is_plan = is_plan_file(source, request.framework)
    if is_plan and options.of_job:
        refuse(options.of_job[0], "is for configuration files; a plan file states its own")
    with delayed_progress() as progress:
        made = (fix_plan if is_plan else fix_file)(source, request, progress=progress)
    command = _search_command(made)
    if options.as_json:
        typer.echo(render_repair_json(made, command))
    else:
        print_repair(made, console(), command)
    if made.text is None:
        raise typer.Exit(3)
    if target is not None:
        _write(made, made.text, target)
    if made.errors_left:
        raise typer.Exit(1)


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


def _search_command(made: "FixedFile") -> str:
    """``planner plan`` with the same question."""
    from planner.query.traits import software_options

    context = made.answer.context
    traits, job = context.traits, context.job
    words = ["planner", "plan", made.model, made.cluster, "--framework", traits.name]
    words += software_options(traits)
    words += ["--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)]
    words += ["--precision", job.precision, "--optimizer", traits.optimizer.name]
    words += traits.training.options
    return shlex.join([*words, "--margin", f"{100.0 * context.margin_fraction:g}"])


def _write(made: "FixedFile", text: str, target: Path) -> None:
    """Write a plan as a new one, a configuration as the file that it comes from.

    That is with its byte order mark, line ends, permissions and owner.
    """
    from planner.check.plan import PLAN
    from planner.report.files import write_atomically

    source = Path(made.source.path)
    is_own = target.exists() and target.samefile(source)
    if is_own and made.is_sound:
        say(f"{target} stays as it is")
    elif made.format == PLAN:
        write_atomically(target, text)
        say(f"saved the plan to {target}")
    else:
        mark = BOM if source.read_bytes().startswith(BOM.encode()) else ""
        text = mark + with_line_ends(text, like=made.source.text)
        write_atomically(target, text, option="--apply" if is_own else "--out", like=source)
        say(f"wrote the repair to {target}")


def with_line_ends(text: str, *, like: str) -> str:
    """The text with CRLF throughout, where the other one has nothing else."""
    is_crlf = like.count("\r\n") == like.count("\n") > 0
    return re.sub(r"(?<!\r)\n", "\r\n", text) if is_crlf else text
