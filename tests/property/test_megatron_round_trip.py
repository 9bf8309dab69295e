"""Megatron's formats: what is written is read back, and files keep what is the user's."""

import re
from contextlib import suppress
from itertools import product

import pytest
from depth import of_all
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from megatron_plans import CASES, SHARDED_CASES, Row, draw, draw_sharded, planned, understood

from planner.errors import ExpressError, InputError
from planner.formats.format import Format, ParsedConfig, SourceText
from planner.formats.registry import load_format

MEGATRON, BRIDGE = load_format("megatron"), load_format("bridge")
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
SEEDS = st.integers(0, 10**6)
PLANS = {"seed": SEEDS, "case": st.integers(0, len(CASES) - 1)}


def source(text: str) -> SourceText:
    return SourceText(path="file", text=text)


def emitted(plan: Row, kind: Format = MEGATRON) -> str:
    """The text, or a rejected example where the plan cannot be expressed."""
    try:
        made = kind.emit(*plan)
    except ExpressError:
        reject()
    assert made == kind.emit(*plan)
    return made.files[0].text


def assert_holds(text: str, plan: Row, **also: object) -> dict[str, object]:
    """The file decides what the plan does; returns its decisions."""
    reading = MEGATRON.read(source(text))
    assert not [each for each in reading.findings if each.severity == "error"], reading.findings
    return assert_decides(reading, plan, **also)


def assert_decides(reading: ParsedConfig, plan: Row, **also: object) -> dict[str, object]:
    context, strategy = plan
    wanted = planned(context, strategy) | also
    found = {name: value.value for name, value in reading.decisions.items()}
    found = understood(found, strategy)
    assert {name: found.get(name) for name in wanted} == wanted
    return found


def assert_bridge_holds(text: str, plan: Row) -> None:
    """With the model's number of layers, which only some overrides say."""
    layers = f"\nmodel.num_layers={plan[0].model.num_layers}\n"
    reading = BRIDGE.read(source(text + layers))
    assert not reading.findings
    assert_decides(reading, plan)


@settings(max_examples=60)
@given(**PLANS, other=SEEDS)
def test_overrides_of_bridge_are_read_back_and_foreign_ones_stay(
    seed: int, case: int, other: int
) -> None:
    plan = draw(seed, case)
    text = emitted(plan, BRIDGE)
    assert BRIDGE.recognise(source(text))
    assert_bridge_holds(text, plan)
    foreign = "# kept\nlogger.log_interval=7\n"
    after = BRIDGE.write_into(source(emitted(draw(other, case), BRIDGE) + foreign), *plan)
    assert foreign in after
    assert_bridge_holds(after, plan)


@QUICK
@given(**PLANS)
def test_what_is_emitted_is_read_back(seed: int, case: int) -> None:
    context, strategy = draw(seed, case)
    text = emitted((context, strategy))
    assert MEGATRON.recognise(source(text))
    model = context.model
    heads = model.num_heads if model.mla else model.num_kv_heads
    sizes = {"model.num_layers": model.num_layers, "model.num_kv_heads": heads}
    assert_holds(text, (context, strategy), **sizes)


@QUICK
@given(seed=SEEDS, case=st.sampled_from(SHARDED_CASES), other=SEEDS)
def test_sharding_is_read_back_and_written_into_another_plan(
    seed: int, case: int, other: int
) -> None:
    sharded, first = draw_sharded(seed, case), draw(other, case)
    text, before = emitted(sharded), emitted(first)
    assert_holds(text, sharded)
    back = MEGATRON.write_into(source(text), *first)
    assert_holds(back, first)
    assert ("fsdp_dtensor" in back) == (first[1].zero_stage > 1)
    assert "--ckpt-format fsdp_dtensor" in MEGATRON.write_into(source(before), *sharded)


def test_most_drawn_plans_can_be_expressed() -> None:
    expressed = 0
    for seed, case in product(range(4), range(len(CASES))):
        with suppress(ExpressError):
            MEGATRON.emit(*draw(seed, case))
            expressed += 1
    assert expressed >= 2 * len(CASES)


OWNED = re.compile(
    r"--(tensor-model|sequence-parallel|context-parallel|expert-model|expert-tensor|use-tp-pp"
    r"|pipeline-model"
    r"|num-layers-per-virtual|micro-batch|global-batch|seq-length|recompute|cpu-offloading"
    r"|optimizer|sgd|use-precision|exp-avg|use-distributed|num-distributed|use-megatron-fsdp"
    r"|data-parallel-sharding|ckpt-format fsdp_dtensor|init-model-with-meta|bf16|fp16|fp8|fp4)"
)


@QUICK
@given(**PLANS, other=SEEDS)
def test_writing_into_an_args_file_changes_the_decisions_alone(
    seed: int, case: int, other: int
) -> None:
    plan, first = draw(seed, case), draw(other, case)
    before = emitted(first) + "--save /data/x\n--seed 7\n"
    emitted(plan)
    after = MEGATRON.write_into(source(before), *plan)
    assert_holds(after, plan)
    kept, left = (
        [line for line in text.split("\n") if line and not OWNED.match(line)]
        for text in (before, after)
    )
    assert left == kept


@QUICK
@given(seed=SEEDS)
def test_writing_into_a_script_keeps_its_other_words_and_comments(seed: int) -> None:
    plan = draw(seed, 0)
    emitted(plan)
    after = MEGATRON.write_into(source(SCRIPT), *plan)
    assert_decides(MEGATRON.read(source(after)), plan, num_gpus=8, dp=plan[1].dp)
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
