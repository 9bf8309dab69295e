"""Runs a sweep: what is known is taken from the store, the rest is asked, each cell once."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from planner.errors import PlannerError
from planner.sweep.cells import Answers, Cell, Row, Sweep, Task
from planner.sweep.retries import FAILED
from planner.sweep.store import Store

DIFFERS = "differs"
"""Status of a cell that whoever was asked sees as another question: other files, other planner."""
Executor = Callable[[Iterable[Task]], Answers]
KeyOf = Callable[[Cell], str]
Progress = Callable[["Progressing"], None]


@dataclass(kw_only=True)
class Progressing:
    """How far a run is."""

    cells: int
    known: int = 0
    """Keys that the store had."""
    asked: int = 0
    """Keys to ask."""
    answered: int = 0
    """Keys asked by now."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_s

    @property
    def cells_per_s(self) -> float:
        """Rate of those asked."""
        return self.answered / self.seconds if self.seconds > 0.0 else 0.0


def run(
    sweep: Sweep, store: Store, key_of: KeyOf, executor: Executor, progress: Progress
) -> tuple[Mapping[str, Row], tuple[str, ...], Progressing]:
    """Answers by key, the key of every cell in order, and how it went.

    Raises PlannerError where somebody asked has another planner or other files than are here.
    """
    found: dict[str, Row] = {}
    tasks: dict[str, Task] = {}
    keys: list[str] = []
    for cell in sweep.cells():
        key = key_of(cell)
        keys.append(key)
        if key in found or key in tasks:
            continue
        row = store.get(key)
        if row is None:
            tasks[key] = Task(key=key, words=cell.question)
        else:
            found[key] = row
    state = Progressing(cells=len(keys), known=len(found), asked=len(tasks))
    progress(state)
    if not tasks:
        return found, tuple(keys), state
    with closing(executor(tasks.values())) as answers:
        for task, row in answers:
            if row["status"] == DIFFERS:
                raise PlannerError(str(row["reason"]))
            if row["status"] != FAILED:
                store.put(task.key, row)
            found[task.key] = row
            state.answered += 1
            progress(state)
    return found, tuple(keys), state
