"""ZenFlow as users name it: what is usual, and what DeepSpeed would refuse."""

import pytest

from planner.spec.changes import is_change, read_change
from planner.spec.exchange import PLAIN, read_exchange
from planner.spec.zenflow import NO_ZENFLOW, ZenFlow, is_zenflow, read_zenflow


@pytest.mark.parametrize(
    "text",
    [
        "zenflow",
        "zenflow:topk_ratio=0.05:update_interval=8",
        "zenflow:select_interval=16:overlap_step=false:offload=true",
        "zenflow:pt_reserved_cores_perc=0.25",
    ],
)
def test_what_is_read_is_said_in_words_that_are_read_alike(text: str) -> None:
    zenflow = read_zenflow(text)
    assert read_zenflow(zenflow.text) == zenflow
    assert read_change(zenflow.text) == zenflow
    assert zenflow.inputs == {"zenflow": zenflow.text}


def test_usual_values_are_deepspeeds_and_its_tutorials() -> None:
    assert read_zenflow(" ZenFlow ") == ZenFlow(topk_ratio=0.1, update_interval=4)
    assert read_zenflow("zenflow").text == "zenflow:topk_ratio=0.1:update_interval=4"
    assert (NO_ZENFLOW.text, NO_ZENFLOW.inputs) == ("plain", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zenflow:topk_ratio=0", "above 0 and below 1; given 0"),
        ("zenflow:topk_ratio=1", "above 0 and below 1; given 1"),
        ("zenflow:topk_ratio=nan", "above 0 and below 1; given nan"),
        ("zenflow:update_interval=0", "from 1 to 100000; given 0"),
        ("zenflow:update_interval=2.5", "must be a whole number; given 2.5"),
        ("zenflow:update_interval=inf", "from 1 to 100000; given inf"),
        ("zenflow:overlap_step=1", "must be true or false; given '1'"),
        ("zenflow:offload=yes", "must be true or false; given 'yes'"),
        ("zenflow:ratio=0.1", "keys are topk_ratio, update_interval"),
        ("zenflow:", "takes KEY=VALUE; given ''"),
        ("zenflow:topk_ratio=0.1:topk_ratio=0.2", "says topk_ratio twice"),
        ("zenflow:update_interval=four", "must be a number; given 'four'"),
        ("zenflow:select_interval=2", "no more often than the host steps"),
        ("zen", "allowed is zenflow"),
    ],
)
def test_what_is_wrong_with_a_word_is_said_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"given|allowed|twice") as error:
        read_zenflow(text)
    assert said in str(error.value)


def test_changes_of_training_are_told_apart_by_their_name() -> None:
    assert is_zenflow("ZenFlow:topk_ratio=0.1")
    assert not is_zenflow("powersgd:rank=2")
    assert is_change("zenflow")
    assert is_change("powersgd:rank=2")
    assert not is_change("offload")
    assert read_change("powersgd:rank=2") == read_exchange("powersgd:rank=2")
    assert read_change("plain") == PLAIN
