"""``--mtp-layers``: the model's own where the framework trains them, else said and refused."""

from pathlib import Path
from typing import Any

import pytest
from in_process import json_of

from planner.answers.plan_file import read_plan
from planner.cost.estimate import estimate
from planner.query.query import Query
from planner.query.resolve import Resolved, resolve


def asked(**changes: Any) -> Resolved:
    question = {"model": "glm-4.5-air", "cluster": "8xdgx-h100", "framework": "any"}
    question |= {"precision": "bf16", "global_batch": 64, "seq_len": 4096}
    return resolve(Query.of(**{**question, **changes}))


def trained(question: Resolved) -> dict[str, int]:
    return {each.traits.name: each.job.mtp_layers for each in question.contexts}


def test_the_models_own_are_trained_where_that_is_planned() -> None:
    question = asked()
    found = trained(question)
    assert found.pop("megatron") == 1
    assert set(found.values()) == {0}
    notes = "\n".join(map(str, question.notes))
    assert "megatron: trained with its 1 layer of multi-token prediction (default;" in notes
    assert "accelerate: trained without glm-4.5-air's 1 layer" in notes


def test_a_profile_from_before_trains_none() -> None:
    assert trained(asked(framework="megatron", profile="zero-bubble")) == {"megatron": 0}


def test_none_can_be_asked_for() -> None:
    question = asked(mtp_layers=0)
    assert set(trained(question).values()) == {0}
    assert len(question.contexts) == len(asked().contexts)
    assert "multi-token" not in "\n".join(map(str, question.notes))


def test_frameworks_that_train_none_are_left_out_where_some_are_asked_for() -> None:
    question = asked(mtp_layers=2)
    assert trained(question) == {"megatron": 2}
    assert any("left out, planned without multi-token" in note.text for note in question.notes)


def test_a_saved_plan_keeps_them(tmp_path: Path) -> None:
    saved = tmp_path / "plan.yaml"
    words = ("plan", "glm-4.5-air", "8xdgx-h100", "--framework", "megatron")
    words += ("--global-batch", "64", "--seq-len", "4096", "--top", "1", "--fix", "pp=4,tp=1,ep=8")
    answer = json_of(*words, "--save", str(saved))
    assert answer["inputs"]["mtp_layers"] == 1
    assert "mtp_layers: 1\n" in saved.read_text(encoding="utf-8")
    context, strategy, _ = read_plan(saved)
    again = estimate(context, strategy)
    assert again.iter_time_s == pytest.approx(answer["plans"][0]["iter_time_s"], rel=1e-12)
