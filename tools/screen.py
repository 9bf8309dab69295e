"""Draws docs/screen.svg: a terminal of 80 columns and 24 rows with the answer to a question."""

import io
import re
import shlex

from rich.console import Console
from rich.text import Text

from tools.commands import COLUMNS, PROMPT, run_on

COMMAND = "planner plan llama3.1-70b 16xdgx-h100 --seq-len 8192 --tokens 15T"
ROWS = 24
COLOURS = {"TERM": "xterm-256color", "COLORTERM": "", "NO_COLOR": "", "LINES": str(ROWS)}
FETCHED_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Terminal(io.StringIO):
    """What a command writes, as if a person read it."""

    def isatty(self) -> bool:
        """Colours and the terminal's width are wanted."""
        return True


def rows() -> list[str]:
    """The prompt, and what the command writes, as far as a screen shows it without scrolling."""
    screen, errors = Terminal(), io.StringIO()
    if run_on(screen, errors, shlex.split(COMMAND), COLOURS):
        raise ValueError(f"{COMMAND}: {errors.getvalue()}")
    return [PROMPT + COMMAND, *screen.getvalue().splitlines()][:ROWS]


def screen_picture() -> str:
    """Return the SVG; it names no font that would be fetched."""
    console = Console(
        record=True, width=COLUMNS, height=ROWS, file=io.StringIO(), color_system="256"
    )
    for row in rows():
        console.print(Text.from_ansi(row))
    return FETCHED_FONT.sub("", console.export_svg(title="planner", unique_id="screen"))
