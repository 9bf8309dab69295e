"""Tensors an op keeps for backward: the implementation's table applied to one layer's sizes."""

from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from planner.layers.op import ONE, ZERO, Gemm, LayerShape, Op, SavedTensor, kept_token_fraction
from planner.spec.model import ModelSpec
from planner.spec.saved import Width
from planner.spec.traits import KernelTraits, RecomputeModule, RecomputeTraits
from planner.units import Array


def local_kv_size(model: ModelSpec, tp: Array) -> Array:
    """Width of the key heads one tp rank holds, of values of another width the mean of both.

    Heads are replicated when tp exceeds their number.
    """
    width = model.head_dim if model.mla else (model.head_dim + model.value_dim) / 2.0
    return np.maximum(model.num_kv_heads / tp, 1.0) * width


def token_widths(model: ModelSpec, shape: LayerShape, received: Array = ONE) -> dict[Width, Array]:
    """Elements per token of every width a table may name, on one rank.

    With h hidden, a heads, e head size, d_v value size, f feed-forward, k experts per token,
    t = tp: ``query`` a·e/t, ``kv`` local key heads · e (one of key or value), ``context``
    a·d_v/t, ``heads`` a/t, ``scores`` a·s/t, ``ffn`` f/t, ``pairs_hidden`` k·h·etp/t,
    ``pairs_gathered`` k·etp/t, ``pairs_ffn`` k·f_expert/t (the expert's own pairs, of which each
    keeps f_expert/etp), the first and the last times ``received``,
    the share of the busiest rank of experts (:func:`kept_token_fraction`);
    ``hidden_sp`` and the router's ``experts`` and ``pairs`` are divided by t only under sequence
    parallelism, ``experts_gathered`` never. ``logits`` depends on the framework's padding and is
    given by the head, ``adapter_input`` and ``adapter_rank`` by the adapters of a projection.
    """
    tp, sp = shape.tp, shape.sp
    moe, mla = model.moe, model.mla
    widths: dict[Width, Array] = {
        "one": ONE,
        "hidden": ZERO + model.hidden_size,
        "hidden_sp": model.hidden_size / sp,
        "query": model.query_size / tp,
        "kv": local_kv_size(model, tp),
        "context": model.value_size / tp,
        "heads": model.num_heads / tp,
        "scores": model.num_heads / tp * shape.seq_len,
        "ffn": model.ffn_size / tp,
    }
    if moe:
        pairs = moe.mean_experts * shape.expert_share
        widths |= {
            "shared_ffn": moe.shared_ffn_size / tp,
            "experts": moe.num_experts / sp,
            "experts_gathered": ZERO + moe.num_experts,
            "pairs": moe.mean_experts / sp,
            "pairs_gathered": pairs,
            "pairs_hidden": pairs * model.expert_hidden_size * received,
            "pairs_ffn": moe.mean_experts * moe.expert_ffn_size * received / tp,
        }
    if mla:
        widths |= {
            "query_rank": ZERO + mla.q_lora_rank,
            "expanded": model.num_heads / tp * (mla.qk_nope_head_dim + mla.v_head_dim),
            "kv_rank": ZERO + mla.kv_lora_rank,
            "rope": ZERO + mla.qk_rope_head_dim,
        }
    return widths


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
    known = token_widths(model, shape, kept_token_fraction(shape, traits))
    if not traits.gathers_expert_pairs:  # tokens are gathered before they are routed
        routed = np.where(np.asarray(shape.etp) > 1, shape.sp, 1)
        known |= {name: known[name] * routed for name in ("experts", "pairs") if model.moe}
    known |= widths or {}
    sharded = np.where(shape.sp > 1, 1.0, 0.0)
    exists: dict[str, Array] = {
        "always": ONE,
        "trained": ONE,
        "dropout": ONE,
        "context_exchange": np.where(shape.cp > 1, 1.0, 0.0) * traits.exchanges_context,
        "tensor_parallel": np.where(shape.tp > 1, 1.0, 0.0),
        "sequence_parallel": sharded,
        "trained_sequence_parallel": sharded,
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
        if entry.element_bytes and (entry.when != "dropout" or traits.dropout)
    )


def _is_any(tensor: SavedTensor, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(tensor.name, pattern) for pattern in patterns)


def without_module(op: Op, module: RecomputeModule, names: set[str]) -> Op:
    """Drop what a module rebuilds from an op's kept tensors; its forward share is repeated.

    ``names`` are the ops of the layer.
    """
    if module.only_beside.get(op.name, op.name) not in names:
        return op
    return replace(
        op,
        selective_fraction=max(float(op.selective_fraction), module.repeats.get(op.name, 0.0)),
        selective_saved=tuple(tensor for tensor in op.kept if not _is_any(tensor, module.drops)),
    )


def matmul_widths(
    op: Op, gemm: Gemm, model: ModelSpec, shape: LayerShape, *, fused_qkv: bool
) -> dict[str, Array]:
    """Output widths of the matmuls that one product of an op stands for, in the order they run."""
    if op.name == "qkv" and not fused_qkv:
        kv = local_kv_size(model, shape.tp)
        return {"query": gemm.n - 2.0 * kv, "key": kv, "value": kv}
    if op.name in ("mlp_up", "shared_expert_up") and model.gated_mlp:
        return {"gate": gemm.n / 2.0, "up": gemm.n / 2.0}
    return {"output": gemm.n}


def every_second_matmul(
    ops: tuple[Op, ...], model: ModelSpec, shape: LayerShape, module: RecomputeModule
) -> tuple[Op, ...]:
    """Keep what every second matmul, attention, top-k and collectives return; repeat the rest.

    A layer's matmuls are counted as they run, but for the router's and the grouped ones of experts:
    outputs of the first, third, ... stay as the product leaves them (under tensor parallelism a
    partial sum of full width) and are not computed again. So do the block's input, attention's
    output and log-sum-exp, the experts chosen, and what reduce-scatter and all-to-all return.
    A compiler neither keeps nor repeats what backward does not read. Eager dense blocks with one
    projection of queries, keys and values keep ``8h + 4kv + 2f + 4a`` bytes per token at tp 1.
    Source: torchtitan/distributed/activation_checkpoint.py, SelectiveAC. Excludes matmuls that
    have the router's shape by chance, and the steps of ring attention.
    """
    number, found = 0, []
    for op in ops:
        kept = [each for each in op.saved if _is_any(each, module.keeps)]
        if op is ops[0]:
            kept.append(shape.kept(f"{op.name}.input", model.hidden_size / shape.sp))
        gemms, comms = [], []
        # 1 where the compiler reads what a collective made of the product.
        is_sent = 1.0 * (shape.ep > 1) if op.name == "expert_down" else ZERO
        # Attention runs its ring inside the operation whose output is kept.
        for comm in op.comms[0] if op.name != "attention_core" else ():
            # Of what is sent a rank gets its part of a sum; the busiest one its own tokens back.
            parts = shape.busiest if op.name == "combine" else ONE
            parts = getattr(shape, comm.axis) if comm.collective == "reduce_scatter" else parts
            width = comm.num_bytes / (parts * shape.num_tokens * shape.element_bytes)
            result = shape.kept(f"{op.name}.{comm.collective}", width)
            if _is_any(result, module.keeps):
                kept.append(result)
                is_sent = np.maximum(is_sent, 1.0 * (width > 0))
            else:
                comms.append(comm)
        is_unread = np.maximum(is_sent, op.name in module.unread) if module.unread else ZERO
        for gemm in op.gemms:
            widths = matmul_widths(op, gemm, model, shape, fused_qkv=module.fused_qkv)
            for name, n in widths.items():
                is_counted = not op.is_expert and op.name != "router"
                number += is_counted
                count = (1.0 - is_unread) * gemm.count
                if is_counted and number % 2:
                    kept.append(
                        shape.kept(f"{op.name}.{name}", gemm.m * n * count / shape.num_tokens)
                    )
                else:
                    gemms.append(replace(gemm, n=n, count=count))
        found.append(
            replace(
                op,
                selective_fraction=float(op.name not in ("attention_core", *module.unread)),
                selective_saved=tuple(one for one in kept if np.any(one.num_bytes)),
                selective_op=replace(op, gemms=tuple(gemms), comms=(tuple(comms), ())),
            )
        )
    return tuple(found)


def without_last_gemm(
    ops: tuple[Op, ...], model: ModelSpec, kernels: KernelTraits
) -> tuple[Op, ...]:
    """Mark a block's last product where full recomputation stops before it.

    Nothing of backward reads the output of a dense MLP's down projection, which is only added to
    the residual stream; with it goes the collective behind it. Mixtures weigh their experts'
    outputs, dropout keeps a mask, norms behind a product (BERT's, Gemma's) their input: all is
    repeated. Source: early_stop of torch/utils/checkpoint.py without re-entry, whose hooks see a
    product's inputs before it runs (counted). Excludes OLMo 2, whose norms stand behind products
    too.
    """
    # A block has two that norms what goes into attention and MLP, and nothing else.
    reads_output = kernels.dropout or not model.final_norm or model.norms_per_layer > 2
    if not kernels.stops_recomputation or reads_output or any(op.is_expert for op in ops):
        return ops
    return tuple(replace(op, is_spared=op.name == "mlp_down") for op in ops)


def with_selective_policy(
    ops: tuple[Op, ...], model: ModelSpec, shape: LayerShape, recompute: RecomputeTraits
) -> tuple[Op, ...]:
    """Return the ops of a layer with the framework's selective policy filled in."""
    names = {op.name for op in ops}
    for module in recompute.chosen:
        if module.keeps:
            return every_second_matmul(ops, model, shape, module)
        ops = tuple(without_module(op, module, names) for op in ops)
    return ops


def widened_op(op: Op, shape: LayerShape, *, gated: bool) -> Op:
    """The op with fp32 around its 4-bit products.

    ``6 m (j k + n)`` bytes more in either pass for j linear layers of k inputs and n outputs in
    all: inputs to 16 bits, outputs back, and gradients; 6 m n more to hand queries, keys and
    values to a kernel of 16 bits; element-wise kernels of the feed-forward part move twice as much.
    Source: peft/utils/other.py, prepare_model_for_kbit_training; bitsandbytes/nn/modules.py,
    Linear4bit.forward; counted. Excludes what residuals and norms move more.
    """
    if op.name == "mlp_activation":
        return replace(
            op, forward_bytes=op.forward_bytes * 2.0, backward_bytes=op.backward_bytes * 2.0
        )
    # Linear layers of an op, each of which casts its own copy of its input. Attention's output
    # projection has 16 bits on both sides.
    numbers = {"qkv": 3.0, "mlp_up": 2.0 if gated else 1.0, "mlp_down": 1.0}
    if op.name not in numbers:
        return op
    number = numbers[op.name]
    outputs = 2.0 if op.name == "qkv" else 1.0
    elements = ZERO + sum(
        number * gemm.k + outputs * gemm.n for gemm in op.gemms if gemm.has_weight
    )
    # An element cast between fp32 and 16 bits: one read, one written, or the other way round.
    cast = shape.num_tokens * elements * 6.0
    return replace(
        op, forward_bytes=op.forward_bytes + cast, backward_bytes=op.backward_bytes + cast
    )
