"""Seconds of a layer's weight gradients, which zero-bubble schedules run apart."""

import numpy as np

from planner.cost.context import Context
from planner.cost.kernels import gemm_weight_gradient_s, memory_bound_s
from planner.cost.layer import distinct_shapes, layer_shape, timed_shape
from planner.cost.layer_time import op_precision, product_gradient_bytes
from planner.layers.block import layer_groups
from planner.layers.op import ZERO, Op
from planner.spec.precision import under_precision
from planner.spec.strategy import StrategyColumns
from planner.units import Array


def _op_weight_gradient_s(op: Op, context: Context) -> Array:
    accelerator = context.cluster.accelerator
    kernels = context.traits.kernels
    precision = op_precision(op, context.job, kernels)
    wgrad_bytes = product_gradient_bytes(context.traits)
    products = ZERO + sum(
        gemm_weight_gradient_s(gemm, accelerator, precision, wgrad_bytes)
        for gemm in op.gemms
        if gemm.has_weight and not gemm.is_frozen
    )
    if op.is_expert:
        products = products / kernels.grouped_rate_fraction
    traffic = op.params * kernels.weight_gradient_bytes
    return products + memory_bound_s(traffic, accelerator)


def layer_weight_gradient_s(context: Context, strategy: StrategyColumns) -> Array:
    """``Σ (k x m by m x n product) + accumulation`` over a layer's weights, per micro-batch.

    Mean over the kinds of layers. Part of the layer's backward; attention and element-wise kernels
    have none. Source: arXiv 2401.10241, section 1 (the split of a backward).
    """
    rows, index = distinct_shapes(strategy, context.traits.kernels)
    shape = timed_shape(layer_shape(rows, context.job), context.job)
    kinds = layer_groups(
        context.model, shape, under_precision(context.traits, context.job.precision)
    )
    num_layers = sum(kind.num_layers for kind in kinds)
    total = ZERO + sum(
        _op_weight_gradient_s(op, context) * (kind.num_layers / num_layers)
        for kind in kinds
        for op in kind.ops
    )
    seconds: Array = np.broadcast_to(total, (len(rows),))[index]
    return seconds
