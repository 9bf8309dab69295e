"""Published pairs of runs with and without the optimizer in host memory, against the model.

Seconds per step. Where the source leaves the sequence length open the run without offload stands
for the computing: the model adds what it says that offload adds.
"""

from dataclasses import replace
from typing import Any

import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate, with_host_rate
from planner.frameworks.registry import load_traits
from planner.plans.layout import requested, resolve
from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec

QWEN_MOE: dict[str, Any] = {
    "setup": ("qwen3-30b-a3b", "2xdgx-h100", "megatron", "bridge", 4096),
    "layout": {"tp": 2, "pp": 2, "ep": 4, "zero_stage": 1, "global_batch": 8},
}
QWEN_SMALL: dict[str, Any] = {
    "setup": ("qwen3-0.6b", "1xh100-sxm", "megatron", "current", 1024),
    "layout": {"zero_stage": 1, "global_batch": 8},
}
FALCON = ("falcon-7b", "1xdgx-a100-320", "deepspeed", "current", 4096)
PAIRS: dict[str, tuple[dict[str, Any], int, str, float, float]] = {
    "Megatron-Bridge, Qwen3-30B-A3B on 16 H100, 25 %": (
        QWEN_MOE,
        25,
        "optimizer:host",
        0.996,
        1.871,
    ),
    "Qwen3-30B-A3B, 50 %": (QWEN_MOE, 50, "optimizer:host", 0.996, 2.484),
    "Qwen3-30B-A3B, 75 %": (QWEN_MOE, 75, "optimizer:host", 0.996, 3.187),
    "Qwen3-30B-A3B, 100 %": (QWEN_MOE, 100, "optimizer:host", 0.996, 4.189),
    "NeMo-RL, Qwen3-0.6B on one H100, 50 %": (QWEN_SMALL, 50, "optimizer:host", 0.752, 1.187),
    "Qwen3-0.6B, 100 %": (QWEN_SMALL, 100, "optimizer:host", 0.752, 1.678),
    "DeepSpeed's ZenFlow blog, Qwen2.5-1.5B on 2 A100": (
        {
            "setup": ("qwen2.5-1.5b", "2xa100-sxm-40", "deepspeed", "current", 512),
            "layout": {"zero_stage": 2, "micro_batch": 4, "global_batch": 8},
        },
        100,
        "optimizer:host",
        0.24,
        1.365,
    ),
    "the same, Llama-2 7B on 4 A100": (
        {
            "setup": ("llama2-7b", "4xa100-sxm-80", "deepspeed", "current", 512),
            "layout": {"zero_stage": 2, "global_batch": 4},
        },
        100,
        "optimizer:host",
        0.5,
        7.0,
    ),
    "DeepSpeed issue 3901, Falcon-7B on 8 A100, optimizer": (
        {"setup": FALCON, "layout": {"zero_stage": 2, "recompute": "full", "global_batch": 8}},
        100,
        "optimizer:host",
        2.86,
        9.6,
    ),
    "the same, optimizer and parameters": (
        {"setup": FALCON, "layout": {"zero_stage": 3, "recompute": "full", "global_batch": 8}},
        100,
        "optimizer+parameters:host",
        2.86,
        13.7,
    ),
}


def alone_on(cluster: ClusterSpec) -> ClusterSpec:
    """The runs had the processors of their machines to themselves."""
    return replace(cluster, node=replace(cluster.node, whole=None))


def _seconds(asked: dict[str, Any], offload: str, percent: int, end: str | None = None) -> float:
    model, cluster, framework, profile, seq_len = asked["setup"]
    layout = asked["layout"]
    context = Context(
        model=load_model(model),
        job=JobSpec(global_batch=layout["global_batch"], seq_len=seq_len, precision="bf16"),
        cluster=alone_on(load_cluster(cluster)),
        traits=load_traits(framework, profile),
    )
    request = requested(**layout, offload=offload, offload_percent=percent)
    context, strategy = resolve(context, request)
    if end is not None:
        context = with_host_rate(context, getattr(context.traits.offload, end))
    return estimate(context, strategy).iter_time_s


@pytest.mark.parametrize("name", PAIRS)
def test_published_pairs_lie_between_the_fastest_and_the_slowest_host(name: str) -> None:
    asked, percent, offload, without_s, with_s = PAIRS[name]
    base_s = _seconds(asked, "none", 100)
    low_s, high_s = (
        without_s + _seconds(asked, offload, percent, end) - base_s
        for end in ("host_optimizer_fastest_factor", "host_optimizer_slowest_factor")
    )
    assert low_s <= with_s <= high_s


def test_a_plan_s_range_holds_both_ends() -> None:
    context = Context(
        model=load_model("llama3-8b"),
        job=JobSpec(global_batch=64, seq_len=4096, precision="bf16"),
        cluster=load_cluster("1xdgx-h100"),
        traits=load_traits("deepspeed"),
    )
    request = requested(zero_stage=2, recompute="full", offload="optimizer:host")
    context, strategy = resolve(context, request)
    made, device = (
        estimate(context, replace(strategy, offload=offload))
        for offload in ("optimizer:host", "none")
    )
    assert made.iter_time_s_upper / made.iter_time_s > device.iter_time_s_upper / device.iter_time_s
    assert made.iter_time_s_lower / made.iter_time_s < device.iter_time_s_lower / device.iter_time_s
