"""Runs commands of the documentation in this process."""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from planner.cli.app import main, main_plan

PROGRAMS = {"planner": main, "plan": main_plan}
PROMPT = "$ "
COLUMNS = 80


def is_ours(command: str) -> bool:
    """Whether the command runs this program."""
    return command.partition(" ")[0] in PROGRAMS


def run_on(
    screen: io.StringIO, errors: io.StringIO, words: list[str], environment: Mapping[str, str]
) -> int:
    """Run a planner command of these words with the two as standard output and error: exit code."""
    with (
        mock.patch.object(sys, "argv", words),
        mock.patch.dict(
            os.environ, {"COLUMNS": str(COLUMNS), "PLANNER_CACHE": "off", **environment}
        ),
        contextlib.redirect_stdout(screen),
        contextlib.redirect_stderr(errors),
    ):
        try:
            PROGRAMS[words[0]]()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def run(command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a planner command: exit code, standard output and error together."""
    words = shlex.split(command, comments=True)
    target = None
    if ">" in words:
        words, target = words[: words.index(">")], words[-1]
    screen, errors = io.StringIO(), io.StringIO()
    code = run_on(screen, errors, words, environment or {})
    if target:
        Path(target).write_text(screen.getvalue(), encoding="utf-8")
        return code, errors.getvalue()
    return code, screen.getvalue() + errors.getvalue()
