"""Output of commands besides their answers: the console, notes, progress, the next command."""

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from planner.cli.options import is_given
from planner.errors import InputError
from planner.limits import printable

if TYPE_CHECKING:
    from rich.console import Console

    from planner.answers.base import Plan
    from planner.answers.sensitivity import Sensitivity
    from planner.formats.format import Format
    from planner.search.search import Progress


def console() -> "Console":
    """Return a console on standard output: wide in a pipe without COLUMNS, never below 80."""
    from planner.report.table import Screen

    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    screen = Screen(width=160 if is_free else None, highlight=False, emoji=False, markup=False)
    screen.width = max(screen.width, 80)
    return screen


def show_as(
    form: str, kind: str, document: Callable[[], Any], screen: "Callable[[Console], None]"
) -> None:
    """Print an answer as its document where that is asked for, else on a screen."""
    if form == "json":
        from planner.report.document import serialise

        typer.echo(serialise(kind, document()))
    else:
        screen(console())


def fail(option: str, message: str) -> NoReturn:
    """Raise InputError about an option."""
    raise InputError.single("command line", option, message)


def say(text: str) -> None:
    """Write a line to standard error; what files or paths hide in it stands escaped."""
    typer.echo(printable(text), err=True)


@contextmanager
def delayed_progress(*, is_shown: bool = True) -> "Iterator[Progress]":
    """Yield a progress callback; nothing is shown in the first second or without a terminal."""
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _message, _fraction: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from planner.report.table import Screen

    text = TextColumn("{task.description}", markup=False)
    screen = Screen(stderr=True)
    bar = Bar(text, BarColumn(), TimeElapsedColumn(), console=screen, transient=True)
    task = bar.add_task("starting", total=1.0)
    timer = threading.Timer(1.0, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda message, fraction: bar.update(task, description=message, completed=fraction)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def typed(context: typer.Context, without: str = "") -> list[str]:
    """The words of the command that runs, as its options were read; defaults are left out."""
    # Options that change what is shown, and no answer.
    left_out = ("verbose", "show_all", "output_format", "top", "force", without)
    words, options = ["planner", context.command.name or ""], list[str]()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in left_out or not is_given(context, name):
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            every = value if isinstance(value, list | tuple) else [value]
            options += [word for each in every for word in (parameter.opts[0], str(each))]
    return [*words, *options]


def writing(context: typer.Context, plan: "Plan", made: "Format | None") -> str:
    """Planning again with the files of the first plan written, or saved where no format has it."""
    from planner.formats.registry import format_of

    made = made if made and made.is_written else format_of(plan.context.traits)
    if list(made.refused(plan.context)):
        return shlex.join([*typed(context), "--save", "plan.yaml"])
    return shlex.join([*typed(context), "--emit", made.name, "--out", "run"])


def measuring(result: "Sensitivity", cluster: str) -> str:
    """`planner calibrate` of what is worth measuring on the cluster; empty where nothing is.

    ``cluster``: as it was given, empty where a plan was. One node measures itself; between nodes
    stands what nccl-tests printed there.
    """
    from planner.catalog.hardware import is_path
    from planner.frameworks.registry import load_traits
    from planner.spec.cluster import PROCESSOR

    worth = {one.figure.key for one in result.worth_measuring}
    own, vendors = result.best.context.cluster, load_traits("torchtitan").support.vendors
    if not worth or own.accelerator.vendor not in (*vendors, PROCESSOR):
        return ""
    whole, count = (own.node.whole or own.node).name, own.node.num_accelerators
    place = cluster if is_path(cluster) else f"{own.num_nodes}x{whole}"
    start = ["torchrun", "--no-python", "--nproc-per-node", str(count)] if count > 1 else []
    files = ["all_reduce_perf.txt"] if worth & {"nic_gbit_per_s", "fabric_latency_us"} else []
    words = ["planner", "calibrate", "--measure", place, *files, "--out", "mine.yaml"]
    return shlex.join([*start, *words])
