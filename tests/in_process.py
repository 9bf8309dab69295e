"""Commands of the program, run in this process."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from planner.cli.app import main


class Run(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def planner(*words: str) -> Run:
    """Run ``planner`` with these words."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", ["planner", *words]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code: int | str | None = 0
        except SystemExit as stop:
            code = stop.code
    return Run(int(code or 0), out.getvalue(), err.getvalue())


def json_of(*words: str) -> Any:
    """What a command that succeeds says with ``--format json``."""
    run = planner(*words, "--format", "json")
    assert run.code == 0, run.err
    return json.loads(run.out)
