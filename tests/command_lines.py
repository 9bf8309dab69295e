"""Command lines with hostile words: whatever is typed, the program ends as its manual says."""

import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from planner.cli.app import main
from planner.search.space.space import Columns, Enumeration

EXAMPLES = Path(__file__).parent / "examples"
EXIT_CODES = (0, 1, 2, 3, 4)
LONGEST_LINE = 4000  # of an error: what was given is shown in part
MOST_WORDS = 60
"""Of a line: the option library repeats all words too many, and every file named is checked."""
OUTPUTS = ("--save", "--out", "--apply", "--emit", "--detect")
"""Options that write files, or run other programs."""
SHAPES = Enumeration.shapes


def run_line(path: Path) -> None:
    """Run the program with the words of a file: nothing comes of it but its own exit codes.

    Searches look at nothing: their time is over when they start.
    """
    words = _words(path.read_bytes().decode("utf-8", "surrogateescape"))[:MOST_WORDS]
    if any(option in word for word in words for option in OUTPUTS):
        return
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(Enumeration, "shapes", _nothing),
        mock.patch.object(sys, "argv", ["planner", *words]),
        mock.patch.dict("os.environ", PLANNER_TRACEBACK="1"),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = _exit_code()
    assert code in EXIT_CODES, err.getvalue()
    assert all(len(line) <= LONGEST_LINE for line in err.getvalue().splitlines())
    assert "\x1b" not in err.getvalue() + out.getvalue()


def _words(text: str) -> list[str]:
    text = text.replace("\0", "").replace("{examples}", str(EXAMPLES))
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _nothing(enumeration: Enumeration, until: float | None = None) -> Columns:
    return SHAPES(enumeration, 0.0)


def _exit_code() -> object:
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return None
