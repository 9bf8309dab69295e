"""The JSON of a few questions stays what it was, up to floating-point noise."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
QUESTIONS = {
    "llama3-8b_2xdgx-h100": ["llama3-8b", "2xdgx-h100", "--tokens", "1T", "--top", "3"],
    "gpt3-13b_4xdgx-a100-640_any": ["gpt3-13b", "4xdgx-a100-640", "--framework", "any"],
    "mixtral-8x7b_8xdgx-h100": ["mixtral-8x7b", "8xdgx-h100", "--global-batch", "256"],
}


def ask(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "planner.cli.app", "plan", *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    del answer["search"]["seconds"], answer["planner_version"]
    return answer


def same(left: Any, right: Any, path: str = "") -> None:
    if isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            same(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right, strict=True)):
            same(*pair, f"{path}[{index}]")
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-9), path
    else:
        assert left == right, path


@pytest.mark.parametrize("name", QUESTIONS)
def test_answer_equals_the_golden_file(name: str) -> None:
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    same(ask(QUESTIONS[name]), golden)


if __name__ == "__main__":
    for name, arguments in QUESTIONS.items():
        text = json.dumps(ask(arguments), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text)
