"""A question is held to what the format of its files can say."""

from dataclasses import replace

import pytest
from contexts import context_of

from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.registry import load_format
from planner.frameworks.settings import with_optimizer
from planner.notes import Problems
from planner.query.narrowing import expressible, with_values
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.space.narrow import read_narrowing

SMALL = {"global_batch": 16, "seq_len": 512}


def kept(
    *contexts: Context, emit: str | None = None, problems: Problems | None = None
) -> tuple[Context, ...]:
    fmt = load_format(emit) if emit else None
    return expressible(contexts, fmt, problems or Problems())


def test_a_format_that_says_less_narrows_the_space() -> None:
    context = context_of(framework="deepspeed")
    support = kept(context, emit="trainer")[0].traits.support
    assert "tp" not in support.features
    assert support.partial_offload_zero_stages == ()
    assert [code for code in support.offload if "nvme" in code] == []
    assert kept(context, emit="deepspeed") == (context,)


def test_only_schedules_of_framework_and_format_stay() -> None:
    context = context_of(profile="zero-bubble")
    both = kept(replace(context, schedules=("1f1b", "zb-h1")), emit="megatron")[0]
    assert both.schedules == both.traits.support.schedules == ("1f1b",)


def test_what_no_file_can_say_is_refused_before_a_search() -> None:
    others = r"MLP side by side\n.*other software: --emit accelerate, deepspeed, trainer$"
    with pytest.raises(ExpressError, match=others):
        kept(context_of(model="falcon-7b"), emit="megatron")
    context = context_of(framework="deepspeed")
    other = replace(context, traits=with_optimizer(context.traits, "adam-bf16"))
    with pytest.raises(ExpressError, match="optimizer adam-bf16"):
        kept(other, emit="trainer")


def test_without_files_it_is_noted() -> None:
    problems = Problems()
    assert len(kept(context_of(model="falcon-7b"), problems=problems)) == 1
    (note,) = problems.notes
    assert not note.is_assumed
    assert "--emit has no files for megatron" in note.text
    assert "side by side; files of other software: --emit accelerate, " in note.text


@pytest.mark.parametrize(
    ("model", "framework"),
    [
        ("kimi-linear-48b-a3b", "accelerate"),
        ("falcon-h1-7b", "accelerate"),
        ("minimax-m1-456b", "megatron"),  # FSDP would gather a quarter of HBM and more
        ("nemotron-h-8b", "megatron"),
        ("qwen3-next-80b-a3b", "megatron"),
        ("falcon-7b", "megatron"),
    ],
)
def test_software_that_starts_the_layers_is_usual(model: str, framework: str) -> None:
    (context,) = resolve(Query.of(model, "64xdgx-h100")).contexts
    assert context.traits.name == framework


def test_software_that_does_not_run_on_the_accelerators_is_not_named() -> None:
    problems = Problems()
    kept(
        context_of(cluster="8xtpu-v5p", framework="torchtitan", profile="maxtext"),
        problems=problems,
    )
    assert [note.text.partition("; files of other software")[1] for note in problems.notes] == [""]


def test_of_several_frameworks_those_without_words_are_left_out() -> None:
    problems = Problems()
    both = (context_of(model="falcon-7b"), context_of(model="falcon-7b", framework="accelerate"))
    found = kept(*both, problems=problems)
    assert [context.traits.name for context in found] == ["accelerate"]
    assert "left out, not in Megatron-LM: megatron" in problems.notes[-1].text


def test_files_of_one_framework_leave_the_others_out() -> None:
    both = (context_of(), context_of(framework="deepspeed"))
    for name, left in (("bridge", "megatron"), ("accelerate", "deepspeed")):
        found = kept(*both, emit=name)
        assert " ".join(context.traits.name for context in found) == left


def test_a_precision_that_a_framework_lacks_is_refused_by_name() -> None:
    query = Query.of("llama3-8b", "1xdgx-h100", precision="fp8", **SMALL)
    with pytest.raises(
        InputError, match=r"deepspeed \(current\) trains in bf16, fp16, fp32, tf32; given fp8"
    ):
        resolve(query.with_(framework="deepspeed"))
    found = resolve(query.with_(framework="any"))
    assert {context.traits.name for context in found.contexts} == {"megatron", "accelerate"}
    assert [note.text for note in found.notes if "--precision" in note.text] == [
        "left out for --precision fp8: deepspeed, torchtitan"
    ]


def test_modules_for_a_framework_without_selective_recomputation_are_refused() -> None:
    query = Query.of("llama3-8b", "1xdgx-h100", framework="accelerate", **SMALL)
    with pytest.raises(InputError, match=r"accelerate \(current\) has no selective recomputation"):
        resolve(query.with_(recompute_modules="every_second_matmul"))


def test_a_policy_that_a_framework_lacks_is_refused_by_name() -> None:
    narrowing = read_narrowing(fix=("recompute=selective",))
    with pytest.raises(InputError, match="accelerate does not offer selective"):
        with_values((context_of(framework="accelerate"),), narrowing, Problems())
    (left,) = with_values((context_of(),), narrowing, Problems())
    assert left.traits.name == "megatron"
