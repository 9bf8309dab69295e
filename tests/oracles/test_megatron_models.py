"""Every model that Megatron's format accepts, built by Megatron from the words that are written."""

from dataclasses import replace
from typing import Any

import pytest
from contexts import context_of
from megatron_start import Start
from starts import Starts

from planner.catalog import list_models
from planner.catalog.models import load_model, load_model_details
from planner.cost.context import Context
from planner.formats.megatron.model import shape_choices, shape_reasons
from planner.formats.megatron.options import words_of
from planner.spec.model import ModelSpec, has_shared_gate, has_sinks

RUN = "--micro-batch-size 1 --train-iters 1 --bf16 --lr 1e-4"
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
FUNCTIONS = {
    "silu": ("silu", None, 0.0),
    "quick-gelu-clamped": ("quick_gelu", 7.0, 1.0),
    "gelu": ("gelu", None, 0.0),
    "gelu-tanh": ("gelu", None, 0.0),
    "squared-relu": ("squared_relu", None, 0.0),
}
LEAST_ACCEPTED = 80


def is_accepted(name: str) -> bool:
    latent = load_model(name).mla
    if latent and latent.indexer:  # built by Transformer Engine alone; test_megatron_starts has it
        return False
    return not list(shape_reasons(context_of(model=name, seq_len=1024)))


def layers_of(model: ModelSpec) -> dict[str, Any]:
    """What the layers do, as Megatron's configuration says it."""
    function, clamp, offset = FUNCTIONS[model.activation]
    found = {
        "activation": function,
        "gated_linear_unit": model.gated_mlp,
        "glu_linear_offset": offset,
        "activation_func_clamp_value": clamp,
        "normalization": NORMS[model.norm],
        "qk_layernorm": model.qk_norm != "none" or model.mla is not None,
        "attention_output_gate": model.gated_attention,
        "moe_shared_expert_gate": has_shared_gate(model),
        "softmax_type": "learnable" if has_sinks(model) else "vanilla",
        "window_size": [model.sliding_window - 1, 0] if model.sliding_window else None,
    }
    if model.moe:
        router = model.moe.router
        grouped = router.num_groups > 1
        found |= {
            "moe_router_score_function": router.score,
            "moe_router_enable_expert_bias": model.moe.router_bias and not model.moe.expert_bias,
            "moe_router_num_groups": router.num_groups if grouped else None,
            "moe_router_group_topk": router.top_groups if grouped else None,
            "moe_router_topk_scaling_factor": None if router.scaling == 1.0 else router.scaling,
        }
        if router.score == "softmax":
            found["moe_router_pre_softmax"] = not router.normalises
    return found


def built(megatron: Starts, model: ModelSpec) -> dict[str, Any]:
    """What Megatron says of a model."""
    context: Context = context_of(model=model, seq_len=1024)
    shape = [word for line in shape_choices(context) for word in words_of(line.key, line.value)]
    if "--mamba-num-heads" in shape:
        shape += ["--hybrid-layer-pattern", model.layer_pattern]
    words = [*shape, *RUN.split(), "--seq-length", "1024"]
    report = megatron.start(Start(words=words, num_gpus=1, counts=True))
    assert "error" not in report, report
    return report


@pytest.mark.parametrize("name", list_models())
def test_megatron_builds_the_model_that_the_words_name(megatron: Starts, name: str) -> None:
    """The first layers of every kind are built, and counted as often as they are there."""
    if not is_accepted(name):
        return
    model = load_model(name)
    kinds = model.layer_pattern or model.num_layers * "F"
    if model.moe and not model.layer_pattern:
        lead, step = model.moe.num_leading_dense_layers, model.moe.moe_layer_step
        numbers = range(1 - lead, model.num_layers - lead + 1)
        kinds = "".join("E" if at > 0 and at % step == 0 else "-" for at in numbers)
    few = max(map(kinds.index, set(kinds))) + 1
    layers = model.layer_pattern[:few]
    report = built(megatron, replace(model, num_layers=few, layer_pattern=layers))
    each = dict(zip(kinds, report["layer_params"], strict=False))
    params = report["params"] + sum(each[kind] for kind in kinds[few:])
    assert params == load_model_details(name).file.params_expected
    expected = layers_of(model)
    assert {key: report[key] for key in expected} == expected


def test_most_decoders_are_accepted() -> None:
    accepted = [name for name in list_models() if is_accepted(name)]
    assert len(accepted) >= LEAST_ACCEPTED, len(accepted)


def test_a_model_that_does_more_is_refused_by_name() -> None:
    reasons = list(shape_reasons(context_of(model="llama4-scout-17b-16e")))
    particular = load_model("llama4-scout-17b-16e").special_blocks
    assert f"model llama4-scout-17b-16e: {particular}" in reasons
