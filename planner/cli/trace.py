"""``planner trace``: one iteration of a saved plan as a trace."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.plans.plan import Plan

OPTION = "--out"


class TraceFormat(StrEnum):
    """What a trace is written for."""

    PERFETTO = "perfetto"
    CHAKRA = "chakra"


def _check(plan: "Plan", place: str, *, is_folder: bool) -> None:
    """Raise InputError for what cannot be simulated, or written in the format."""
    from planner.errors import InputError
    from planner.plans.execution import why_no_execution
    from planner.plans.iteration import too_long
    from planner.report.astra_sim import check_size

    if problem := too_long(plan.strategy):
        raise InputError.single(place, "strategy.num_micro_batches", problem)
    if not is_folder:
        return
    check_size(plan.strategy, place)
    if problem := why_no_execution(plan):
        raise InputError.single(place, "strategy", f"{problem}: not carried by --format chakra")


def _write_folder(plan: "Plan", place: str, out: Path, *, force: bool) -> None:
    from planner.cost.priced import subject_of
    from planner.cost.timeline import timeline
    from planner.report.astra_sim import TRACES, folder_files
    from planner.report.folder import write_folder

    drawn = timeline(subject_of(plan.context, plan.strategy))
    write_folder(out, folder_files(plan, drawn, place), force=force, replaces=TRACES)
    count = plan.strategy.num_gpus
    say(f"wrote {count} traces and ASTRA-sim's files to {out}; README.md says how to run it")


def trace(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    out: Annotated[
        Path,
        typer.Option(OPTION, "-o", help="File to write, such as trace.json; a folder of chakra."),
    ],
    output_format: Annotated[
        TraceFormat,
        typer.Option(
            "--format",
            help="perfetto: a file for ui.perfetto.dev; chakra: execution traces for ASTRA-sim.",
        ),
    ] = TraceFormat.PERFETTO,
    force: options.Force = False,
) -> None:
    """Write one iteration, for Perfetto (ui.perfetto.dev) or for ASTRA-sim."""
    from planner.cli.saved import read_saved
    from planner.report.files import check_writable, write_atomically
    from planner.report.folder import check_folder

    is_folder = output_format is TraceFormat.CHAKRA
    if not is_folder:
        check_writable(out, force=force, option=OPTION)
    else:
        check_folder(out)
    saved, _ = read_saved(plan)
    _check(saved, str(plan), is_folder=is_folder)
    if is_folder:
        _write_folder(saved, str(plan), out, force=force)
        return
    from planner.plans.iteration import iteration
    from planner.report.trace import render_trace

    write_atomically(out, render_trace(saved, iteration(saved)), option=OPTION)
    say(f"wrote one iteration to {out}; open it at ui.perfetto.dev")
