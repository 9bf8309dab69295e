"""`planner why`: messages, exit codes, and no traceback for nonsense."""

import json

import pytest
from in_process import json_of, planner

SMALL = ("why", "llama3-8b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "4096")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to find what conflicts than a user would wait."""
    for name in ("CONFLICT_S", "SHORTAGE_S", "CHANGES_S"):
        monkeypatch.setattr(f"planner.answers.base.Deadline.{name}", 600.0)


def test_json_sums_to_the_difference() -> None:
    found = json_of(*SMALL, "--fix", "tp=8")
    assert found["verdict"] == "slower"
    assert found["options"] == ["--fix tp=8"]
    difference = found["asked"]["iter_time_s"] - found["best"]["iter_time_s"]
    both = found["comparison"]
    assert sum(item["difference_s"] for item in both["time"]) == pytest.approx(difference)
    assert both["slower_by"] == pytest.approx(difference / found["best"]["iter_time_s"])
    assert both["layout"]["tp"][0] == "8"
    assert both["within_error"] is False
    assert 0.0 < both["ratio_error"]["typical"] < both["ratio_error"]["widest"]
    assert both["gpu_time_factor"] == pytest.approx(1.0 + both["slower_by"])
    assert found["nothing_fits"] is None


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


@pytest.mark.usefixtures("patient")
def test_what_does_not_fit_is_told_in_words() -> None:
    text = planner(*SMALL, "--fix", "tp=1,pp=1,zero=0,micro_batch=8", "--forbid", "recompute")
    assert text.code == 3
    assert text.out.startswith("nothing fits: ")
    assert "the fewest limits that no layout keeps together:" in text.out
    assert "what would fit" in text.out
