"""Answers of all cells: on the cores of this machine or on Ray, kept as they come.

Results are JSON lines: the axes, then a row per cell in the order of the file. While cells are
answered their rows are appended to RESULTS.partial, so that a run that was killed goes on.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.plan import answer_question
from planner.errors import InputError, PlannerError
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.spec.strategy import STRATEGY_FIELDS
from planner.sweep.sweep import Sweep, Value, key_of
from planner.units import DAY_S

Row = Mapping[str, Any]
PLAN, NOTHING, REFUSED, FAILED, DIFFERS = "plan", "nothing", "refused", "failed", "differs"
MAX_TRIES = 3  # of a cell whose process ends before it answers
ASKED = "asked_"  # in front of an option whose name a column of plans has


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell as it is sent to whoever answers it."""

    key: str
    query: Query


@dataclass(frozen=True, kw_only=True)
class Results:
    """Rows of a sweep, in the order of its file."""

    path: str
    axes: Mapping[str, tuple[Value, ...]]  # by column
    rows: tuple[Row, ...]

    @property
    def varying(self) -> list[str]:
        """Columns of the options with several values."""
        return [name for name, values in self.axes.items() if len(values) > 1]


Answers = Iterator[tuple[Task, Row]]
Executor = Callable[[Iterable[Task]], Answers]


def run(
    sweep: Sweep, target: Path, executor: Executor, progress: Callable[[int, int, int], None]
) -> tuple[Results, int]:
    """Answer every cell once; return the results and how many cells were known before.

    ``progress`` gets the cells answered now, those to answer, and those known. Raises PlannerError
    where somebody asked has another planner or other files than are here.
    """
    partial = target.with_suffix(".partial")
    known = {**_rows_by_key(target), **_rows_by_key(partial)}
    cells = [(key_of(cell.query), cell) for cell in sweep.cells()]
    tasks = {key: Task(key=key, query=cell.query) for key, cell in cells if key not in known}
    num_known = len({key for key, _ in cells} & known.keys())
    progress(0, len(tasks), num_known)
    found: dict[str, Row] = dict(known)
    if tasks:
        with partial.open("a", encoding="utf-8") as kept:
            for count, (task, row) in enumerate(executor(tasks.values()), start=1):
                if row["status"] == DIFFERS:
                    raise PlannerError(str(row["reason"]))
                found[task.key] = row
                if row["status"] != FAILED:
                    kept.write(json.dumps({"key": task.key, **row}) + "\n")
                    kept.flush()
                progress(count, len(tasks), num_known)
    taken = {"framework", *STRATEGY_FIELDS}
    names = [axis.name.replace("-", "_") for axis in sweep.axes]
    columns = [f"{ASKED}{name}" if name in taken else name for name in names]
    rows = []
    for key, cell in cells:
        asked = dict(zip(columns, cell.values, strict=True))
        rows.append({**asked, **found[key], **asked, "command": cell.command, "key": key})
    return Results(
        path=str(target),
        axes={name: tuple(axis.values) for name, axis in zip(columns, sweep.axes, strict=True)},
        rows=tuple(rows),
    ), num_known


def results_text(results: Results) -> str:
    """Return the results as JSON lines."""
    lines = [{"axes": results.axes}, *results.rows]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def read_results(path: Path) -> Results:
    """Read the results of a sweep; raises InputError where the file holds none."""
    if not path.is_file():
        raise InputError.single(str(path), "RESULTS", "no such file; planner sweep FILE makes one")
    try:
        head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        axes = {name: tuple(values) for name, values in head["axes"].items()}
        whole = all("status" in row and "key" in row for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        message = "was not made by planner sweep: no JSON lines of axes and cells"
        raise InputError.single(str(path), "RESULTS", message)
    return Results(path=str(path), axes=axes, rows=tuple(rows))


def _rows_by_key(path: Path) -> dict[str, Row]:
    """Rows that were answered before; a line that was cut off by a kill is left out."""
    rows: dict[str, Row] = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if "key" in row and row["status"] != FAILED:
                    rows[row["key"]] = row
    return rows


def answer(task: Task) -> Row:
    """Return the best plan of a cell as plain data, or why there is none; never raises."""
    try:
        if key_of(task.query) != task.key:
            reason = (
                f"{socket.gethostname()} has another planner, or {task.query.model} or "
                f"{task.query.cluster} differs there; what is answered is kept"
            )
            return {"status": DIFFERS, "reason": reason}
        resolved = resolve(task.query)
    except InputError as error:
        reason = "; ".join(str(error).replace("command line::", "").splitlines())
        return {"status": REFUSED, "reason": reason}
    try:
        found = answer_question(resolved, 1, Deadline(resolved.time_limit_s))
    except Exception as error:
        return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    if found.plans:
        return {"status": PLAN, "reason": "", **_figures(found.plans[0], found)}
    limits = "" if resolved.aim.limits.is_empty else " within the limits"
    late = f"no plan found within --time-limit {resolved.time_limit_s or 0:g}"
    reason = f"no layout fits{limits}" if found.is_complete else late
    return {"status": NOTHING, "reason": reason}


def _figures(plan: Plan, found: Answer) -> dict[str, Any]:
    """Columns of a plan; amounts of a billion tokens too, so that different jobs compare."""
    job, made, strategy = plan.context.job, plan.estimate, plan.strategy
    total_s, hours = plan.total_s(), plan.gpu_hours()
    amounts = {"gpu_hours": hours, **plan.amounts()}
    span_s = hours * 3600.0 / strategy.num_gpus
    billions = span_s * made.tokens_per_s / 1e9
    per_billion = {
        f"{name}_per_billion_tokens": None if value is None else value / billions
        for name, value in amounts.items()
    }
    if job.total_tokens is None:
        amounts = dict.fromkeys(amounts)
    times = ("iter_time_s", "iter_time_s_lower", "iter_time_s_upper", "tokens_per_s", "mfu")
    return {
        "framework": plan.framework,
        "gpus": strategy.num_gpus,
        **{name: getattr(strategy, name) for name in STRATEGY_FIELDS},
        **{name: getattr(made, name) for name in times},
        "peak_bytes": made.memory.peak_bytes,
        "usable_bytes": made.memory.usable_bytes,
        "gpu_hours": amounts.pop("gpu_hours"),
        "days": None if total_s is None else total_s / DAY_S,
        **amounts,
        **per_billion,
        "total_tokens": job.total_tokens,
        "is_proved": found.proved_optimal,
        "is_complete": found.is_complete,
    }


def in_this_process(tasks: Iterable[Task]) -> Answers:
    """Yield answers of this process itself."""
    yield from ((task, answer(task)) for task in tasks)


def on_processes(
    tasks: Iterable[Task], workers: int, answer: Callable[[Task], Row] = answer
) -> Answers:
    """Yield answers of processes as they come; a cell whose process ends has MAX_TRIES tries."""
    idle = SimpleQueue[ProcessPoolExecutor]()

    def ask(task: Task) -> tuple[Task, Row]:
        for _ in range(MAX_TRIES):
            process = idle.get()
            try:
                return task, process.submit(answer, task).result()
            except BrokenProcessPool:
                process = _process()
            finally:
                idle.put(process)
        return task, {
            "status": FAILED,
            "reason": f"its process ended {MAX_TRIES} times before it answered",
        }

    threads = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            idle.put(_process())
        for done in as_completed([threads.submit(ask, task) for task in tasks]):
            yield done.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        while not idle.empty():
            idle.get().shutdown(wait=False)


def _process() -> ProcessPoolExecutor:
    """One process; ^C is left to the parent, which ends it."""
    return ProcessPoolExecutor(
        1, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )


def num_cores() -> int:
    """Return the cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def on_ray(tasks: Iterable[Task], address: str) -> Answers:
    """Yield answers of a Ray cluster, ``local`` for one of this machine; InputError without one."""
    ray = _connected(address)
    remote = ray.remote(max_retries=MAX_TRIES - 1, num_cpus=1)(answer)
    flying: dict[Any, Task] = {}
    queue = iter(tasks)
    try:
        while True:
            # Two in flight per core, so that no core waits for the next.
            cpus = int(ray.cluster_resources().get("CPU", 1))
            room = 2 * max(1, cpus) - len(flying)
            flying |= {remote.remote(task): task for task in islice(queue, max(0, room))}
            if not flying:
                return
            for reference in ray.wait(list(flying))[0]:
                task = flying.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield task, {"status": FAILED, "reason": f"on Ray: {type(error).__name__}"}
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:  # noqa: ANN401 - a module that need not be there
    try:
        ray = import_module("ray")
    except ImportError as error:
        message = "ray is not installed; pip install 'parallel-planner[ray]'"
        raise InputError.single("command line", "--ray", message) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address not in ("auto", "local"):
            # Ray itself tries for minutes where nobody listens.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        message = f"no Ray cluster at {address}: {error}"
        raise InputError.single("command line", "--ray", message) from None
    return ray
