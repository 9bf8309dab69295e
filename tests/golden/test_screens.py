"""What people see first: the screens of commands at three widths stay what they were.

``python tests/golden/test_screens.py`` writes them anew; look at them before they are kept.
"""

import io
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from planner.cli.app import main

FOLDER = Path(__file__).parent / "screens"
SIZES = {80: 24, 120: 40, 160: 50}
POOLS = "tests/golden/screens/mixed.yaml"
SHEET = "tests/golden/screens/zero2.json"
COMMANDS = {
    "plan": "plan llama3-8b 2xdgx-h100 --global-batch 64",
    "plan-job": "plan mixtral-8x7b 2xdgx-h100 --global-batch 64 --tokens 1T",
    "plan-lora": "plan llama3.1-8b 1xrtx4090 --train qlora --framework trainer --seq-len 2k",
    "mixed": f"plan llama3.1-8b {POOLS} --global-batch 64 --tp '4|8' --micro-batch 1",
    "memory": "memory llama3.1-70b 4xdgx-h100 --tp 8 --pp 4 --dp 1",
    "memory-too-large": "memory llama3.1-70b 4xdgx-h100 --tp 8 --pp 1 --dp 4",
    "versus": "plan llama3-8b 4xdgx-h100 --global-batch 64 --tp 2 --versus precision=fp8",
    "largest": "largest llama3.1-70b 4xdgx-h100 --tp 8 --pp 4 --seq-len 8k",
    "why": "why llama3-8b 1xdgx-h100 --tp 8 --global-batch 64",
    "size": "size llama3-8b dgx-h100 --tokens 1T --deadline 60d --max-gpus 64",
    "scale": "scale llama3-8b dgx-h100 --gpus 8,16,32",
    "job": "job llama3-8b 8xdgx-h100 --tokens 1T --tp 1 --pp 1",
    "collective": "collective all-reduce 1GB 2xdgx-h100",
    "check": f"check {SHEET} --model llama3-8b --cluster 1xdgx-a100-320",
    "repair": f"repair {SHEET} 1xdgx-a100-320 --model llama3-8b",
}
UNBROKEN = ("Next: ", f"  {SHEET}:")
"""A command to paste, and a place that an editor or a terminal opens."""
LONGER = {"why", "repair"}
"""Tables of causes and edits follow the verdict: what matters stands on the first screen."""


def screen(command: str, width: int) -> str:
    """What a terminal of so many columns shows."""
    text = io.StringIO()
    with (
        patch.dict("os.environ", {"COLUMNS": str(width), "NO_COLOR": "1"}),
        patch("sys.argv", ["planner", *shlex.split(command)]),
        redirect_stdout(text),
        redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit),
    ):
        main()
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def screens() -> Iterator[tuple[str, int]]:
    for name in COMMANDS:
        for width in SIZES:
            yield name, width


@pytest.mark.parametrize(("name", "width"), list(screens()))
def test_the_screen_is_what_was_looked_at(name: str, width: int) -> None:
    shown = screen(COMMANDS[name], width)
    assert shown == (FOLDER / f"{name}-{width}.txt").read_text()
    lines = [line for line in shown.splitlines() if not line.startswith(UNBROKEN)]
    assert max(map(len, lines)) <= width
    assert "…" not in shown
    if name not in LONGER:
        assert len(shown.splitlines()) <= SIZES[width]


if __name__ == "__main__":
    for name, width in screens():
        (FOLDER / f"{name}-{width}.txt").write_text(screen(COMMANDS[name], width))
