"""DeepSeek's sparse attention as Ops: an indexer that chooses keys, latent attention over those."""

from dataclasses import replace

import numpy as np

from planner.layers.op import ATTENTION_BLOCK, ZERO, Comm, FlashAttention, Gemm, LayerShape, Op
from planner.layers.parameters import attention_params
from planner.spec.items import SHAPE, item
from planner.spec.model import IndexerSpec, MlaSpec, ModelSpec
from planner.spec.traits import KernelTraits
from planner.units import Array

INDEX_BYTES = 4.0  # of a chosen key's position


def selected_keys(indexer: IndexerSpec, seq_len: Array | float) -> Array:
    """Mean keys that a causal query sees: ``k - k(k-1)/2s``, of shorter sequences half of all.

    The first k queries see all before them, the others k. Source: DeepSeek-V3.2, arXiv 2512.02556,
    section 2.1.
    """
    chosen = float(indexer.top_k)
    long = chosen - chosen * (chosen - 1.0) / (2.0 * np.asarray(seq_len))
    return np.where(np.asarray(seq_len) > chosen, long, np.asarray(seq_len) / 2.0)


@item("memory.activations.indexer", inputs=(*SHAPE, "model.mla"))
def indexer_op(
    model: ModelSpec, mla: MlaSpec, indexer: IndexerSpec, shape: LayerShape, traits: KernelTraits
) -> Op:
    """Projections and scores of the indexer, whole on every tp rank.

    FLOPs: ``2(r·i·j + d·j + d·i)`` per token for i heads of j, and scores ``2·i·j`` with every key
    before: what is left of the square. Kept: its queries, key and weights. Excludes the choice of
    the top k, and that training it needs no gradient of its input. Source: Megatron-Core
    transformer/experimental_attention_variant/dsa.py.
    """
    tokens, document = shape.num_tokens, np.minimum(shape.seq_len, shape.document_tokens)
    size = float(indexer.num_heads * indexer.head_dim)
    parts = attention_params(model, shape.tp)
    own = sum(part.total for name, part in parts.items() if name.startswith("indexer"))
    return Op(
        name="indexer",
        params=ZERO + own + 2.0 * indexer.head_dim,
        gemms=(
            Gemm(m=tokens, n=ZERO + size, k=ZERO + mla.q_lora_rank),
            Gemm(m=tokens, n=ZERO + indexer.head_dim, k=ZERO + model.hidden_size),
            Gemm(m=tokens, n=ZERO + indexer.num_heads, k=ZERO + model.hidden_size),
        ),
        attention=FlashAttention(
            kernel=traits.flash_kernel,
            square_flops=2.0 * tokens * document * size,
            causal_fraction=0.5,
            seq_len=document,
            head_dim=float(indexer.head_dim),
            num_tiles=indexer.num_heads * tokens / ATTENTION_BLOCK,
            rate_fraction=traits.attention_rate_fraction,
        ),
        saved=(shape.kept("indexer.kept", ZERO + size + indexer.head_dim + indexer.num_heads),),
    )


def sparse_core_op(
    model: ModelSpec, mla: MlaSpec, indexer: IndexerSpec, shape: LayerShape, traits: KernelTraits
) -> Op:
    """Attention over the chosen keys, in the width of the latent vectors (absorbed).

    FLOPs: ``2·a·keys ((c + p) + c)`` per token, keys as in :func:`selected_keys`. Kept: absorbed
    queries a(c + p), outputs a·c, and the choice. Under cp the latent keys of all ranks are
    gathered. Source: as :func:`indexer_op`; arXiv 2405.04434, section 2.1.2 for absorption.
    """
    tokens, heads = shape.num_tokens, model.num_heads / shape.tp
    keys = selected_keys(indexer, np.minimum(shape.seq_len, shape.document_tokens))
    wide = float(mla.kv_lora_rank + mla.qk_rope_head_dim)
    latent = tokens * wide * shape.element_bytes * shape.cp * (shape.cp > 1)
    gather = Comm(collective="all_gather", axis="cp", num_bytes=latent)
    scatter = Comm(collective="reduce_scatter", axis="cp", num_bytes=latent)
    chosen = shape.kept("attention_core.chosen", ZERO + indexer.top_k)
    return Op(
        name="attention_core",
        attention=FlashAttention(
            kernel=traits.flash_kernel,
            square_flops=2.0 * tokens * keys * heads * (wide + mla.kv_lora_rank),
            causal_fraction=1.0,
            seq_len=keys,
            num_tiles=heads * tokens / ATTENTION_BLOCK,
            rate_fraction=traits.attention_rate_fraction,
        ),
        saved=(
            shape.kept("attention_core.absorbed_query", heads * wide),
            shape.kept("attention_core.latent_output", heads * mla.kv_lora_rank),
            replace(chosen, element_bytes=INDEX_BYTES),
        ),
        comms=((gather,), (gather, scatter)),
    )
