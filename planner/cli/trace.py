"""``planner trace``: one iteration of a saved plan as a trace."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options
from planner.cli.output import say

OPTION = "--out"


def trace(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    out: Annotated[Path, typer.Option(OPTION, "-o", help="File to write, such as trace.json.")],
    force: options.Force = False,
) -> None:
    """Write one iteration in the Trace Event Format, for Perfetto (ui.perfetto.dev)."""
    from planner.cli.saved import read_saved
    from planner.errors import InputError
    from planner.plans.iteration import iteration, too_long
    from planner.report.files import check_writable, write_atomically
    from planner.report.trace import render_trace

    check_writable(out, force=force, option=OPTION)
    saved, _ = read_saved(plan)
    if problem := too_long(saved.strategy):
        raise InputError.single(str(plan), "strategy.num_micro_batches", problem)
    write_atomically(out, render_trace(saved, iteration(saved)), option=OPTION)
    say(f"wrote one iteration to {out}; open it at ui.perfetto.dev")
