"""Tasks in turn; those that were lost come back, a few times."""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from planner.sweep.cells import Row, Task

MOST_TRIES = 3
FAILED = "failed"
"""Status of a cell that got no answer; it is asked again by the next run."""


class Retries:
    """A queue that knows how often a task was tried."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._coming = iter(tasks)
        self._waiting: deque[Task] = deque()
        self._tries: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether there is a task to give."""
        if not self._waiting:
            self._waiting.extend(islice(self._coming, 1))
        return bool(self._waiting)

    def next(self) -> Task:
        """The next task, of which there must be one."""
        return self._waiting.popleft()

    def lost(self, task: Task, reason: str) -> Row | None:
        """Put a task back; None, or what is known of one that was tried too often."""
        tries = self._tries[task.key] = self._tries.get(task.key, 0) + 1
        if tries < MOST_TRIES:
            self._waiting.append(task)
            return None
        return {"status": FAILED, "reason": f"tried {tries} times: {reason}"}
