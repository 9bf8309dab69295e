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


NONE = {"megatron": 0, "deepspeed": 0, "accelerate": 0}
OWN = "megatron: trained with its 1 layer of multi-token prediction (default;"
OTHERS = "deepspeed, torchtitan, accelerate: trained without glm-4.5-air's 1 layer of multi-token"
OLD = "megatron: trained without glm-4.5-air's 1 layer of multi-token prediction"


@pytest.mark.parametrize(
    ("changes", "layers", "said"),
    [
        ({}, NONE | {"megatron": 1}, [OWN, OTHERS]),
        ({"framework": "megatron", "profile": "zero-bubble"}, {"megatron": 0}, [OLD]),
        ({"mtp_layers": 0}, NONE, []),
        # Frameworks that train none are left out where some are asked for.
        ({"mtp_layers": 2}, {"megatron": 2}, ["left out for --mtp-layers 2: deepspeed"]),
    ],
)
def test_layers_are_the_models_own_or_those_asked_for_where_that_is_planned(
    changes: dict[str, Any], layers: dict[str, int], said: list[str]
) -> None:
    question = asked(**changes)
    assert {each.traits.name: each.job.mtp_layers for each in question.contexts} == layers
    notes = "\n".join(map(str, question.notes))
    assert all(text in notes for text in said), notes
    assert ("multi-token" in notes or "--mtp-layers" in notes) is bool(said)


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
