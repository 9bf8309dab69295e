"""Which models transformers and DeepSpeed can split, against the libraries' own plans."""

import functools
from typing import Any

import pytest
import torch
import transformers
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.autotp_config import AutoTPConfig, PartitionType
from deepspeed.module_inject.tp_plan_converter import TPPlanConverter
from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan
from hf_types import FAMILIES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from planner.catalog.hf.family import families
from planner.frameworks.registry import load_traits

# Their plans gather what mixers project, or leave mixers whole, which is not priced.
WHOLE_MIXERS = {"olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
CLASSES = {
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "nemotron": "NemotronForCausalLM",
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
ATTENTION = ("self_attn.o_proj", "self_attn.dense", "attention.dense")
MLP = ("mlp.down_proj", "mlp.fc2", "mlp.c_proj", "mlp.dense_4h_to_h", "experts.down_proj")
BY_NAME = ("output.dense", "mlp.", "fc2", "fc_out", "ffn.", "DenseReluDense")
"""Last products of MLPs, by which AutoTP's search is judged where there is no plan."""
WHOLE_MODELS = {"gemma3"}  # Types whose text part is another type here


def all_types() -> dict[str, str]:
    """Every family name and its type."""
    own = {name: name for name in families() if name not in WHOLE_MODELS}
    return own | FAMILIES | {"minimax-m3": "minimax_m3_vl_text"}  # its language model


def plan_of(kind: str) -> dict[str, str]:
    plan: dict[str, str] = getattr(CONFIG_MAPPING[kind], "base_model_tp_plan", None) or {}
    return plan


def transformers_splits(kind: str) -> bool:
    """Whether the plan holds both halves of a layer, so that a rank keeps a share of each."""
    split = plan_of(kind)
    return all(any(name in key for key in split for name in half) for half in (ATTENTION, MLP))


@functools.cache
def small(kind: str) -> Any:
    config = CONFIG_MAPPING[kind]()
    for name in LAYERS:
        if hasattr(config, name):
            setattr(config, name, 4)
    if getattr(config, "num_key_value_heads", 1) is None:
        config.num_key_value_heads = config.num_attention_heads
    if vars(config).get("head_dim", 1) is None:  # as HunYuan's default is
        config.head_dim = config.hidden_size // config.num_attention_heads
    if vars(config).get("layer_types"):
        config.layer_types = config.layer_types[:4]
    own = families().get(kind)
    name = CLASSES.get(kind) or (own.class_name if own else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    with torch.device("meta"):
        return getattr(transformers, name)(config)


def deepspeed_splits(kind: str) -> bool:
    """Whether AutoTP splits every matrix of the layers: by transformers' plan, else by names."""
    model = small(kind)
    plan = _get_hf_tp_plan(model)
    try:
        specs = TPPlanConverter.convert(plan) if plan else None
        if specs is None:
            names = [name for _, found in AutoTP.tp_parser(model) for name in found]
            return any(part in name for name in names for part in BY_NAME)
    except (ValueError, AssertionError):
        return False
    split = AutoTPConfig(tp_size=2, layer_specs=specs)
    for name, weight in model.named_parameters():
        if ".layers." in name and weight.dim() > 1:
            spec = split.find_matching_spec(name, model.config.model_type)
            if weight.dim() > 2 or spec is None or spec.partition_type == PartitionType.SKIP:
                return False
    return True


@pytest.mark.parametrize("name", sorted(all_types()))
def test_accelerate_splits_what_transformers_has_a_plan_for(name: str) -> None:
    listed = load_traits("accelerate").support.tp_families
    kind = all_types()[name]
    assert (name in listed) == (transformers_splits(kind) and kind not in WHOLE_MIXERS)


@pytest.mark.parametrize("name", sorted(all_types()))
def test_deepspeed_splits_what_auto_tp_splits(name: str) -> None:
    listed = load_traits("deepspeed").support.tp_families
    assert (name in listed) == deepspeed_splits(all_types()[name])


def test_families_without_code_in_transformers_are_not_split() -> None:
    known = set(all_types()) | WHOLE_MODELS
    for name in ("accelerate", "deepspeed"):
        assert set(load_traits(name).support.tp_families) <= known


def test_auto_tp_refuses_every_plan_of_experts() -> None:
    assert "whole_experts" in load_traits("deepspeed").support.limits
    for kind in ("mixtral", "qwen3_moe", "deepseek_v2", "glm4_moe"):
        assert not deepspeed_splits(kind)
