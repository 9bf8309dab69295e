"""Selective recomputation: which ops a layer repeats in backward, and what it then keeps.

A policy is a mask over ops: per op the share of the forward that is repeated and the tensors that
stay saved.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

from planner.layers.op import LayerShape, Op, SavedTensor
from planner.layers.saved import token_widths
from planner.spec.model import ModelSpec
from planner.spec.saved import Width
from planner.spec.traits import KernelTraits, RecomputeModule, RecomputeTraits

NORMS = 2
"""Of a block that norms what goes into attention and MLP, and nothing else."""
EVERY_SECOND_MATMUL = {
    "every_second_matmul": (False, False),
    "every_second_matmul_fused_qkv": (True, False),
    "every_second_matmul_compiled": (False, True),
    "every_second_matmul_fused_qkv_compiled": (True, True),
}
"""Policies of :func:`every_second_matmul`: queries, keys and values in one projection; compiled."""


def without_module(op: Op, module: RecomputeModule, names: set[str]) -> Op:
    """Drop what a module rebuilds from an op's kept tensors; its forward share is repeated.

    ``names`` are the ops of the layer.
    """
    if module.only_beside.get(op.name, op.name) not in names:
        return op
    kept = tuple(
        tensor
        for tensor in op.kept
        if not any(fnmatchcase(tensor.name, pattern) for pattern in module.drops)
    )
    fraction = max(float(op.selective_fraction), module.repeats.get(op.name, 0.0))
    return replace(op, selective_fraction=fraction, selective_saved=kept)


def every_second_matmul(
    op: Op, model: ModelSpec, shape: LayerShape, *, fused_qkv: bool, compiled: bool
) -> Op:
    """Keep every second matmul's output and the attention output, repeat everything else.

    Per token: the block's input, the outputs of the query, value, gate (or up) and, when gated,
    down projections, and attention's output: ``8h + 2kv + 2f + 4a`` bytes for a gated block
    without tensor parallelism. One fused projection of queries, keys and values is kept whole,
    ``2kv`` more, and only the output and up projections are repeated. A compiler leaves the down
    projection's output, 2h, away: nothing reads it in backward. Source:
    torchtitan, activation checkpointing option ``op``; equal to the memory of its saved tensors.
    Excludes mixtures of experts.
    """
    gated = model.gated_mlp
    sizes = token_widths(model, shape)
    kv = model.kv_size / (model.query_size + 2.0 * model.kv_size)
    queries: dict[str, Width] = {"query": "query", "value": "kv"}
    keeps: dict[str, tuple[float, dict[str, Width]]] = {
        "attention_norm": (1.0, {"input": "hidden_sp"}),
        "qkv": (0.0, queries | {"key": "kv"}) if fused_qkv else (kv, queries),
        "attention_output": (1.0, {"input": "context"}),
        "mlp_norm": (1.0, {}),
        "mlp_up": (0.5 if gated else 0.0, {"gate": "ffn"}),
        "mlp_activation": (1.0, {}),
        "mlp_down": (0.0, {} if compiled else {"output": "hidden_sp"}) if gated else (1.0, {}),
    }
    if op.name not in keeps:
        return op
    fraction, widths = keeps[op.name]
    kept = tuple(
        SavedTensor(
            name=f"{op.name}.{name}",
            rows=shape.num_tokens,
            width=sizes[width],
            element_bytes=shape.element_bytes,
        )
        for name, width in widths.items()
    )
    return replace(op, selective_fraction=fraction, selective_saved=kept)


def with_spared_product(
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
    reads_output = kernels.dropout or not model.final_norm or model.norms_per_layer > NORMS
    if not kernels.stops_recomputation or reads_output or any(op.is_expert for op in ops):
        return ops
    return tuple(replace(op, is_spared=op.name == "mlp_down") for op in ops)


def with_selective_policy(
    ops: tuple[Op, ...], model: ModelSpec, shape: LayerShape, recompute: RecomputeTraits
) -> tuple[Op, ...]:
    """Return the ops of a layer with the framework's selective policy filled in."""
    for name, (fused_qkv, compiled) in EVERY_SECOND_MATMUL.items():
        if name in recompute.selected:
            return tuple(
                every_second_matmul(op, model, shape, fused_qkv=fused_qkv, compiled=compiled)
                for op in ops
            )
    names = {op.name for op in ops}
    for module in recompute.chosen:
        ops = tuple(without_module(op, module, names) for op in ops)
    return ops
