"""Configurations of the demo format (tests/fake_format.py), checked for llama3-8b on 16 GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.check.check import check_file
from planner.check.result import FileResult
from planner.formats.format import Format
from planner.query.from_file import Request

SOUND = {"tp": 2, "zero": 1, "micro": 1, "batch": 128, "sequence_parallel": "true"}


@pytest.fixture
def demo_text() -> Callable[..., str]:
    """A sound configuration with some keys changed; None leaves a key out."""

    def text(**changes: object) -> str:
        keys = {key: value for key, value in (SOUND | changes).items() if value is not None}
        return "\n".join(["# demo", *(f"{key} {value}" for key, value in keys.items())])

    return text


@pytest.fixture
def check_demo(
    tmp_path: Path, demo_format: Format, demo_text: Callable[..., str]
) -> Callable[..., FileResult]:

    def check(request: dict[str, Any] | None = None, **changes: object) -> FileResult:
        path = tmp_path / "run.demo"
        path.write_text(demo_text(**changes))
        asked = {"model": "llama3-8b", "cluster": "2xdgx-h100", "with_advice": False}
        return check_file(str(path), Request(**(asked | (request or {}))))

    return check
