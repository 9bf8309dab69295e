"""Self-attention as Ops: norm, qkv projection (or its low-rank form), core, output projection.

DeepSeek's sparse attention besides: an indexer that chooses keys, latent attention over those, and
over keys pooled of several tokens; hyper-connections in place of residuals.
"""

from dataclasses import replace

import numpy as np

from planner.layers.op import (
    ATTENTION_BLOCK,
    ZERO,
    BothComms,
    Comm,
    FlashAttention,
    Gemm,
    LayerShape,
    Op,
    linear,
)
from planner.layers.parameters import attention_params, indexer_params, norm_params
from planner.layers.saved import local_kv_size, saved_by
from planner.limits import MAX_SEQ_LEN
from planner.spec.items import SHAPE, item
from planner.spec.model import IndexerSpec, MlaSpec, ModelSpec
from planner.spec.traits import KernelTraits
from planner.units import Array

# Per query/key/value element: bias, split and rotary embedding read and write about three times.
#
# Counted per op for fused kernels; plausible range 4-8.
QKV_FORWARD_BYTES = 6.0
# The rotary embedding's gradient, and the three gradients joined: two reads, two writes.
QKV_BACKWARD_BYTES = 8.0
# More to turn and scale queries and keys in torch's own kernels: source of ``kernels.unfused``.
SCALED_ROTARY_BYTES = (34.0, 44.0)

# Bytes that scores made whole move through HBM in forward and backward, products apart.
#
# One kernel of scale, mask and softmax (Megatron): 2 read, 2 written, the dropout's mask 2 + 2 + 1.
# torch's own steps: scaled 4, masked 4, softmax widened to fp32 6, narrowed 6; backward: widened 6,
# softmax 10, scaled 4. Source: eager_attention_forward of transformers 5.23, counted.
SCORE_BYTES = {"unfused": (9.0, 11.0), "eager": (20.0, 20.0)}


@item(
    "memory.activations.attention_norm",
    inputs=(
        *SHAPE,
        "traits.kernels.saved.name",
        "strategy.sequence_parallel",
    ),
)
@item(
    "memory.activations.mlp_norm",
    inputs=(
        *SHAPE,
        "traits.kernels.saved.name",
        "strategy.sequence_parallel",
    ),
)
def norm_op(name: str, model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> Op:
    """Half of a block's norms, residual additions and dropouts.

    Saved: the table's ``norm`` section per norm and its ``residual`` section (dropout mask) once;
    divided by tp only under sequence parallelism (arXiv 2205.05198, section 4.2). Excludes
    post-norms' own traffic beyond the proportional share.
    """
    elements = shape.num_tokens * model.hidden_size / shape.sp * shape.wideness
    return Op(
        name=name,
        params=norm_params(model).total / 2.0,
        forward_bytes=elements * traits.block_bytes[0] / 2.0,
        backward_bytes=elements * traits.block_bytes[1] / 2.0,
        saved=saved_by(
            name, f"norm.{model.norm}", model, shape, traits, count=model.norms_per_layer / 2.0
        )
        + saved_by(name, "residual", model, shape, traits),
    )


def split_and_whole_bytes(model: ModelSpec, shape: LayerShape) -> tuple[Array, Array]:
    """Bytes of hidden states that tp ranks exchange with sequence parallelism, and without it."""
    full = shape.num_tokens * model.hidden_size * shape.element_bytes * (shape.tp > 1)
    return full * (shape.sequence_parallel == 1), full * (shape.sequence_parallel == 0)


def tp_entry_comms(model: ModelSpec, shape: LayerShape) -> BothComms:
    """Collectives where activations enter a column-parallel matmul, forward and backward.

    Without sequence parallelism: nothing forward, an all-reduce backward. With it: all-gather
    forward; reduce-scatter and a second all-gather (input of the weight gradient) backward.
    Those of backward are independent of a product: the gather of the input's gradient, the others
    of the weight's. Source: arXiv 1909.08053 section 3, arXiv 2205.05198 section 4.2.2.
    """
    split, whole = split_and_whole_bytes(model, shape)
    return (
        (Comm(collective="all_gather", axis="tp", num_bytes=split),),
        (
            Comm(collective="all_reduce", axis="tp", num_bytes=whole, is_independent=True),
            Comm(collective="reduce_scatter", axis="tp", num_bytes=split, is_independent=True),
            Comm(
                collective="all_gather",
                axis="tp",
                num_bytes=split,
                is_independent=True,
                is_for_weights=True,
            ),
        ),
    )


def tp_exit_comms(model: ModelSpec, shape: LayerShape) -> BothComms:
    """Collectives where partial sums leave a row-parallel matmul, forward and backward.

    Without sequence parallelism: an all-reduce forward, nothing backward. With it:
    reduce-scatter forward, all-gather backward. Source: as :func:`tp_entry_comms`.
    """
    split, whole = split_and_whole_bytes(model, shape)
    return (
        (
            Comm(collective="all_reduce", axis="tp", num_bytes=whole),
            Comm(collective="reduce_scatter", axis="tp", num_bytes=split),
        ),
        (Comm(collective="all_gather", axis="tp", num_bytes=split),),
    )


@item(
    "memory.activations.qkv",
    inputs=(
        *SHAPE,
        "model.num_heads",
        "model.num_kv_heads",
        "model.head_dim",
    ),
)
def qkv_ops(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[Op, ...]:
    """Query, key and value projection, fused into one matmul.

    Saved: the table's ``qkv`` section (rotated queries and keys, values), and ``qk_norm`` where
    they are normed. Queries may bring a gate (Qwen3-Next), which is kept, and so is its product
    with the output of attention. Excludes the gather of key/value heads that tp splits.
    """
    gate = model.query_size * model.gated_attention / shape.tp
    width = (model.query_size + model.kv_size + model.projected_value_size) / shape.tp + gate
    turned = (model.query_size + model.kv_size) / shape.tp
    turned *= model.scaled_rotary and "scaled_rotary" in traits.unfused
    tokens = shape.num_tokens
    parts = attention_params(model, shape.tp)
    saved = saved_by("qkv", "qkv", model, shape, traits)
    if model.qk_norm != "none":
        saved += saved_by("qkv", "qk_norm", model, shape, traits)
    if model.gated_attention:
        saved += (shape.kept("qkv.gate", 2.0 * gate),)
    return (
        Op(
            name="qkv",
            params=parts["qkv"].total + parts["query_norm"].total + parts["key_norm"].total,
            gemms=(Gemm(m=tokens, n=width, k=ZERO + model.hidden_size, follows_norm=True),),
            forward_bytes=tokens * (width * QKV_FORWARD_BYTES + turned * SCALED_ROTARY_BYTES[0]),
            backward_bytes=tokens * (width * QKV_BACKWARD_BYTES + turned * SCALED_ROTARY_BYTES[1]),
            saved=saved,
            comms=tp_entry_comms(model, shape),
        ),
    )


def mla_ops(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[Op, ...]:
    """Low-rank query and key/value projections (arXiv 2405.04434, section 2.1).

    Down-projections are replicated over tp, up-projections sharded by heads. Saved: the table's
    ``mla_query``, ``mla_kv`` (compressed vectors with their norms) and ``mla_qkv`` (expanded
    queries, keys and values) sections.
    """
    mla = model.mla
    assert mla is not None
    tokens, hidden = shape.num_tokens, ZERO + model.hidden_size
    heads = model.num_heads / shape.tp
    qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    rank = float(mla.q_lora_rank)
    kv_rank = float(mla.kv_lora_rank)
    parts = {name: part.total for name, part in attention_params(model, shape.tp).items()}
    query_rank = ZERO + rank if mla.q_lora_rank else hidden
    query_down = (
        linear("query_down", tokens, ZERO + rank, hidden, parts["query_down"]),
        Op(
            name="query_norm",
            params=parts["query_down_norm"],
            saved=saved_by("query_norm", "mla_query", model, shape, traits),
        ),
    )
    width = heads * (2.0 * qk_dim + mla.v_head_dim)
    expanded = saved_by("kv_up", "mla_qkv", model, shape, traits, widths={"kv": heads * qk_dim})
    if mla.stays_latent:
        expanded = tuple(tensor for tensor in expanded if tensor.name == "kv_up.query")
    return (
        *(query_down if mla.q_lora_rank else ()),
        linear("query_up", tokens, heads * qk_dim, query_rank, parts["query_up"]),
        linear("kv_down", tokens, ZERO + kv_rank + mla.qk_rope_head_dim, hidden, parts["kv_down"]),
        Op(
            name="kv_norm",
            params=parts["kv_down_norm"],
            saved=saved_by("kv_norm", "mla_kv", model, shape, traits),
        ),
        Op(
            name="kv_up",
            params=parts["kv_up"],
            gemms=(
                Gemm(
                    m=tokens,
                    n=heads * (mla.qk_nope_head_dim + mla.v_head_dim) * (not mla.output_groups),
                    k=ZERO + kv_rank,
                    follows_norm=True,
                ),
            ),
            forward_bytes=tokens * width * QKV_FORWARD_BYTES,
            backward_bytes=tokens * width * QKV_BACKWARD_BYTES,
            saved=expanded,
            comms=tp_entry_comms(model, shape),
        ),
    )


@item(
    "memory.activations.attention_core",
    inputs=(
        *SHAPE,
        "traits.kernels.attention",
        "traits.kernels.dropout",
    ),
)
def core_op(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> Op:
    """Scores, softmax and weighted values.

    FLOPs of the square: 2·s²·heads·(d_qk + d_v)/(tp·cp) per sequence; flash kernels of decoders
    skip the masked half, other documents (``s·Σl²/Σl`` in place of s²) and what lies outside a
    sliding window. Saved: the table's
    ``attention_core.flash`` or ``.unfused`` section. Excludes windows of unfused attention.
    """
    heads = model.num_heads / shape.tp
    tokens, seq_len = shape.num_tokens, shape.seq_len
    document = np.minimum(seq_len, shape.document_tokens)
    causal = np.asarray(0.5 if model.architecture == "decoder" else 1.0)
    if model.indexer:
        causal = mean_keys(model.indexer.top_k, document) / document
    value_dim = float(model.value_dim)
    keys_and_values = 2.0 * tokens * local_kv_size(model, shape.tp)
    kv_bytes = keys_and_values * shape.element_bytes * shape.cp
    ring = Comm(collective="all_gather", axis="cp", num_bytes=kv_bytes * (shape.cp > 1))
    comms = ((ring,), (ring, replace(ring, collective="reduce_scatter")))
    if traits.attention not in SCORE_BYTES:
        ring_overhead = traits.ring_attention_overhead_fraction * (1.0 - 1.0 / shape.cp)
        queries = tokens * model.query_size / shape.tp
        cast = (queries + keys_and_values, tokens * model.value_size / shape.tp)
        return Op(
            name="attention_core",
            attention=FlashAttention(
                kernel=traits.flash_kernel,
                quantised=cast if "attention" in traits.in_8_bit else None,
                square_flops=2.0 * tokens * document * heads * (model.head_dim + value_dim),
                causal_fraction=causal,
                seq_len=document,
                head_dim=(model.head_dim + value_dim) / 2.0,
                num_tiles=heads * tokens / ATTENTION_BLOCK,
                windowed_share=model.windowed_share,
                window=float(model.sliding_window),
                rate_fraction=traits.attention_rate_fraction / (1.0 + ring_overhead),
            ),
            saved=saved_by("attention_core", "attention_core.flash", model, shape, traits),
            comms=comms,
        )
    scores = tokens * seq_len * heads
    batch = shape.micro_batch * heads
    rows, columns = tokens / shape.micro_batch, ZERO + seq_len
    return Op(
        name="attention_core",
        gemms=(
            Gemm(m=rows, n=columns, k=ZERO + model.head_dim, count=batch, has_weight=False),
            Gemm(m=rows, n=ZERO + value_dim, k=columns, count=batch, has_weight=False),
        ),
        forward_bytes=scores * SCORE_BYTES[traits.attention][0],
        backward_bytes=scores * SCORE_BYTES[traits.attention][1],
        saved=saved_by("attention_core", "attention_core.unfused", model, shape, traits),
        comms=comms,
    )


def mean_keys(most: float, seq_len: Array | float) -> Array:
    """Mean keys that a causal query sees: ``k - k(k-1)/2s``, of shorter sequences half of all.

    The first k queries see all before them, the others k. Source: arXiv 2512.02556, section 2.1.
    """
    long = most - most * (most - 1.0) / (2.0 * np.asarray(seq_len))
    return np.where(np.asarray(seq_len) > most, long, np.asarray(seq_len) / 2.0)


def latent_keys(model: ModelSpec, mla: MlaSpec, seq_len: Array | float) -> Array:
    """Mean latent keys that a query sees: the chosen ones, or a window and pooled entries besides.

    Of entries of r tokens a query sees one for every r before it, at most as many as its indexer
    chooses. Source: as :func:`mean_keys`; transformers modeling_deepseek_v4.py.
    """
    chosen = mla.indexer.top_k if mla.indexer else MAX_SEQ_LEN
    if not mla.output_groups:
        return mean_keys(chosen, seq_len)
    window, ratio = mean_keys(model.sliding_window, seq_len), mla.ratio
    return window + (mean_keys(chosen * ratio, seq_len) / ratio if ratio else 0.0)


@item(
    "memory.activations.indexer",
    inputs=(
        *SHAPE,
        "model.mla",
        "model.indexer",
    ),
)
def indexer_op(
    model: ModelSpec, indexer: IndexerSpec, shape: LayerShape, traits: KernelTraits
) -> Op:
    """Projections and scores of the indexer, whole on every tp rank.

    FLOPs: those of its matrices, and scores ``2·i·j`` of i heads of j with every key, or pooled
    entry, before: what is left of the square. Kept: its queries, keys and weights. Excludes the
    choice of the top k, and that training it needs no gradient of its input. Source: Megatron-Core
    transformer/experimental_attention_variant/dsa.py.
    """
    tokens, document = shape.num_tokens, np.minimum(shape.seq_len, shape.document_tokens)
    size, ratio = float(indexer.num_heads * indexer.head_dim), model.mla.ratio if model.mla else 0
    parts = indexer_params(model)
    own = [part for name, part in parts.items() if name != "indexer_vectors" and part.rows]
    return Op(
        name="indexer",
        params=ZERO + sum(part.total for part in parts.values()),
        gemms=tuple(Gemm(m=tokens, n=ZERO + part.rows, k=ZERO + part.columns) for part in own),
        attention=FlashAttention(
            kernel=traits.flash_kernel,
            square_flops=2.0 * tokens * document * size / (ratio or 1),
            causal_fraction=0.5,
            seq_len=document,
            head_dim=float(indexer.head_dim),
            num_tiles=indexer.num_heads * tokens / ATTENTION_BLOCK,
            rate_fraction=traits.attention_rate_fraction,
        ),
        saved=(shape.kept("indexer.kept", ZERO + sum(float(part.rows) for part in own)),),
    )


@item(
    "memory.activations.compressor",
    inputs=(
        *SHAPE,
        "model.mla",
    ),
)
def compressor_op(model: ModelSpec, shape: LayerShape) -> Op:
    """Entries that stand for several tokens each: means of their keys by gates of their own.

    Kept: keys and gates, w·c each (:func:`parameters.latent_attention_params`). Whole on every tp
    rank. Source: DeepSeek-V4, section 2.3; transformers modeling_deepseek_v4.py.
    """
    parts = attention_params(model)
    part = parts["compressor"]
    rows = float(part.rows)
    moved = shape.num_tokens * rows * shape.element_bytes
    return Op(
        name="compressor",
        params=ZERO + part.total + parts["compressor_vectors"].total,
        gemms=(Gemm(m=shape.num_tokens, n=ZERO + rows, k=ZERO + model.hidden_size),),
        forward_bytes=moved,
        backward_bytes=2.0 * moved,
        saved=(shape.kept("compressor.kept", ZERO + rows),),
    )


def sparse_core_op(model: ModelSpec, mla: MlaSpec, shape: LayerShape, traits: KernelTraits) -> Op:
    """Attention over latent keys, in their width (absorbed).

    FLOPs: ``2·a·keys ((c + p) + c)`` per token, keys as in :func:`latent_keys`. Kept: absorbed
    queries a(c + p), outputs a·c, and the choice. Under cp the latent keys of all ranks are
    gathered. Source: as :func:`indexer_op`; arXiv 2405.04434, section 2.1.2 for absorption.
    """
    tokens, heads = shape.num_tokens, model.num_heads / shape.tp
    keys = latent_keys(model, mla, np.minimum(shape.seq_len, shape.document_tokens))
    wide = float(mla.kv_lora_rank + mla.qk_rope_head_dim)
    latent = tokens * wide * shape.element_bytes * shape.cp * (shape.cp > 1)
    gather = Comm(collective="all_gather", axis="cp", num_bytes=latent)
    chosen = shape.kept("attention_core.chosen", ZERO + (mla.indexer.top_k if mla.indexer else 0))
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
            replace(chosen, element_bytes=4.0),  # positions of the chosen keys
        ),
        comms=((gather,), (gather, replace(gather, collective="reduce_scatter"))),
    )


@item("memory.activations.attention_output", inputs=SHAPE)
def output_op(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> Op:
    """Row-parallel output projection; keeps the table's ``attention_output`` section.

    DeepSeek-V4 projects groups of heads first, each to its rank.
    """
    parts, tokens = attention_params(model, shape.tp), shape.num_tokens
    names = ("output_groups", "attention_output")
    own = [part for name in names if (part := parts.get(name)) and part.rows.any()]
    return Op(
        name="attention_output",
        params=ZERO + sum(part.total for part in own),
        gemms=tuple(Gemm(m=tokens, n=ZERO + part.rows, k=ZERO + part.columns) for part in own),
        saved=saved_by("attention_output", "attention_output", model, shape, traits),
        comms=tp_exit_comms(model, shape),
    )


@item("memory.activations.head_gates", inputs=(*SHAPE, "model.num_heads"))
def head_gates_op(model: ModelSpec, shape: LayerShape) -> Op:
    """One gate per head, from the layer's input, times the head's output.

    Kept: the gates, and the product, which the output projection reads. Source: transformers
    modeling_step3p7.py, modeling_bailing_hybrid.py.
    """
    tokens, heads = shape.num_tokens, model.num_heads / shape.tp
    product = heads * model.value_dim
    moved = tokens * product * shape.element_bytes
    return Op(
        name="head_gates",
        params=attention_params(model, shape.tp)["head_gates"].total,
        gemms=(Gemm(m=tokens, n=heads, k=ZERO + model.hidden_size),),
        forward_bytes=2.0 * moved,
        backward_bytes=4.0 * moved,
        saved=(shape.kept("head_gates.kept", heads + product),),
    )


def attention_ops(model: ModelSpec, shape: LayerShape, traits: KernelTraits) -> tuple[Op, ...]:
    """Self-attention of one layer as Ops, in execution order."""
    mla, indexer = model.mla, model.chooser
    cores = [core_op(model, shape, traits)]
    if mla and mla.stays_latent:
        cores = [sparse_core_op(model, mla, shape, traits)]
        cores = [compressor_op(model, shape), *cores] if mla.ratio else cores
    if indexer and indexer.num_heads:  # else the keys are those that a layer before has chosen
        cores = [indexer_op(model, indexer, shape, traits), *cores]
    return (
        norm_op("attention_norm", model, shape, traits),
        *(mla_ops if model.mla else qkv_ops)(model, shape, traits),
        *cores,
        *((head_gates_op(model, shape),) if model.gated_heads else ()),
        output_op(model, shape, traits),
    )
