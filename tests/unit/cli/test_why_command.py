"""`planner why`: messages, exit codes, and no traceback for nonsense."""

import json
from typing import Any

import pytest

SMALL = ("why", "llama3-8b", "2xdgx-h100", "--global-batch", "64", "--seq-len", "4096")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to find what conflicts than a user would wait."""
    for name in ("CONFLICT_S", "SHORTAGE_S", "CHANGES_S"):
        monkeypatch.setattr(f"planner.answers.base.Deadline.{name}", 600.0)


@pytest.mark.parametrize("width", [80, 120])
def test_a_slower_layout_is_compared_item_by_item(
    planner: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run = planner(*SMALL, "--fix", "tp=8")
    assert run.code == 0
    assert run.err == ""
    assert run.out.startswith("--fix tp=8: ")
    assert "slower than the best plan" in run.out
    for word in (
        "asked:",
        "best:",
        "mostly",
        "ratios of",
        "time",
        "iteration",
        "layout",
        "memory left free",
    ):
        assert word in run.out
    assert max(len(line) for line in run.out.splitlines()) <= width


def test_the_best_plan_is_called_so(planner: Any) -> None:
    run = planner(*SMALL, "--where", "dp >= 1")
    assert run.code == 0
    assert "the best plan of all keeps this" in run.out
    assert "mostly" not in run.out
    assert "asked:" not in run.out


def test_json_sums_to_the_difference(planner: Any) -> None:
    run = planner(*SMALL, "--fix", "tp=8", "--format", "json")
    found = json.loads(run.out)
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
def test_what_does_not_fit_exits_3_and_says_what_would(planner: Any) -> None:
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
def test_what_does_not_fit_is_told_in_words(planner: Any) -> None:
    text = planner(*SMALL, "--fix", "tp=1,pp=1,zero=0,micro_batch=8", "--forbid", "recompute")
    assert text.code == 3
    assert text.out.startswith("nothing fits: ")
    assert "the fewest limits that no layout keeps together:" in text.out
    assert "what would fit" in text.out


def test_an_illegal_layout_exits_3_and_names_the_rules(planner: Any) -> None:
    run = planner(*SMALL, "--fix", "tp=3")
    assert run.code == 3
    assert "tp_divides_heads" in run.out
    assert "tp 3 does not divide 32 heads" in run.out
    assert run.err == ""


def test_limits_that_contradict_leave_nothing_and_exit_3(planner: Any) -> None:
    run = planner(*SMALL, "--fix", "tp=8", "--limit", "tp<=4")
    assert run.code == 3
    assert "--fix tp=8 and --limit tp<=4 leave no tp; the nearest that would do is tp=4" in run.err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ((), ["--fix: needed"]),
        (("--allow", "cross-domain-tp"), ["--fix: needed"]),
        (("--fix", "tq=3"), ["unknown dimension 'tq'", "tp"]),
        (("--fix", "tp=x"), ["tp takes whole numbers"]),
        (("--fix", "tp=0"), ["tp takes whole numbers"]),
        (("--where", "__import__('os')"), ["--where"]),
        (("--forbid", "nonsense", "--limit", "tp"), ["--forbid", "--limit"]),
        (
            ("--fix", "tp=8", "--limit", "tp<=4", "--forbid", "nonsense"),
            ["--fix tp=8 and --limit tp<=4 leave no tp", "nonsense"],
        ),
        (("--fix", "tp=2", "--framework", "megatrn"), ["did you mean megatron"]),
        (("--fix", ""), ["--fix"]),
        (("--fix", "tp=" + "9" * 1900), ["--fix"]),
    ],
)
def test_nonsense_exits_2_with_messages(
    planner: Any, arguments: tuple[str, ...], messages: list[str]
) -> None:
    run = planner(*SMALL, *arguments)
    assert run.code == 2
    assert run.out == ""
    assert "Traceback" not in run.err
    for message in messages:
        assert message in run.err


def test_a_schedule_and_a_placement_are_a_layout_to_ask_about(planner: Any) -> None:
    run = planner(*SMALL, "--profile", "zero-bubble", "--schedule", "zb-v")
    assert run.out.startswith("--fix schedule=zb-v: ")
    assert planner(*SMALL, "--schedule", "all").code == 2
