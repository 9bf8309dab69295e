"""Configurations of the demo format (tests/fake_format.py), checked for llama3-8b on 16 GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_format import demo_text

from planner.check.check import check_file
from planner.check.result import FileResult
from planner.formats.format import Format
from planner.query.from_file import Request


@pytest.fixture
def check_demo(tmp_path: Path, demo_format: Format) -> Callable[..., FileResult]:
    """Checks of a sound configuration with some keys changed."""

    def check(request: dict[str, Any] | None = None, **changes: object) -> FileResult:
        path = tmp_path / "run.demo"
        path.write_text(demo_text(**changes))
        asked = {"model": "llama3-8b", "cluster": "2xdgx-h100", "with_advice": False}
        return check_file(str(path), Request(**(asked | (request or {}))))

    return check
