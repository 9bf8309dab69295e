"""Tensors an op keeps for backward: the implementation's table applied to one layer's sizes."""

import numpy as np

from planner.layers.capacity import received_share
from planner.layers.op import ONE, ZERO, LayerShape, SavedTensor
from planner.spec.model import ModelSpec
from planner.spec.saved import Width
from planner.spec.traits import KernelTraits
from planner.units import Array


def local_kv_heads(model: ModelSpec, tp: Array) -> Array:
    """Key heads one tp rank holds; replicated when tp exceeds their number."""
    return np.maximum(model.num_kv_heads / tp, 1.0)


def token_widths(model: ModelSpec, shape: LayerShape, received: Array = ONE) -> dict[Width, Array]:
    """Elements per token of every width a table may name, on one rank.

    With h hidden, a heads, e head size, d_v value size, f feed-forward, k experts per token,
    t = tp: ``query`` a·e/t, ``kv`` local key heads · e (one of key or value), ``context``
    a·d_v/t, ``heads`` a/t, ``scores`` a·s/t, ``ffn`` f/t, ``pairs_hidden`` k·h·etp/t,
    ``pairs_gathered`` k·etp/t, ``pairs_ffn`` k·f_expert/t (the expert's own pairs, of which each
    keeps f_expert/etp), the first and the last times ``received``,
    the share of the busiest rank of experts (:func:`received_share`);
    ``hidden_sp`` and the router's ``experts`` and ``pairs`` are divided by t only under sequence
    parallelism, ``experts_gathered`` never. ``logits`` depends on the framework's padding and is
    given by the head, ``adapter_input`` and ``adapter_rank`` by the adapters of a projection.
    """
    tp, sp = shape.tp, shape.sp
    moe, mla = model.moe, model.mla
    top_k = float(moe.top_k) if moe else 0.0
    return {
        "one": ONE,
        "hidden": ZERO + float(model.hidden_size),
        "hidden_sp": model.hidden_size / sp,
        "query": model.query_size / tp,
        "kv": local_kv_heads(model, tp) * model.head_dim,
        "context": model.value_size / tp,
        "heads": model.num_heads / tp,
        "scores": model.num_heads / tp * shape.seq_len,
        "ffn": model.ffn_size / tp,
        "shared_ffn": (moe.shared_ffn_size if moe else 0) / tp,
        "experts": (moe.num_experts if moe else 0) / sp,
        "experts_gathered": ZERO + float(moe.num_experts if moe else 0),
        "pairs": top_k / sp,
        "pairs_gathered": top_k * shape.expert_share,
        "pairs_hidden": top_k * model.hidden_size * shape.expert_share * received,
        "pairs_ffn": top_k * (moe.expert_ffn_size if moe else 0) * received / tp,
        "query_rank": ZERO + float(mla.q_lora_rank if mla else 0),
        "kv_rank": ZERO + float(mla.kv_lora_rank if mla else 0),
        "rope": ZERO + float(mla.qk_rope_head_dim if mla else 0),
    }


def saved_by(
    op: str,
    section: str,
    model: ModelSpec,
    shape: LayerShape,
    traits: KernelTraits,
    *,
    widths: dict[Width, Array] | None = None,
    count: float = 1.0,
) -> tuple[SavedTensor, ...]:
    """Tensors that ``op`` keeps, from a section of the table; ``widths`` replace default ones."""
    known = token_widths(model, shape, received_share(shape, traits)) | (widths or {})
    exists: dict[str, Array] = {
        "always": ONE,
        "trained": ONE,
        "dropout": ONE,
        "context_exchange": np.where(shape.cp > 1, 1.0, 0.0) * traits.exchanges_context,
        "tensor_parallel": np.where(shape.tp > 1, 1.0, 0.0),
        "sequence_parallel": np.where(shape.sp > 1, 1.0, 0.0),
        "trained_sequence_parallel": np.where(shape.sp > 1, 1.0, 0.0),
    }
    return tuple(
        SavedTensor(
            name=f"{op}.{entry.name}",
            rows=shape.num_tokens,
            width=known[entry.width],
            element_bytes=entry.element_bytes,
            is_freed=entry.is_freed,
            count=exists[entry.when] * (entry.multiple * count),
        )
        for entry in traits.saved.entries(section)
        if entry.when != "dropout" or traits.dropout
    )
