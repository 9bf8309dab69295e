"""`planner plan --maximize`: verdict first, what binds, and where nothing fits."""

import json

import pytest
from in_process import planner

LAYOUT = ("--tp", "2", "--pp", "1", "--recompute", "none", "--forbid", "offload")
SMALL = ("plan", "gpt3-xl", "2xa100-40", *LAYOUT, "--maximize", "micro-batch")


def test_both_values_come_with_what_binds_them_and_their_layout(
    monkeypatch: pytest.MonkeyPatch,
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


def test_the_document_holds_the_values_and_their_plans() -> None:
    found = json.loads(planner(*SMALL, "--format", "json").out)
    batch, length = found["largest"]
    assert batch["value"] == batch["micro_batch"] == batch["plan"]["strategy"]["micro_batch"]
    assert length["value"] == length["seq_len"]
    assert batch["binds"] == length["binds"] == ["device memory"]
    assert batch["resident"] is None
