"""Answers to tasks for tests of sweeps, imported by name in other processes."""

import os
import signal
from pathlib import Path

from planner.sweep.run import Row, Task


def echoed(task: Task) -> Row:
    return {"status": "plan", "reason": "", "said": task.query.model}


def dies_once(task: Task) -> Row:
    """Kill the process of a task whose cluster names a file, which is then gone."""
    if (mark := Path(task.query.cluster)).is_file():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return echoed(task)


def dies(task: Task) -> Row:
    if task.query.model == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return echoed(task)
