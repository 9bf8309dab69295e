"""Adapters against PEFT: parameters, what a layer keeps for backward, the files written."""

import json
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import saved_tensors as sizes
import torch
from contexts import context_of, strategy_of
from hf_types import build
from peft import LoraConfig, get_peft_model
from transformers import BitsAndBytesConfig

from planner.catalog.models import load_model
from planner.formats.adapters import FILE
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_training
from planner.layers.adapter_targets import adapter_params, training_problem
from planner.layers.block import layer_groups
from planner.layers.op import LayerShape
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.training import ALL_LINEAR, Mode, Training, read_targets

HERE = Path(__file__).parent
ENDS = ("embed_tokens", "lm_head")
STACKS = "mlp.experts"
BLOCK = ModelSpec(**sizes.BLOCK)


def measured(targets: str, rank: int, *of: str) -> dict[str, Any]:
    words = ",".join((targets, str(rank), *of))
    command = [sys.executable, str(HERE / "peft_block.py"), words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("targets", "rank"), [("all-linear", 8), ("q_proj+v_proj", 16), ("down_proj", 4)]
)
def test_a_layer_keeps_what_peft_keeps_and_trains_what_it_trains(targets: str, rank: int) -> None:
    found = measured(targets, rank)
    training = Training(mode="lora", rank=rank, targets=read_targets(targets.replace("+", ",")))
    traits = with_training(load_traits("accelerate"), training)
    shape = replace(LayerShape.all_of(1.0, sizes.SEQ_LEN), micro_batch=2.0 * torch.ones(1).numpy())
    (group,) = layer_groups(BLOCK, shape, traits)
    planned = Counter(
        (int(tensor.num_bytes.item() / tensor.element_bytes), int(tensor.element_bytes))
        for op in group.ops
        for tensor in op.saved
        if tensor.num_bytes.item()
    )
    assert Counter(map(tuple, found["kept"])) == planned
    assert found["trained"] == adapter_params(BLOCK, training, traits.kernels)
    assert found["dtypes"] == ["torch.float32"]


@pytest.mark.parametrize("targets", ["q_proj+k_proj+v_proj+o_proj", "q_proj+w1+w3+w2"])
def test_experts_keep_what_peft_keeps_of_them_frozen_or_with_merged_adapters(targets: str) -> None:
    found = measured(targets, 8, "mixture")
    training = Training(mode="lora", rank=8, targets=read_targets(targets.replace("+", ",")))
    moe = MoeSpec(
        num_experts=sizes.NUM_EXPERTS, top_k=sizes.TOP_K, expert_ffn_size=sizes.EXPERT_FFN
    )
    model = replace(BLOCK, moe=moe, family="mixtral")
    traits = with_training(load_traits("accelerate"), training)
    shape = replace(LayerShape.all_of(1.0, sizes.SEQ_LEN), micro_batch=2.0 * torch.ones(1).numpy())
    (group,) = layer_groups(model, shape, traits)
    # Gate and up projection of all experts lie in one storage, ends of groups in one of theirs.
    kept = sum(number * size for number, size in found["kept"]) - sizes.NUM_EXPERTS * 4
    planned = sum(tensor.num_bytes.item() for op in group.ops for tensor in op.saved)
    assert planned == pytest.approx(kept, abs=sizes.TOP_K * sizes.NUM_TOKENS * 8)
    assert found["trained"] == adapter_params(model, training, traits.kernels)


@pytest.mark.parametrize(
    ("model", "rank", "modules"),
    [
        ("llama3.1-8b", 16, ALL_LINEAR),
        ("llama3.1-70b", 8, "q_proj,k_proj,v_proj,o_proj"),
        ("llama3.2-1b", 64, "gate_proj,up_proj,down_proj"),
        ("qwen3-8b", 32, ALL_LINEAR),
        ("qwen3-30b-a3b", 16, "q_proj,k_proj,v_proj,o_proj"),
        ("mixtral-8x7b", 16, ALL_LINEAR),
        ("qwen3-30b-a3b", 16, ALL_LINEAR),
        ("gpt-oss-20b", 8, ALL_LINEAR),
        ("gpt-oss-20b", 8, f"q_proj,{STACKS}.gate_up_proj,{STACKS}.down_proj"),
        ("qwen3-30b-a3b", 8, f"{STACKS}.gate_up_proj"),
        ("qwen3-30b-a3b", 16, "q_proj,gate_proj,up_proj,down_proj"),
        ("mixtral-8x7b", 16, "w2,w1,w3"),
        ("minimax-m2", 8, ALL_LINEAR),
        ("glm-4.5-air", 8, ALL_LINEAR),
        ("ernie-4.5-21b-a3b", 8, ALL_LINEAR),
        ("gpt2-small", 8, ALL_LINEAR),
        ("falcon-40b", 16, "query_key_value,dense_4h_to_h"),
        ("phi-3-mini", 4, ALL_LINEAR),
        ("phi-3-mini", 4, "qkv_proj,gate_up_proj"),
        ("pythia-6.9b", 8, ALL_LINEAR),
        ("llama3.1-8b", 16, "q_proj,v_proj,embed_tokens,lm_head"),
        ("qwen3.5-27b", 16, ALL_LINEAR),
        ("qwen3.5-9b", 64, "q_proj,o_proj,in_proj_qkv,in_proj_a,out_proj"),
        ("qwen3.5-122b-a10b", 8, ALL_LINEAR),
        ("qwen3.5-35b-a3b", 8, "q_proj,k_proj,v_proj,o_proj"),
        ("qwen3-next-80b-a3b", 8, ALL_LINEAR),
        ("qwen3-next-80b-a3b", 8, "in_proj_qkvz,in_proj_ba,gate_proj,up_proj,down_proj"),
    ],
)
def test_models_have_as_many_trained_parameters_as_peft_makes(
    model: str, rank: int, modules: str
) -> None:
    spec, kernels = load_model(model), load_traits("accelerate").kernels
    training = Training(mode="lora", rank=rank, targets=read_targets(modules))
    names = modules.split(",")
    stacks = [name for name in names if name.startswith(STACKS)]
    inside = [name for name in names if name not in (*ENDS, *stacks)]
    lora = LoraConfig(
        r=rank,
        target_modules=modules if modules == ALL_LINEAR else inside,
        target_parameters=stacks or None,
        modules_to_save=[name for name in names if name in ENDS] or None,
        task_type="CAUSAL_LM",
    )
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(build(model), lora)
    trained, _ = adapted.get_nb_trainable_parameters()
    assert training_problem(spec, training, kernels) == ("", "")
    assert adapter_params(spec, training, kernels) == trained


@pytest.mark.parametrize("mode", ["lora", "qlora"])
@pytest.mark.parametrize("targets", ["all-linear", "q,v"])
@pytest.mark.parametrize("format_name", ["trainer", "accelerate"])
def test_peft_and_transformers_take_the_file_that_is_written(
    mode: Mode, targets: str, format_name: str
) -> None:
    training = Training(mode=mode, rank=8, targets=read_targets(targets))
    context = context_of(model="llama3.2-1b", framework="accelerate")
    context = replace(context, traits=with_training(context.traits, training))
    strategy = strategy_of(layers_per_stage=(16,), zero_stage=0, num_micro_batches=16)
    emitted = load_format(format_name).emit(context, strategy)
    (text,) = [file.text for file in emitted.files if file.name == FILE]
    content = json.loads(text)
    lora = LoraConfig(**content["lora"])
    assert lora.r == 8
    assert lora.target_modules in ("all-linear", {"q_proj", "v_proj"})
    if mode == "qlora":
        base = BitsAndBytesConfig(**content["quantization"])
        assert base.quantization_method() == "nf4"
        assert base.bnb_4bit_use_double_quant
        assert base.bnb_4bit_quant_storage == torch.bfloat16
    else:
        assert "quantization" not in content
