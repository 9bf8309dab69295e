"""Every form of findings is, byte for byte, what it was.

Regenerate after a deliberate change: ``python tests/golden/findings/test_golden_findings.py``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from results import RESULTS

from planner.check.result import FileResult
from planner.report.document import serialise
from planner.report.findings import (
    check_document,
    render_github,
    render_junit,
    render_sarif,
    render_text,
)

FOLDER = Path(__file__).parent
FORMS: dict[str, Callable[[Sequence[FileResult]], str]] = {
    "findings.txt": render_text,
    "findings.json": lambda results: serialise("check", check_document(results)),
    "findings.sarif": render_sarif,
    "findings.github": render_github,
    "findings.xml": render_junit,
}


@pytest.mark.parametrize("name", FORMS)
def test_findings_are_unchanged(name: str) -> None:
    assert f"{FORMS[name](RESULTS)}\n" == (FOLDER / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, render in FORMS.items():
        (FOLDER / name).write_text(f"{render(RESULTS)}\n", encoding="utf-8")
