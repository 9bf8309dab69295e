"""Selective recomputation: which ops a layer repeats in backward, and what it then keeps.

A policy is a mask over ops: per op the share of the forward that is repeated and the bytes that
stay saved.
"""

from dataclasses import replace

import numpy as np

from planner.layers.op import ELEMENT_BYTES, LayerShape, Op
from planner.spec.model import ModelSpec
from planner.spec.traits import KernelTraits
from planner.units import Array


def attention_core_policy(op: Op) -> Op:
    """Drop scores, softmax and dropout of unfused attention (arXiv 2205.05198, section 5).

    Fused kernels keep only a log-sum-exp: there is nothing to drop.
    """
    if op.name != "attention_core" or op.attention is not None:
        return op
    return replace(op, selective_fraction=1.0, selective_saved_bytes=0.0 * op.saved_bytes)


def every_second_matmul_policy(op: Op, model: ModelSpec, shape: LayerShape) -> Op:
    """Keep every second matmul's output and the attention output, repeat everything else.

    Per token: the block's input, the outputs of the query, value, gate (or up) and, when gated,
    down projections, and attention's output: ``8h + 2kv + 2f + 4a`` bytes for a gated block
    without tensor parallelism. Source: torchtitan, activation checkpointing option ``op``;
    equal to the memory of its saved tensors. Excludes mixtures of experts.
    """
    tokens = shape.num_tokens
    hidden = tokens * model.hidden_size * ELEMENT_BYTES / shape.sp
    query, kv = model.query_size / shape.tp, model.kv_size / shape.tp
    ffn = tokens * (model.ffn_size / shape.tp) * ELEMENT_BYTES
    none: Array = 0.0 * tokens
    gated = model.gated_mlp
    table: dict[str, tuple[Array | float, Array]] = {
        "attention_norm": (1.0, hidden),
        "qkv": (kv / (query + 2.0 * kv), tokens * (query + kv) * ELEMENT_BYTES),
        "attention_output": (1.0, op.saved_bytes),
        "mlp_norm": (1.0, none),
        "mlp_up": (0.5 if gated else 0.0, ffn),
        "mlp_activation": (1.0, none),
        "mlp_down": (0.0 if gated else 1.0, hidden if gated else none),
    }
    if op.name not in table:
        return op
    fraction, saved = table[op.name]
    return replace(op, selective_fraction=fraction, selective_saved_bytes=np.asarray(saved))


def with_selective_policy(
    ops: tuple[Op, ...], model: ModelSpec, shape: LayerShape, traits: KernelTraits
) -> tuple[Op, ...]:
    """Return the ops of a layer with the framework's selective policy filled in."""
    if traits.selective_policy == "every_second_matmul":
        return tuple(every_second_matmul_policy(op, model, shape) for op in ops)
    return tuple(attention_core_policy(op) for op in ops)
