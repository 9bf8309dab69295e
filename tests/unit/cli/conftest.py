from collections.abc import Callable
from dataclasses import dataclass

import pytest

from planner.cli.app import main


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def planner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """Run the program in this process."""

    def run(*arguments: str) -> Run:
        monkeypatch.setattr("sys.argv", ["planner", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Run(code=int(stop.value.code or 0), out=captured.out, err=captured.err)

    return run
