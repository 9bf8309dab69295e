"""Shards of FSDP2 and DeepSpeed ZeRO: real processes over gloo against the planner's arithmetic.

Sizes are odd, and some smaller than the number of ranks, so that every kind of padding occurs.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contexts import small_model
from hf_types import config_fields
from shards import (
    BF16,
    FP32,
    RankBytes,
    fsdp_bytes,
    model_weights,
    zero3_bytes,
    zero3_sub_groups,
    zero_bytes,
)
from starts import of_ranks, run_worker

from planner.layers.weights import Weight
from planner.spec.model import Biases, MlaSpec, MoeSpec
from planner.units import Array

WORKER = Path(__file__).with_name("zero_worker.py")
TIMEOUT_S = 400
WORLD_SIZES = (2, 4)
BUCKET_ELEMENTS = 2000
PERSISTENCE = 35
SUB_GROUP_ELEMENTS = 700
ZERO_OPTIONS = {
    "reduce_bucket_size": BUCKET_ELEMENTS,
    "sub_group_size": SUB_GROUP_ELEMENTS,
    "stage3_param_persistence_threshold": PERSISTENCE,
}

SIZES = {"vocab_size": 131, "num_heads": 5}
LLAMA = small_model(
    **SIZES | {"num_layers": 3, "hidden_size": 5, "num_kv_heads": 1, "head_dim": 6},
    ffn_size=7,
    max_seq_len=32,
    gated_mlp=True,
    norm="rmsnorm",
    biases=Biases(),
)
GPT2 = small_model(
    **SIZES | {"num_layers": 2, "hidden_size": 35, "num_kv_heads": 5, "head_dim": 7},
    ffn_size=53,
    max_seq_len=33,
    num_learned_positions=33,
    tied_embeddings=True,
)
MIXTRAL = replace(LLAMA, moe=MoeSpec(num_experts=4, top_k=2, expert_ffn_size=7))
DEEPSEEK = replace(
    LLAMA,
    num_kv_heads=5,
    head_dim=10,
    mla=MlaSpec(
        q_lora_rank=12, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8
    ),
    moe=MoeSpec(
        num_experts=4,
        top_k=2,
        expert_ffn_size=11,
        shared_ffn_size=11,
        num_leading_dense_layers=1,
    ),
)
MODELS = {"llama": LLAMA, "gpt2": GPT2}
"""Models that are trained; of the other two only the shapes are compared."""
ALL_MODELS = {**MODELS, "mixtral": MIXTRAL, "deepseek": DEEPSEEK}
KINDS = {"llama": "llama", "gpt2": "gpt2", "mixtral": "mixtral", "deepseek": "deepseek_v3"}
CONFIGS = {name: config_fields(ALL_MODELS[name], kind) for name, kind in KINDS.items()}
CONFIGS["deepseek"] |= dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1)
SCHEMES: dict[str, dict[str, Any]] = {
    f"zero{stage}{'-fp32' if fp32 else ''}": {"stage": stage, "fp32_accumulation": fp32}
    for stage in (1, 2, 3)
    for fp32 in (False, True)
}
STATES = ("parameters", "accumulated", "gradients", "optimizer")
Results = dict[int, list[dict[str, Any]]]
"""By world size: what each rank wrote, by model and scheme."""


def run_ranks(folder: Path, world_size: int) -> list[dict[str, Any]]:
    """Train on this many processes; what each rank wrote."""
    schemes = [{"name": "fsdp"}, *({"name": name, **scheme} for name, scheme in SCHEMES.items())]
    cases = [
        {
            "family": name,
            "config": config,
            "zero": ZERO_OPTIONS,
            "schemes": schemes if name in MODELS else [],
        }
        for name, config in CONFIGS.items()
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {"LOCAL_SIZE": str(world_size), "DS_ACCELERATOR": "cpu"}
    run_worker([sys.executable, str(WORKER), str(world_size)], folder, environment, TIMEOUT_S)
    return of_ranks(folder, world_size)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return {
        world_size: run_ranks(tmp_path_factory.mktemp(f"ranks{world_size}"), world_size)
        for world_size in WORLD_SIZES
    }


def weights_of(name: str) -> tuple[Weight, ...]:
    return model_weights(ALL_MODELS[name], is_gpt2=name == "gpt2")


def groups_of(name: str) -> list[list[Weight]]:
    """The optimizer's parameter groups of ``zero_worker.parameter_groups``."""
    matrices = [weight for weight in weights_of(name) if len(weight.shape) > 1]
    vectors = [weight for weight in weights_of(name) if len(weight.shape) == 1]
    return [matrices, vectors[:-1], vectors[-1:]]


def expected(name: str, scheme: str, world_size: int) -> RankBytes:
    """Our bytes of every rank."""
    weights = weights_of(name)
    if scheme == "fsdp":
        return fsdp_bytes(weights, world_size, np.arange(world_size))
    stage, fp32 = SCHEMES[scheme]["stage"], SCHEMES[scheme]["fp32_accumulation"]
    if stage == 3:
        return zero3_bytes(
            weights, world_size, persistence_threshold=PERSISTENCE, fp32_accumulation=fp32
        )
    return zero_bytes(groups_of(name), world_size, stage, fp32_accumulation=fp32)


def kept_after_step(name: str, scheme: str, ours: RankBytes) -> Array:
    """Gradient and bucket bytes that stay after the optimizer's step."""
    if scheme == "fsdp":
        return ours.gradients
    if scheme == "zero1-fp32":
        return ours.gradients - BF16 * sum(prod(weight.shape) for weight in weights_of(name))
    if SCHEMES[scheme]["stage"] == 3:
        return ours.gradients + BF16 * BUCKET_ELEMENTS
    return np.zeros(())


def sub_groups(name: str, world_size: int) -> list[int]:
    """Elements of the fp32 tensors that ZeRO 3 updates."""
    return [
        elements
        for group in groups_of(name)
        for elements in zero3_sub_groups(
            [prod(weight.shape) for weight in group], world_size, SUB_GROUP_ELEMENTS
        )
    ]


def step_counters(name: str, scheme: str, world_size: int) -> int:
    """Bytes of torch's step counters, one fp32 number per tensor the optimizer updates."""
    if scheme == "fsdp":
        return FP32 * len(weights_of(name))
    if SCHEMES[scheme]["stage"] == 3:
        return FP32 * len(sub_groups(name, world_size))
    return FP32 * len(groups_of(name))


def over_ranks(results: Results, world_size: int, name: str, scheme: str, key: str) -> list[Any]:
    return [rank[name][scheme][key] for rank in results[world_size]]


def per_rank(column: Array, world_size: int) -> list[float]:
    values: list[float] = np.broadcast_to(column, world_size).tolist()
    return values


def every_run(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrise a test over schemes, models and numbers of ranks."""
    for argument, values in (
        ("scheme", ["fsdp", *SCHEMES]),
        ("name", [*MODELS]),
        ("world_size", WORLD_SIZES),
    ):
        test = pytest.mark.parametrize(argument, values)(test)
    return test


@pytest.mark.parametrize("name", ALL_MODELS)
def test_tensors_have_the_shapes_of_the_real_model(results: Results, name: str) -> None:
    ours = [list(weight.shape) for weight in weights_of(name)]
    assert sorted(ours) == sorted(results[WORLD_SIZES[0]][0][name]["shapes"])


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_tensors_have_the_order_of_the_real_model(results: Results, name: str) -> None:
    """DeepSeek's code alone registers the router after the experts."""
    ours = [list(weight.shape) for weight in weights_of(name)]
    assert ours == results[WORLD_SIZES[0]][0][name]["shapes"]


@every_run
@pytest.mark.parametrize("state", STATES)
def test_every_rank_holds_the_bytes_we_say(
    results: Results, world_size: int, name: str, scheme: str, state: str
) -> None:
    ours = getattr(expected(name, scheme, world_size), state)
    assert per_rank(ours, world_size) == over_ranks(results, world_size, name, scheme, state)


@every_run
def test_nothing_else_is_held_after_the_step(
    results: Results, world_size: int, name: str, scheme: str
) -> None:
    ours = expected(name, scheme, world_size)
    held = ours.parameters + ours.optimizer + kept_after_step(name, scheme, ours)
    assert per_rank(held, world_size) == over_ranks(results, world_size, name, scheme, "held")
    counters = over_ranks(results, world_size, name, scheme, "steps")
    assert counters == [step_counters(name, scheme, world_size)] * world_size


@pytest.mark.parametrize(
    ("scheme", "between", "before_step"),
    [
        ("zero1", 1, 0),
        ("zero1-fp32", 0, 0),
        ("zero2", 0, 0),
        ("zero2-fp32", 0, 0),
        ("zero3", 1, 1),
        ("zero3-fp32", 1, 1),
    ],
)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_when_the_reduce_bucket_is_held(
    results: Results, world_size: int, name: str, scheme: str, between: int, before_step: int
) -> None:
    for key, held in (("bucket_between", between), ("bucket_before_step", before_step)):
        real = over_ranks(results, world_size, name, scheme, key)
        assert real == [held * BF16 * BUCKET_ELEMENTS] * world_size


@pytest.mark.parametrize("scheme", ["zero3", "zero3-fp32"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sub_groups_of_stage_three(
    results: Results, world_size: int, name: str, scheme: str
) -> None:
    real = over_ranks(results, world_size, name, scheme, "master_elements")
    assert real == [sub_groups(name, world_size)] * world_size
