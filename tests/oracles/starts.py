"""Processes of frameworks' code: programs that answer JSON lines, and workers that are forked."""

from __future__ import annotations

import io
import json
import linecache
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

HERE = Path(__file__).parent


class Case(Protocol):
    """What is asked for: words, and where they run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    num_gpus: int
    environment: dict[str, str]
    generation: str


Stages = Callable[[Any, dict[str, Any], Callable[[str], None]], None]
"""Goes through a start: fills the report, and says which stage it enters."""


class Starts:
    """A running program of this folder, which is asked the same only once."""

    def __init__(self, program: str, log: IO[str], *arguments: Path) -> None:
        self._log = log
        self._known: dict[str, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def start(self, case: Any) -> dict[str, Any]:
        """The answer to a case: ``error`` and ``stage``, or what it starts with."""
        question = json.dumps(case if isinstance(case, dict) else asdict(case))
        if question not in self._known:
            self._known[question] = self._ask(question)
        return self._known[question]

    def made(self, case: Any) -> dict[str, Any]:
        """The answer to a case that has no error."""
        answer = self.start(case)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended:\n{Path(self._log.name).read_text()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=60)


@contextmanager
def running(program: str, folder: Path, *arguments: Path) -> Iterator[Starts]:
    with (folder / "log.txt").open("w+", encoding="utf-8") as log:
        starts = Starts(program, log, *arguments)
        yield starts
        starts.close()


def run_worker(
    words: list[str], folder: Path, environment: Mapping[str, str], limit_s: float
) -> None:
    """Run a program and all that it forks, on this machine alone."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **rendezvous, **environment},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise RuntimeError(log.read_text()[-5000:])


def of_ranks(folder: Path, number: int, prefix: str = "") -> list[dict[str, Any]]:
    """What every rank wrote down."""
    return [json.loads((folder / f"{prefix}{rank}.json").read_text()) for rank in range(number)]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@contextmanager
def environment(case: Case) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(case.num_gpus))
    os.environ.update(case.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def answer(case: Case, stages: Stages) -> dict[str, Any]:
    report: dict[str, Any] = {}
    log = io.StringIO()
    at = ["import"]
    try:
        with environment(case), redirect_stdout(log), redirect_stderr(log):
            stages(case, report, at.append)
    except SystemExit:
        lines = [line for line in log.getvalue().splitlines() if "error:" in line]
        return {"stage": at[-1], "error": (lines or ["exits"])[-1]}
    except Exception as error:
        return {"stage": at[-1], "error": _message(error)}
    return report


def _message(error: Exception) -> str:
    """The message, or the line of code of a bare assert."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        file = trace.tb_frame.f_code.co_filename
        line = linecache.getline(file, trace.tb_lineno).strip()
        place = f" [{Path(file).name}: {line}]"
    return f"{type(error).__name__}: {error}{place}"[:600]


def serve(
    answer_to: Callable[[dict[str, Any]], dict[str, Any]], prepare: Callable[[], Any] = dict
) -> None:
    """Answer every line, with the error that is raised if any; what else is printed is no answer.

    Behind the last one nothing is taken down, which takes seconds where torch is imported.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    prepare()
    for line in sys.stdin:
        try:
            found = answer_to(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
    os._exit(0)


def serve_starts(kind: type, stages: Stages, import_framework: Callable[[Path], None]) -> None:
    """Answer every line with what the stages make of the case in it."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    serve(lambda given: answer(kind(**given), stages), lambda: import_framework(Path(sys.argv[1])))
