"""The first screen of every command is the whole answer on a terminal of 80 columns and 24 rows."""

import shlex

import pytest
from in_process import planner

WIDTH, HEIGHT = 80, 24
SHEET = "tests/golden/screens/zero2.json"
COMMANDS = {
    "plan": "plan llama3-8b 2xdgx-h100 --global-batch 64",
    "plan-job": "plan mixtral-8x7b 2xdgx-h100 --global-batch 64 --tokens 1T",
    "plan-lora": "plan llama3.1-8b 1xrtx4090 --train qlora --framework trainer --seq-len 2k",
    "memory": "memory llama3.1-70b 4xdgx-h100 --tp 8 --pp 4 --dp 1",
    "memory-too-large": "memory llama3.1-70b 4xdgx-h100 --tp 8 --pp 1 --dp 4",
    "versus": "plan llama3-8b 4xdgx-h100 --global-batch 64 --tp 2 --versus precision=fp8",
    "largest": "plan llama3.1-70b 4xdgx-h100 --tp 8 --pp 4 --seq-len 8k --maximize micro-batch",
    "why": "why llama3-8b 1xdgx-h100 --tp 8 --global-batch 64",
    "size": "size llama3-8b dgx-h100 --tokens 1T --deadline 60d --max-gpus 64",
    "scale": "size llama3-8b dgx-h100 --gpus 8,16,32",
    "job": "job llama3-8b 8xdgx-h100 --tokens 1T --tp 1 --pp 1",
    "collective": "collective all-reduce 1GB 2xdgx-h100",
    "check": f"check {SHEET} --model llama3-8b --cluster 1xdgx-a100-320",
    "check-fix": f"check {SHEET} --fix --model llama3-8b --cluster 1xdgx-a100-320",
}
UNBROKEN = ("Next: ", f"  {SHEET}:")
"""A command to paste, and a place that an editor or a terminal opens."""
LONGER = {"why", "check-fix"}
"""Tables of causes and edits follow the verdict: what matters stands on the first screen."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_fits_one_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    shown = planner(*shlex.split(COMMANDS[name])).out
    lines = [line for line in shown.splitlines() if not line.startswith(UNBROKEN)]
    assert lines
    assert max(len(line.rstrip()) for line in lines) <= WIDTH
    assert "…" not in shown
    if name not in LONGER:
        assert len(shown.splitlines()) <= HEIGHT
