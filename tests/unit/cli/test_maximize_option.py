"""`planner plan --maximize`: verdict first, what binds, and where nothing fits."""

import json
from typing import Any

import pytest

WRONG = ("--precision", "bf17", "--tp", "x", "--maximize", "seq-len")
LAYOUT = ("--tp", "2", "--pp", "1", "--recompute", "none", "--forbid", "offload")
SMALL = ("plan", "gpt3-xl", "2xa100-40", *LAYOUT, "--maximize", "micro-batch")


def test_both_values_come_with_what_binds_them_and_their_layout(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = planner(*SMALL)
    assert run.code == 0
    lines = run.out.splitlines()
    assert lines[2].startswith("Largest micro-batch at 2,048 tokens: ")
    assert lines[2].endswith(" needs more device memory.")
    assert "TP 2, micro-batch" in run.out
    assert "Longest sequence at micro-batch 1: " in run.out
    assert "gpt3-xl was made for sequences of 2,048 tokens." in run.out
    assert "Next: planner plan gpt3-xl 2xa100-40 --tp 2" in run.out
    assert max(map(len, lines[:-2])) <= 80


def test_the_document_holds_the_values_and_their_plans(planner: Any) -> None:
    found = json.loads(planner(*SMALL, "--format", "json").out)
    batch, length = found["largest"]
    assert batch["value"] == batch["micro_batch"] == batch["plan"]["strategy"]["micro_batch"]
    assert length["value"] == length["seq_len"]
    assert batch["binds"] == length["binds"] == ["device memory"]
    assert batch["resident"] is None


@pytest.mark.parametrize("options", [("--micro-batch", "2"), ("--micro-batch", "2|4")])
def test_a_fixed_micro_batch_is_kept(planner: Any, options: tuple[str, ...]) -> None:
    run = planner(*SMALL, *options)
    assert "Largest micro-batch" not in run.out
    assert "Longest sequence at micro-batch 2: " in run.out


def test_nothing_that_fits_is_explained(planner: Any) -> None:
    run = planner(
        "plan", "llama3.1-70b", "1xa100-40", "--forbid", "offload", "--maximize", "seq-len"
    )
    assert run.code == 3
    assert run.err.startswith("nothing fits: llama3.1-70b on 1 x a100")


def test_wrong_words_are_named_together(planner: Any) -> None:
    run = planner("plan", "nosuch", "2xa100-40", *WRONG)
    assert run.code == 2
    assert "nosuch" in run.err
    assert "--precision" in run.err
    assert "tp" in run.err


def test_lengths_alone_are_asked_for(planner: Any) -> None:
    run = planner(*SMALL[:-1], "seq-len")
    assert "Largest micro-batch" not in run.out
    assert "Longest sequence at micro-batch 1: " in run.out


@pytest.mark.parametrize(
    "options",
    [("--save", "plan.yaml"), ("--versus", "tp=1"), ("--format", "csv"), ("--objective", "cost")],
)
def test_what_belongs_to_a_ranking_is_refused(planner: Any, options: tuple[str, str]) -> None:
    run = planner(*SMALL, *options)
    assert (run.code, run.out) == (2, "")
    assert run.err.count("\n") == 1
