"""A progress bar on standard error that appears only when a command takes long."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.search import Progress

DELAY_S = 1.0


class _DelayedBar:
    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from planner.report.table import Screen

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=Screen(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=1.0)
        self._timer = threading.Timer(DELAY_S, self._bar.start)
        self._timer.daemon = True
        self._timer.start()

    def update(self, message: str, fraction: float) -> None:
        self._bar.update(self._task, description=message, completed=fraction)

    def stop(self) -> None:
        self._timer.cancel()
        self._timer.join()
        self._bar.stop()


@contextmanager
def delayed_progress() -> "Iterator[Progress]":
    """Yield a progress callback; nothing is shown in the first second or without a terminal."""
    if not sys.stderr.isatty():
        yield lambda _message, _fraction: None
        return
    bar = _DelayedBar()
    try:
        yield bar.update
    finally:
        bar.stop()
