"""A plan in one sentence, and the columns that tell plans apart at every width."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from contexts import context_of
from rich.console import Console

from planner.answers.base import Answer, Plan
from planner.answers.plan import answer
from planner.report.table import show
from planner.report.tables import memory_saved_by, plans_table, telling_axes
from planner.report.words import (
    host_line,
    job_line,
    layout_words,
    run_line,
    time_line,
    utilization_line,
)
from planner.search.space.narrow import read_narrowing
from planner.units import GIB


@pytest.fixture(scope="module")
def found() -> Answer:
    """A dense model on two nodes, with a job's length."""
    context = context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=64)
    context = replace(context, job=replace(context.job, total_tokens=10**12))
    return answer([context], top=5, narrowing=read_narrowing(limit=["tp<=4", "pp<=4"]))


def shown(plans: Sequence[Plan], width: int) -> list[str]:
    text = io.StringIO()
    show(Console(file=text, width=width), plans_table(plans))
    return text.getvalue().splitlines()


def with_strategy(plan: Plan, **changes: object) -> Plan:
    return replace(plan, strategy=replace(plan.strategy, **changes))  # type: ignore[arg-type]


def test_the_sentence_says_degrees_experts_states_and_memory(found: Answer) -> None:
    plan = found.plans[0]
    layers = (0, 0)
    words = layout_words(
        with_strategy(
            plan, dp=8, tp=4, pp=2, cp=2, vpp=3, ep=16, etp=1, micro_batch=2, zero_stage=1,
            recompute_layers_per_stage=layers, selective_layers_per_stage=layers,
            layers_per_stage=(16, 16), offload="optimizer:host", offload_percent=50,
        )
    )  # fmt: skip
    assert words == (
        "DP 8 · TP 4 · PP 2 · VPP 3 · CP 2 · EP 16, experts not split (ETP 1), micro-batch 2, "
        "ZeRO-1, no recomputation, 50% of the optimizer on the host"
    )


def test_one_gpu_has_no_degrees_and_no_shards(found: Answer) -> None:
    plan = with_strategy(
        found.plans[0], dp=1, tp=1, pp=1, cp=1, vpp=1, ep=1, etp=1, micro_batch=1, zero_stage=0,
        layers_per_stage=(32,), recompute_layers_per_stage=(0,), selective_layers_per_stage=(0,),
        dp_replicate=1, offload="none",
    )  # fmt: skip
    line = run_line(plan, of_gpus=1, names_framework=True)
    assert line == (
        "Run it on 1 h100-sxm with megatron: micro-batch 1, no recomputation, no offload."
    )


def test_time_has_its_range_and_the_job_its_days(found: Answer) -> None:
    plan = found.plans[0]
    assert "if tuned, usually " in time_line(plan)
    made, peak = plan.estimate, plan.context.cluster.accelerator.peak_flops_per_s["bf16"]
    assert made.mfu_lower < made.mfu < made.mfu_upper
    assert made.mfu_lower * made.iter_time_s_upper == pytest.approx(made.mfu * made.iter_time_s)
    assert made.model_flops_per_s_per_gpu == pytest.approx(made.mfu * peak)
    assert utilization_line(plan) == (
        f"MFU {made.mfu:.1%} (80 % interval {100 * made.mfu_lower:.1f} to "
        f"{100 * made.mfu_upper:.1f} %), {made.mfu * peak / 1e12:.3g} model TFLOP/s a GPU"
    )
    job = job_line(plan)
    assert job.startswith("1T tokens: ")
    assert "GPU-hours" in job
    assert "USD" in job
    no_job = replace(plan.context, job=replace(plan.context.job, total_tokens=None))
    assert job_line(replace(plan, context=no_job)) == ""


@pytest.mark.parametrize("width", [80, 120, 160])
def test_rows_are_told_apart_at_every_width(found: Answer, width: int) -> None:
    lines = shown(found.plans, width)
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line[:1].isdigit()]
    assert len(rows) == len(found.plans)
    head = next(line.index("iteration") for line in lines if "iteration" in line)
    assert len({row[1:head] for row in rows}) == len(rows)


def test_axes_in_which_plans_agree_get_no_column(found: Answer) -> None:
    one = with_strategy(found.plans[0], cp=2, vpp=2)
    assert telling_axes([one, one]) == ["dp", "tp", "pp"]
    assert telling_axes([one, with_strategy(one, cp=4)]) == ["dp", "tp", "pp", "cp"]


@pytest.mark.parametrize(
    ("full", "selective", "kept_off", "offload", "text"),
    [
        (0, 0, 0, "none", "-"),
        (32, 0, 0, "none", "all"),
        (0, 32, 0, "none", "selected"),
        (12, 0, 0, "none", "12/32"),
        (31, 1, 0, "none", "31/32, 1/32 selected"),
        (0, 0, 0, "optimizer+parameters:nvme", "+ optimizer, parameters to nvme"),
        (32, 0, 0, "75% optimizer:host", "all + 75% optimizer"),
        (0, 0, 8, "none", "+ 8/32 activations"),
    ],
)
def test_what_saves_memory_in_few_words(
    found: Answer, full: int, selective: int, kept_off: int, offload: str, text: str
) -> None:
    percent, _, code = offload.rpartition("% ")
    plan = with_strategy(
        found.plans[0], layers_per_stage=(32,), recompute_layers_per_stage=(full,),
        selective_layers_per_stage=(selective,), offload=code, offload_percent=int(percent or 100),
        offloaded_layers_per_stage=(kept_off,) if kept_off else (),
    )  # fmt: skip
    assert memory_saved_by(plan.strategy) == text


def test_host_memory_is_of_a_whole_node(found: Answer) -> None:
    plan = found.plans[0]
    memory = replace(plan.estimate.memory, host_bytes=10 * GIB)
    offloaded = replace(plan, estimate=replace(plan.estimate, memory=memory))
    assert host_line(plan) == ""
    assert host_line(offloaded) == "80 of 2,048 GiB of a node's host memory"
