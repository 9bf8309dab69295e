"""Processes that start trainings without a GPU: one JSON line asks for a start, one answers it."""

from __future__ import annotations

import io
import json
import linecache
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol


class Case(Protocol):
    """What is asked for: words, and where they run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    num_gpus: int
    environment: dict[str, str]
    generation: str


Stages = Callable[[Any, dict[str, Any], Callable[[str], None]], None]
"""Goes through a start: fills the report, and says which stage it enters."""


class Starts:
    """A running process of a framework's code; ask it with :meth:`start`."""

    program: ClassVar[str]

    def __init__(self, megatron: Path, log: IO[str]) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", self.program, str(megatron)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def start(self, case: Case) -> dict[str, Any]:
        """What comes of it: ``error`` and ``stage``, or the degrees it starts with."""
        return self.ask(json.dumps(asdict(case)))

    def ask(self, question: str) -> dict[str, Any]:
        """The answer to one line."""
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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=60)


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


def serve(kind: type, stages: Stages, import_framework: Callable[[Path], None]) -> None:
    """Answer every line with what the stages make of the case in it.

    Behind the last one nothing is taken down, which takes seconds where torch is imported.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    import_framework(Path(sys.argv[1]))
    for line in sys.stdin:
        answers.write(json.dumps(answer(kind(**json.loads(line)), stages)) + "\n")
        answers.flush()
    os._exit(0)
