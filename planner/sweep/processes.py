"""Cells on the cores of this machine: processes that may die and lose nothing."""

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from planner.errors import PlannerError
from planner.sweep.cells import Answer, Answers, Row, Task
from planner.sweep.retries import Retries

MOST_DEATHS = 8
"""One after another with no answer between them: they cannot start."""


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(kw_only=True)
class _Worker:
    """A process and what it is at."""

    process: BaseProcess
    pipe: "Connection[Task, Row]"
    task: Task | None = None

    def stop(self) -> None:
        """End it, at once where it is at work."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _work(pipe: "Connection[Row, Task]", answer: Answer) -> None:
    """Answer tasks until the pipe ends; an interrupt is the parent's to deal with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            pipe.send(answer(pipe.recv()))
    except (EOFError, OSError):
        return


def _hire(answer: Answer) -> _Worker:
    context = get_context("spawn")
    own, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, answer), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, pipe=own)


def here(tasks: Iterable[Task], answer: Answer) -> Answers:
    """Answers of this process itself."""
    for task in tasks:
        yield task, answer(task)


def on_processes(tasks: Iterable[Task], answer: Answer, workers: int) -> Answers:
    """Answers as they come; what a process had when it died is asked again.

    Raises PlannerError where processes die one after another before they answer anything.
    """
    team: list[_Worker] = []
    queue = Retries(tasks)
    deaths = 0
    try:
        while True:
            for worker in _idle(team, queue, answer, workers):
                _give(worker, queue)
            busy = {worker.pipe: worker for worker in team if worker.task}
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                assert worker.task is not None
                try:
                    row = worker.pipe.recv()
                except (EOFError, OSError):
                    team.remove(worker)
                    worker.process.join()
                    deaths += 1
                    if deaths > MOST_DEATHS:
                        raise PlannerError(_dying(worker)) from None
                    given_up = queue.lost(worker.task, f"its process ended, {_code(worker)}")
                    if given_up is not None:
                        yield worker.task, given_up
                    continue
                deaths = 0
                done, worker.task = worker.task, None
                yield done, row
    finally:
        for worker in team:
            worker.stop()


def _idle(team: list[_Worker], queue: Retries, answer: Answer, workers: int) -> Iterator[_Worker]:
    """Workers without a task, new ones among them, while there are tasks."""
    for worker in list(team):
        if worker.task is None and queue:
            yield worker
    while len(team) < workers and queue:
        team.append(_hire(answer))
        yield team[-1]


def _give(worker: _Worker, queue: Retries) -> None:
    """Send a task; where the process is gone already, that is seen when its answer is read."""
    worker.task = queue.next()
    try:
        worker.pipe.send(worker.task)
    except OSError:
        return


def _code(worker: _Worker) -> str:
    code = worker.process.exitcode or 0
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _dying(worker: _Worker) -> str:
    return (
        f"worker processes end before they answer ({_code(worker)}); what is done is kept; "
        "--workers 1 asks in this process"
    )
