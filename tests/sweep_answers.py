"""Answers to tasks for tests of sweeps, imported by name in other processes."""

import os
import signal
from pathlib import Path

from planner.sweep.cells import Row, Task


def echoed(task: Task) -> Row:
    return {"status": "plan", "reason": "", "said": task.words[0]}


def dies_once(task: Task) -> Row:
    """Killed at its first try where a file named by the task says that it was not yet."""
    if len(task.words) > 1 and (first := Path(task.words[1])).exists():
        first.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return echoed(task)


def dies(task: Task) -> Row:
    if task.words[0] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return echoed(task)


def never_starts(task: Task) -> Row:
    os._exit(7)
