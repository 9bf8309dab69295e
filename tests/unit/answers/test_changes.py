"""What would fit, typed in as it is said."""

import json
from functools import cache

import pytest
from in_process import planner

from planner.answers.nothing_fits import NothingFits, explain_nothing
from planner.answers.remedies import Remedy
from planner.query.query import Query
from planner.query.resolve import resolve

QUESTIONS = {
    "a part of a node": ("llama2-7b", "1xrtx4090", "deepspeed", 2048, ()),
    "without offload": ("llama2-7b", "8xl4", "accelerate", 24576, ("offload",)),
}


@cache
def nothing_of(name: str) -> NothingFits:
    model, cluster, framework, seq_len, forbidden = QUESTIONS[name]
    words = {"framework": framework, "precision": "bf16", "seq_len": seq_len}
    return explain_nothing(resolve(Query.of(model, cluster, forbid=forbidden, **words)))


def typed(name: str, remedy: Remedy) -> list[str]:
    model, cluster, framework, seq_len, forbidden = QUESTIONS[name]
    given = {"--framework": framework, "--seq-len": str(seq_len)}
    if "--forbid" not in remedy.change.words:
        given |= dict(zip(["--forbid"], forbidden, strict=False))
    repeated: list[str] = []
    for option, value in zip(remedy.change.options[::2], remedy.change.options[1::2], strict=True):
        if option == "--set":
            repeated += [option, value]
        else:
            given[option] = value
    options = [word for pair in given.items() for word in pair]
    place = remedy.change.cluster or cluster
    return ["plan", model, place, *options, *repeated, "--top", "1", "--format", "json"]


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_change_gives_the_plan_and_the_time_it_promises(name: str) -> None:
    found = nothing_of(name)
    assert len(found.remedies) >= 2
    for one in found.remedies:
        run = planner(*typed(name, one))
        assert run.code == 0, (one.change.words, run.err)
        best, iter_time_s = json.loads(run.out)["plans"][0], one.plan.estimate.iter_time_s
        if one.plan.is_optimal:
            assert best["iter_time_s"] == pytest.approx(iter_time_s), one.change.words


def test_what_costs_nothing_comes_first_and_nodes_last() -> None:
    words = [one.change.words for one in nothing_of("without offload").remedies]
    kinds = ["without --forbid", "--set", "--optimizer", "--seq-len", "--framework", "more GPUs"]
    places = [next(i for i, text in enumerate(words) if kind in text) for kind in kinds]
    assert places == sorted(places)
    assert places[-1] == len(words) - 1


def test_the_longest_sequence_that_fits_is_found_and_one_step_more_does_not() -> None:
    options = [one.change.options for one in nothing_of("without offload").remedies]
    length = next(int(words[1]) for words in options if words[:1] == ("--seq-len",))
    model, cluster, framework, _, _ = QUESTIONS["without offload"]
    question = ("plan", model, cluster, "--framework", framework, "--forbid", "offload")
    batch = ("--global-batch", "128", "--top", "1", "--set", "reduction=last-micro-batch")
    fitting, longer = (
        planner(*question, *batch, "--seq-len", str(tokens)) for tokens in (length, length + 128)
    )
    assert fitting.code == 0
    assert "tight: no plan leaves the margin free" not in fitting.out
    assert longer.code == 3 or "tight: no plan leaves the margin free" in longer.out


def test_a_node_is_filled_before_nodes_are_added_and_frozen_weights_are_named() -> None:
    found = nothing_of("a part of a node")
    words = [one.change.words for one in found.remedies]
    assert words[0].endswith("of the node (4xrtx4090)")
    assert any(text.startswith("--host-memory ") for text in words)
    assert not any("x pcie" in text for text in words)
    taken = "12.55 GiB in 16 bits (--train lora) or 3.24 GiB in 4 bits (--train qlora)"
    assert taken in found.lines()[-1]
