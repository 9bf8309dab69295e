"""Layers beside a 4-bit base whose embedding, head and norms were widened to fp32."""

from dataclasses import replace

from planner.layers.op import ZERO, LayerShape, Op

CAST_BYTES = 6.0
"""Of an element cast between fp32 and 16 bits: one read, one written, or the other way round."""
PROJECTIONS = {"qkv": 3.0, "mlp_up": 2.0, "mlp_down": 1.0}
"""Linear layers of an op, each of which casts its own copy of its input; ``mlp_up`` of a gated
model. Attention's output projection has 16 bits on both sides."""


def stream_width(widens_stream: bool) -> float:
    """Of an element between layers, over one of 16 bits."""
    return 2.0 if widens_stream else 1.0


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
    if op.name not in PROJECTIONS:
        return op
    number = 1.0 if op.name == "mlp_up" and not gated else PROJECTIONS[op.name]
    outputs = 2.0 if op.name == "qkv" else 1.0
    elements = ZERO + sum(
        number * gemm.k + outputs * gemm.n for gemm in op.gemms if gemm.has_weight
    )
    cast = shape.num_tokens * elements * CAST_BYTES
    return replace(
        op, forward_bytes=op.forward_bytes + cast, backward_bytes=op.backward_bytes + cast
    )
