"""`planner why`: messages, exit codes, and no traceback for nonsense."""

import json

import pytest
from in_process import planner

SMALL = ("why", "llama3-8b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "4096")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to find what conflicts than a user would wait."""
    for name in ("CONFLICT_S", "SHORTAGE_S", "CHANGES_S"):
        monkeypatch.setattr(f"planner.answers.base.Deadline.{name}", 600.0)


@pytest.mark.usefixtures("patient")
def test_what_does_not_fit_exits_3_and_says_what_would() -> None:
    options = ("--fix", "tp=1,pp=1,zero=0", "--forbid", "offload", "--format", "json")
    run = planner(*SMALL, *options)
    assert run.code == 3
    found = json.loads(run.out)
    assert found["verdict"] == "does not fit"
    nothing = found["nothing_fits"]
    assert nothing["conflict"][0] == "HBM"
    nearest = nothing["nearest"]
    assert nearest["missing_bytes"] > 0
    assert nearest["limit"] == "HBM"
    assert all(item["num_bytes"] > 0 for item in nearest["ledger"]["items"])
    assert any(change["change"].startswith("without --") for change in nothing["changes"])
