"""A question is held to what the format of its files can say."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cli.formats import expressible
from planner.cli.inputs import Question, read_question
from planner.cli.narrowing import offering
from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.registry import load_format
from planner.frameworks.settings import with_optimizer
from planner.search.space.narrow import read_narrowing

Contexts = Callable[..., Context]


def asked(*contexts: Context) -> Question:
    return Question(contexts=contexts, notes=("first",))


def test_a_format_that_says_less_narrows_the_space(context_of: Contexts) -> None:
    question = asked(context_of(framework="deepspeed"))
    support = expressible(question, load_format("trainer")).contexts[0].traits.support
    assert not support.tp
    assert support.offload_percents == (100,)
    assert [code for code in support.offload if "nvme" in code] == []
    assert expressible(question, load_format("deepspeed")).contexts == question.contexts


def test_only_schedules_of_framework_and_format_stay(context_of: Contexts) -> None:
    context = context_of(profile="zero-bubble")
    both = replace(context, schedules=("1f1b", "zb-h1"))
    kept = expressible(asked(both), load_format("megatron")).contexts[0]
    assert kept.schedules == kept.traits.support.schedules == ("1f1b",)
    only = replace(context, schedules=("zb-h1",))
    with pytest.raises(ExpressError, match=r"--schedule; allowed are 1f1b"):
        expressible(asked(only), load_format("megatron"))


def test_what_no_file_can_say_is_refused_before_a_search(context_of: Contexts) -> None:
    falcon = asked(context_of(model="falcon-7b"))
    with pytest.raises(ExpressError, match="attention and MLP side by side"):
        expressible(falcon, load_format("megatron"))
    context = context_of(framework="deepspeed")
    lion = replace(context, traits=with_optimizer(context.traits, "adam-bf16"))
    with pytest.raises(ExpressError, match="optimizer adam-bf16"):
        expressible(asked(lion), load_format("trainer"))


def test_without_files_it_is_noted(context_of: Contexts) -> None:
    question = expressible(asked(context_of(model="falcon-7b")), None)
    assert len(question.contexts) == 1
    first, note = question.notes
    assert first == "first"
    assert "--emit refuses them" in note
    assert "attention and MLP side by side" in note


def test_of_several_frameworks_those_without_words_are_left_out(context_of: Contexts) -> None:
    both = asked(
        context_of(model="falcon-7b"), context_of(model="falcon-7b", framework="accelerate")
    )
    question = expressible(both, None)
    assert [context.traits.name for context in question.contexts] == ["accelerate"]
    assert "left out, not in Megatron-LM: megatron" in question.notes[-1]


def test_files_of_one_framework_leave_the_others_out(context_of: Contexts) -> None:
    both = asked(context_of(), context_of(framework="deepspeed"))
    for name, kept in (("bridge", "megatron"), ("accelerate", "megatron deepspeed")):
        question = expressible(both, load_format(name))
        assert " ".join(context.traits.name for context in question.contexts) == kept


def test_a_precision_that_a_framework_lacks_is_refused_by_name() -> None:
    question = {
        "model": "llama3-8b",
        "cluster": "1xdgx-h100",
        "precision": "fp8",
        "global_batch": 16,
        "global_batch_tokens": None,
        "seq_len": 512,
        "tokens": None,
        "margin_percent": None,
    }
    with pytest.raises(
        InputError, match=r"deepspeed \(current\) trains in bf16, fp16, fp32, tf32; given fp8"
    ):
        read_question(framework="deepspeed", **question)  # type: ignore[arg-type]
    made = read_question(framework="any", **question)  # type: ignore[arg-type]
    assert {context.traits.name for context in made.contexts} == {"megatron", "accelerate"}
    assert sum("left out for --precision fp8" in note for note in made.notes) == 2


def test_modules_for_a_framework_without_selective_recomputation_are_refused() -> None:
    with pytest.raises(InputError, match=r"accelerate \(current\) has no selective recomputation"):
        read_question(
            model="llama3-8b",
            cluster="1xdgx-h100",
            framework="accelerate",
            precision="bf16",
            global_batch=16,
            global_batch_tokens=None,
            seq_len=512,
            tokens=None,
            margin_percent=None,
            recompute_modules="every_second_matmul",
        )


def test_a_policy_that_a_framework_lacks_is_refused_by_name(context_of: Contexts) -> None:
    narrowing = read_narrowing(fix=("recompute=selective",))
    with pytest.raises(InputError, match="accelerate does not offer selective"):
        offering(asked(context_of(framework="accelerate")), narrowing)
    kept = offering(asked(context_of()), narrowing).contexts
    assert [context.traits.name for context in kept] == ["megatron"]
