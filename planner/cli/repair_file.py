"""``planner repair`` of a configuration file: read as ``planner check`` does, edited in place."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from planner.cli.output import say

if TYPE_CHECKING:
    from planner.check.job import Software
    from planner.check.repair import RepairedFile
    from planner.formats.format import SourceText

BOM = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Options as given; what is not given the project's settings may say."""

    cluster: str | None
    model: str | None
    framework: str | None
    gpus: int | None
    seq_len: int | None
    global_batch: int | None
    software: "Software | None"
    margin_fraction: float | None
    time_limit_s: float | None


def repair_configuration(
    source: "SourceText", given: Given, *, target: Path | None, as_json: bool, verbose: bool
) -> None:
    """Print the smallest repair, and write it to ``target`` where one is given.

    Exits with 1 where errors are left that no layout mends, 3 where nothing fits.
    """
    from planner.check.job import Request
    from planner.check.repair import repair_file
    from planner.check.settings import settings_for
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.repair_file import print_repaired_file, render_repaired_file

    settings = settings_for(Path(source.path))
    request = Request(
        model=given.model or settings.model,
        cluster=given.cluster or settings.cluster,
        framework=given.framework or settings.framework or "auto",
        num_gpus=given.gpus or settings.gpus,
        seq_len=given.seq_len or settings.seq_len,
        global_batch=given.global_batch or settings.global_batch,
        software=given.software,
    )
    with delayed_progress() as progress:
        made = repair_file(
            source,
            request,
            margin_fraction=given.margin_fraction,
            time_limit_s=given.time_limit_s,
            progress=progress,
        )
    command = _search_command(made, request.model or "", request.cluster or "")
    if as_json:
        typer.echo(render_repaired_file(made, command=command))
    else:
        print_repaired_file(made, console(), command=command, verbose=verbose)
    if made.written is None and not made.is_sound:
        raise typer.Exit(3)
    if target is not None:
        _write(made, target)
    if made.written is not None and made.written.errors:
        raise typer.Exit(1)


def _search_command(made: "RepairedFile", model: str, cluster: str) -> str:
    """``planner plan`` with the file's own question."""
    from planner.plans.trait_settings import software_options

    context = made.answer.context
    traits, job = context.traits, context.job
    words = ["planner", "plan", model, cluster, "--framework", traits.name]
    words += software_options(traits)
    words += ["--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)]
    words += ["--precision", job.precision, "--optimizer", traits.optimizer.name]
    words += traits.training.options
    return shlex.join([*words, "--margin", f"{100.0 * context.margin_fraction:g}"])


def with_line_ends(text: str, *, like: str) -> str:
    """The text with CRLF throughout, where the other one has nothing else."""
    is_crlf = like.count("\r\n") == like.count("\n") > 0
    return re.sub(r"(?<!\r)\n", "\r\n", text) if is_crlf else text


def _write(made: "RepairedFile", target: Path) -> None:
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
