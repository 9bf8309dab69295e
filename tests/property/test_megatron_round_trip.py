"""Megatron's format: what is written is read back, and scripts keep what is the user's."""

import re

import pytest
from depth import of_all
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_plans import CASES, SHARDED_CASES, draw, draw_sharded, planned, understood

from planner.errors import ExpressError, InputError
from planner.formats.format import SourceText
from planner.formats.registry import load_format

MEGATRON = load_format("megatron")
SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-8}          # of a node
DISTRIBUTED_ARGS=(
    --nproc_per_node 8
    --nnodes ${NNODES:-4}
)
GPT_MODEL_ARGS=( --hidden-size 4096 # width
    --num-layers 32
    --tensor-model-parallel-size ${TP}
    --sequence-parallel
)
OPTIONS=" \\
    --pipeline-model-parallel-size $TP \\
    --micro-batch-size 4 --global-batch-size=$((8*16)) \\
    --bf16"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} $OPTIONS \\
    --recompute-granularity full \\
    --recompute-method uniform --recompute-num-layers 1 \\
    --save $CHECKPOINTS/run --log-interval 10 2>&1 | tee log.txt
echo done
"""
QUICK = settings(max_examples=of_all(60))
PLANS = {"seed": st.integers(0, 10**6), "case": st.integers(0, len(CASES) - 1)}


def source(text: str) -> SourceText:
    return SourceText(path="file", text=text)


def read_back(text: str) -> dict[str, object]:
    reading = MEGATRON.read(source(text))
    assert not [each for each in reading.findings if each.severity == "error"], reading.findings
    return {name: value.value for name, value in reading.decisions.items()}


@QUICK
@given(**PLANS)
def test_what_is_emitted_is_read_back(seed: int, case: int) -> None:
    context, strategy = draw(seed, case)
    try:
        emitted = MEGATRON.emit(context, strategy)
    except ExpressError:
        return
    text = emitted.files[0].text
    assert MEGATRON.recognise(source(text))
    wanted = planned(context, strategy)
    found = understood(read_back(text), strategy)
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["model.num_layers"] == context.model.num_layers
    assert found["model.num_kv_heads"] == (
        context.model.num_heads if context.model.mla else context.model.num_kv_heads
    )
    assert emitted == MEGATRON.emit(context, strategy)


@QUICK
@given(seed=st.integers(0, 10**6), case=st.sampled_from(SHARDED_CASES), other=st.integers(0, 10**6))
def test_sharding_is_read_back_and_written_into_another_plan(
    seed: int, case: int, other: int
) -> None:
    context, strategy = draw_sharded(seed, case)
    _, first = draw(other, case)
    try:
        text = MEGATRON.emit(context, strategy).files[0].text
        before = MEGATRON.emit(context, first).files[0].text
    except ExpressError:
        return
    back = MEGATRON.write_into(source(text), context, first)
    for found, wanted in ((text, strategy), (back, first)):
        said = understood(read_back(found), wanted)
        assert {name: said.get(name) for name in planned(context, wanted)} == planned(
            context, wanted
        )
    after = MEGATRON.write_into(source(before), context, strategy)
    assert ("--ckpt-format fsdp_dtensor" in after, "fsdp_dtensor" in back) == (
        True,
        first.zero_stage > 1,
    )


def test_most_drawn_plans_can_be_expressed() -> None:
    expressed = 0
    for seed in range(4):
        for case in range(len(CASES)):
            try:
                MEGATRON.emit(*draw(seed, case))
            except ExpressError:
                continue
            expressed += 1
    assert expressed >= 2 * len(CASES)


@QUICK
@given(**PLANS, other=st.integers(0, 10**6))
def test_writing_into_an_args_file_changes_the_decisions_alone(
    seed: int, case: int, other: int
) -> None:
    context, strategy = draw(seed, case)
    _, first = draw(other, case)
    try:
        before = MEGATRON.emit(context, first).files[0].text + "--save /data/x\n--seed 7\n"
        after = MEGATRON.write_into(source(before), context, strategy)
    except ExpressError:
        return
    found = understood(read_back(after), strategy)
    wanted = planned(context, strategy)
    assert {name: found.get(name) for name in wanted} == wanted
    assert [line for line in before.split("\n") if is_foreign(line)] == [
        line for line in after.split("\n") if is_foreign(line)
    ]


OWNED = re.compile(
    r"--(tensor-model|sequence-parallel|context-parallel|expert-model|expert-tensor|use-tp-pp"
    r"|pipeline-model"
    r"|num-layers-per-virtual|micro-batch|global-batch|seq-length|recompute|cpu-offloading"
    r"|optimizer|sgd|use-precision|exp-avg|use-distributed|num-distributed|use-megatron-fsdp"
    r"|data-parallel-sharding|ckpt-format fsdp_dtensor|init-model-with-meta|bf16|fp16|fp8|fp4)"
)


def is_foreign(line: str) -> bool:
    return bool(line) and not OWNED.match(line)


@QUICK
@given(seed=st.integers(0, 10**6))
def test_writing_into_a_script_keeps_its_other_words_and_comments(seed: int) -> None:
    context, strategy = draw(seed, 0)
    try:
        after = MEGATRON.write_into(source(SCRIPT), context, strategy)
    except ExpressError:
        return
    reading = MEGATRON.read(source(after))
    found = understood({name: value.value for name, value in reading.decisions.items()}, strategy)
    wanted = planned(context, strategy) | {"num_gpus": 8, "dp": strategy.dp}
    assert {name: found.get(name) for name in wanted} == wanted
    for kept in (
        "#SBATCH --nodes=1",
        "TP=${TP:-8}          # of a node",
        "--hidden-size 4096 # width",
        "--save $CHECKPOINTS/run --log-interval 10",
        "2>&1 | tee log.txt\necho done\n",
    ):
        assert kept in after


def test_variables_that_double_themselves_are_refused() -> None:
    text = "A=aaaaaaaaaa\n" + "A=$A$A\n" * 40 + "torchrun pretrain_gpt.py --num-layers $A\n"
    with pytest.raises(InputError, match="without end"):
        MEGATRON.read(source(text))
