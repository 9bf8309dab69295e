"""A Megatron-Core layer of local modules (no Transformer Engine) and what it keeps for backward.

Run as a program with the folder that holds the package ``megatron``, it prints one JSON line.
Layers run on a CPU inside a fake process group whose collectives move nothing.

What is changed because there is no GPU: modules of Triton kernels are empty, CUDA streams and
random states do nothing, torch's norms stand in where Megatron forbids them under sequence
parallelism, dropout and RMSNorm take autograd's CUDA formulas.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import saved_tensors as sizes
import torch
from megatron_model import prepare as prepare_import
from megatron_model import process_groups
from saved_tensors import (
    SavedStorage,
    answer,
    cuda_dropout,
    cuda_rms_norm,
    hidden_states,
    randomise,
    record,
)


@dataclass(frozen=True, kw_only=True)
class LayerCase:
    """A layer and how it is run."""

    gated: bool = True
    """RMSNorm and SwiGLU without biases, rotary positions, grouped keys; else GPT's choices."""
    experts: bool = False
    latent: bool = False
    flash: bool = False  # Attention through scaled_dot_product_attention instead of Megatron's own
    fused: bool = True
    """Fused activations, and a softmax that stays in 16 bits as in the fused kernel."""
    dropout: float = 0.0
    tp: int = 1
    sequence_parallel: bool = False
    adapters: tuple[str, ...] = ()
    """Modules beside which Megatron-Bridge's LoRA puts adapters; all else is frozen then."""


def prepare(megatron: Path) -> None:
    """Make Megatron-Core importable and runnable on a CPU."""
    prepare_import(megatron)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    random_states()


def random_states() -> None:
    """A tracker of CUDA random states that tracks none."""

    class States:
        def is_initialized(self) -> bool:
            return True

        @contextmanager
        def fork(self, *_: object, **__: object) -> Iterator[None]:
            yield

    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random._CUDA_RNG_STATE_TRACKER = States()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


class TorchNorm:
    """Megatron's wrapper of torch's norms, without its ban on sequence parallelism."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> Any:
        norms = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
        return norms[config.normalization](hidden_size, eps=eps)


class FlashCore(torch.nn.Module):
    """Core attention in one kernel.

    As in Transformer Engine the value is its own copy where rotary positions made new queries and
    keys; without them all three are views of the projection's output.
    """

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: object) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object
    ) -> torch.Tensor:
        if value.untyped_storage().data_ptr() != key.untyped_storage().data_ptr():
            value = value.contiguous()
        batch_first = [t.permute(1, 2, 0, 3) for t in (query, key, value)]
        output = torch.nn.functional.scaled_dot_product_attention(
            *batch_first, is_causal=True, scale=self.softmax_scale, enable_gqa=True
        )
        return output.permute(2, 0, 1, 3).flatten(2)


def config_of(case: LayerCase) -> Any:
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    fields: dict[str, Any] = {
        "num_layers": 1,
        "hidden_size": sizes.HIDDEN,
        "ffn_hidden_size": sizes.FFN,
        "num_attention_heads": sizes.NUM_HEADS,
        "kv_channels": sizes.HEAD_DIM,
        "num_query_groups": sizes.NUM_KV_HEADS if case.gated else sizes.NUM_HEADS,
        "tensor_model_parallel_size": case.tp,
        "sequence_parallel": case.sequence_parallel,
        "hidden_dropout": case.dropout,
        "attention_dropout": case.dropout,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "use_cpu_initialization": True,
        "gated_linear_unit": case.gated,
        "add_bias_linear": not case.gated,
        "activation_func": torch.nn.functional.silu if case.gated else torch.nn.functional.gelu,
        "normalization": "RMSNorm" if case.gated else "LayerNorm",
        "bias_activation_fusion": case.fused,
        "attention_softmax_in_fp32": not case.fused,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
    }
    if case.experts:
        fields |= {
            "num_moe_experts": sizes.NUM_EXPERTS,
            "moe_router_topk": sizes.TOP_K,
            "moe_ffn_hidden_size": sizes.EXPERT_FFN,
            "moe_token_dispatcher_type": "allgather",
        }
    if not case.latent:
        return TransformerConfig(**fields)
    fields |= {
        "multi_latent_attention": True,
        "q_lora_rank": sizes.QUERY_RANK,
        "kv_lora_rank": sizes.KV_RANK,
        "qk_head_dim": sizes.HEAD_DIM - sizes.ROPE_DIM,
        "qk_pos_emb_head_dim": sizes.ROPE_DIM,
        "v_head_dim": sizes.HEAD_DIM,
        "rope_type": "rope",
        "num_query_groups": sizes.NUM_HEADS,
        "qk_layernorm": True,
    }
    return MLATransformerConfig(**fields)


def build(case: LayerCase) -> torch.nn.Module:
    from megatron.core.models import backends
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module

    config = config_of(case)
    backends.LNImpl = backends.WrappedTorchNorm = TorchNorm
    spec = get_gpt_layer_local_spec(
        config.num_moe_experts,
        False,
        qk_layernorm=case.latent,
        multi_latent_attention=case.latent,
        normalization=config.normalization,
    )
    if case.flash:
        spec.submodules.self_attention.submodules.core_attention = FlashCore
    layer = build_module(spec, config=config, layer_number=1)
    if case.adapters:
        from bridge_start import adapter_class

        layer = adapter_class()(dim=sizes.RANK, target_modules=list(case.adapters))(layer)
    return randomise(layer)


def merged_experts(storages: list[SavedStorage]) -> list[SavedStorage]:
    """One storage for what the experts, run one after another, keep each for themselves."""
    merged: dict[tuple[object, ...], SavedStorage] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for storage in storages:
        name, is_expert = re.subn(r"(local_experts)\.\d+", r"\1", storage.module)
        width = storage.num_elements // storage.shape[0]
        own = (storage.module, storage.operation, storage.dtype, width)
        seen[own] += 1
        key = (name, *own[1:], seen[own], *(() if is_expert else own))
        first = merged.setdefault(key, storage)
        if first is not storage:
            first.num_bytes += storage.num_bytes
            first.shape[0] += storage.shape[0]
    return list(merged.values())


def saved_by_layer(case: LayerCase) -> list[SavedStorage]:
    with process_groups(case.tp, tensor_model_parallel_size=case.tp):
        layer = build(case)
        shards = case.tp if case.sequence_parallel else 1
        x = hidden_states(sizes.SEQ_LEN // shards, sizes.MICRO_BATCH, sizes.HIDDEN)
        mask = torch.ones(1, 1, sizes.SEQ_LEN, sizes.SEQ_LEN, dtype=torch.bool).triu(1)
        angles = torch.randn(sizes.SEQ_LEN, 1, 1, sizes.HEAD_DIM)
        rotary = angles if case.gated and not case.latent else None
        with cuda_dropout(), cuda_rms_norm():
            storages = record(
                lambda: layer(x, attention_mask=mask, rotary_pos_emb=rotary),
                layer,
                excluded=(mask, angles),
                second_norm="pre_mlp_layernorm",
            )
    return merged_experts(storages)


GPT = LayerCase(gated=False, dropout=0.1)
UNFUSED = LayerCase(fused=False)
FLASH = LayerCase(flash=True)
SPLIT = {"tp": 4, "sequence_parallel": True}
QKV, ALL = ("linear_qkv",), ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
CASES = {
    "gpt": GPT,
    "gpt_tp4": replace(GPT, tp=4),
    "gpt_tp4_sp": replace(GPT, **SPLIT),
    "unfused": UNFUSED,
    "unfused_tp4": replace(UNFUSED, tp=4),
    "unfused_tp4_sp": replace(UNFUSED, **SPLIT),
    "unfused_dropout": replace(UNFUSED, dropout=0.1),
    "unfused_gpt": replace(GPT, fused=False),
    "unfused_moe": replace(UNFUSED, experts=True),
    "unfused_moe_tp4_sp": replace(UNFUSED, experts=True, **SPLIT),
    "flash": FLASH,
    "flash_tp4": replace(FLASH, tp=4),
    "flash_tp4_sp": replace(FLASH, **SPLIT),
    "flash_moe": replace(FLASH, experts=True),
    "flash_moe_tp4_sp": replace(FLASH, experts=True, **SPLIT),
    "flash_latent": replace(FLASH, latent=True),
    "flash_gpt": replace(GPT, flash=True, dropout=0.0),
    "lora_qkv": replace(FLASH, adapters=QKV),
    "lora_qkv_tp4_sp": replace(FLASH, adapters=QKV, **SPLIT),
    "lora_all": replace(FLASH, adapters=ALL),
    "lora_all_tp4": replace(FLASH, adapters=ALL, tp=4),
    "lora_all_tp4_sp": replace(FLASH, adapters=ALL, **SPLIT),
    "lora_all_gpt": replace(GPT, flash=True, dropout=0.0, adapters=ALL),
}


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    answer({name: lambda case=case: saved_by_layer(case) for name, case in CASES.items()}, {})
