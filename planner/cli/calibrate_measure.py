"""``planner calibrate --measure``: this machine's own measurements, alone or under torchrun."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from planner.cli.output import say

if TYPE_CHECKING:
    from planner.calibrate.figures import Base
    from planner.calibrate.measured import Machine, Table


def measured_now(
    words: list[str],
    table: Path | None,
    nvme: Path | None,
    out: Path | None,
    *,
    force: bool,
    dry_run: bool,
) -> "tuple[str, Table]":
    """What all processes measured, and how the table is called; it is written where asked for.

    Those but the first leave the program here, and say nothing. Raises InputError for what cannot
    be measured, or written, before anything is measured.
    """
    from planner.calibrate.measured import table_text
    from planner.errors import PlannerError
    from planner.report.files import write_atomically

    is_first = os.environ.get("RANK", "0") == "0"
    path = None if dry_run else table or (out and out.with_suffix(".csv"))
    try:
        base = _base(words, path, out, force=force)
        found = _measured(nvme, base, is_first=is_first)
    except PlannerError:
        if is_first:
            raise
        raise typer.Exit(2) from None
    if not is_first:
        raise typer.Exit(0)
    if path is not None:
        write_atomically(path, table_text(found), option="--table")
        say(f"wrote {path}")
    return str(path or "measured"), found


def _base(words: list[str], table: Path | None, out: Path | None, *, force: bool) -> "Base | None":
    """The cluster named; raises InputError before minutes are spent: it, the files to write."""
    from planner.calibrate.figures import read_base
    from planner.cli.calibrate import check_out
    from planner.report.files import check_writable

    check_out(out, force=force)
    if table is not None:
        check_writable(table, force=force, option="--table")
    return read_base(words[0]) if words else None


def _measured(nvme: Path | None, base: "Base | None", *, is_first: bool) -> "Table":
    from planner.calibrate.machine import check_machine
    from planner.cli.progress import delayed_progress
    from planner.errors import InputError

    try:
        from planner.calibrate.measure.disk import check_folder
        from planner.calibrate.measure.run import measure
        from planner.calibrate.measure.world import join, leave
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        message = "torch is not installed; pip install 'parallel-planner[measure]'"
        raise InputError.single("command line", "--measure", message) from error
    if nvme is not None:
        check_folder(nvme)

    def check(machine: "Machine") -> None:
        if base is not None:
            check_machine("--measure", machine, base.cluster)

    world = join()
    try:
        with delayed_progress() if is_first else nullcontext(_silent) as progress:
            return measure(world, nvme, progress, check)
    finally:
        leave(world)


def _silent(_message: str, _fraction: float) -> None:
    """What the processes but the first show."""
