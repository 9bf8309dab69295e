"""The pipeline's makespan and in-flight micro-batches for a column of schedules."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from planner.cost.context import Context
from planner.cost.kernels import gemm_weight_gradient_s, memory_bound_s
from planner.cost.layer import distinct_shapes, layer_shape, timed_shape
from planner.cost.layer_time import op_precisions, product_gradient_bytes
from planner.layers.block import layer_groups
from planner.layers.op import ZERO
from planner.schedules import dualpipe, zero_bubble
from planner.schedules.closed_form import (
    gpipe_in_flight,
    interleaved_in_flight,
    one_f_one_b_in_flight,
    one_f_one_b_makespan_s,
)
from planner.spec.items import item
from planner.spec.strategy import SCHEDULES, StrategyColumns
from planner.units import Array

_CODE = {name: code for code, name in enumerate(SCHEDULES)}


def layer_weight_gradient_s(context: Context, strategy: StrategyColumns) -> Array:
    """``Σ (k x m by m x n product) + accumulation`` over a layer's weights, per micro-batch.

    Mean over the kinds of layers. Part of the layer's backward; attention and element-wise kernels
    have none. Source: arXiv 2401.10241, section 1 (the split of a backward).
    """
    rows, index = distinct_shapes(strategy, context.traits.kernels)
    shape = timed_shape(layer_shape(rows, context.job), context.job)
    kinds = layer_groups(context.model, shape, context.traits)
    num_layers = sum(kind.num_layers for kind in kinds)
    accelerator, kernels = context.cluster.accelerator, context.traits.kernels
    inside_bytes, total = product_gradient_bytes(context.traits), ZERO
    for kind in kinds:
        for op in kind.ops:
            products_s = ZERO + sum(
                part * gemm_weight_gradient_s(gemm, accelerator, precision, inside_bytes)
                for precision, part in op_precisions(op, context.job, kernels)
                for gemm in op.gemms
                if gemm.has_weight and not gemm.is_frozen
            )
            if op.is_expert:
                products_s = products_s / kernels.grouped_rate_fraction
            traffic_s = memory_bound_s(op.params * kernels.weight_gradient_bytes, accelerator)
            total = total + (products_s + traffic_s) * (kind.num_layers / num_layers)
    return np.asarray(np.broadcast_to(total, (len(rows),))[index])


def bubble_filled_s(
    context: Context, strategy: StrategyColumns, forward_s: Array, backward_s: Array
) -> Array:
    """``(p - 1) / p · L · (T - v · bubble)`` of one layer: bubble that weight gradients fill.

    T is forward plus whole backward of a layer, bubble what its schedule leaves of it per stage
    (:mod:`planner.schedules.zero_bubble`, :mod:`planner.schedules.dualpipe`). Zero under 1F1B and
    GPipe. Embedding and head fill nothing, recomputation is not put off.
    """
    if not np.any(strategy.schedule >= _CODE["zb-h1"]):
        return np.zeros(len(strategy))
    weight_s = layer_weight_gradient_s(context, strategy)
    input_s = np.maximum(backward_s - weight_s, 0.0)
    in_step = context.traits.overlap.optimizer_waits_for_all_stages
    total = forward_s + backward_s
    h1 = zero_bubble.bubble_h_s(forward_s, input_s, weight_s, 1, in_step=in_step)
    h2 = zero_bubble.bubble_h_s(forward_s, input_s, weight_s, 2, in_step=in_step)
    v_shaped = zero_bubble.bubble_v_s(forward_s, input_s, weight_s, in_step=in_step)
    # Two chunks of a stage are two of DualPipe's stages: p = 4 has one stage behind the first.
    dual = dualpipe.bubble_s(forward_s, input_s, weight_s, np.array(4.0)) / 2.0
    bubbles = {
        "zb-h1": h1,
        "zb-h2": h2,
        "zb-interleaved": h1,
        "zb-v": 2.0 * v_shaped,
        "dualpipe-v": 2.0 * dual,
    }
    is_schedule = [strategy.schedule == _CODE[name] for name in bubbles]
    bubble = np.select(is_schedule, [*bubbles.values()], total)
    steps = (strategy.pp - 1.0) / strategy.pp
    return np.asarray(steps * context.model.num_blocks * (total - bubble))


@item(
    "time.pipeline.bubble",
    title="pipeline bubble",
    inputs=(
        "strategy.schedule",
        "strategy.pp",
        "strategy.vpp",
        "strategy.num_micro_batches",
        "traits.overlap.optimizer_waits_for_all_stages",
    ),
    also=(
        one_f_one_b_makespan_s,
        zero_bubble.bubble_h_s,
        zero_bubble.bubble_v_s,
        dualpipe.bubble_s,
        bubble_filled_s,
        layer_weight_gradient_s,
    ),
)
def makespan_s(strategy: StrategyColumns, slowest_s: Array, sum_s: Array, filled_s: Array) -> Array:
    """``m · max_i T_i + max(Σ_i T_i - max_i T_i - filled, 0) / v``.

    1F1B (v = 1), interleaved 1F1B and GPipe fill nothing of the bubble. Zero-bubble schedules fill
    part of it with weight gradients: see :func:`bubble_filled_s`. For equal stages this is each
    schedule's own closed form; unequal stages as in
    :func:`planner.schedules.closed_form.one_f_one_b_makespan_s`.
    """
    if not filled_s.any():
        return one_f_one_b_makespan_s(slowest_s, sum_s, strategy.num_micro_batches, strategy.vpp)
    bubble = np.maximum(sum_s - slowest_s - filled_s, 0.0)
    return strategy.num_micro_batches * slowest_s + bubble / strategy.vpp


def in_flight(
    stage: Array, pp: Array | float, num_micro_batches: Array, vpp: Array, schedule: Array
) -> Array:
    """Micro-batches in flight per stage, in units of all chunks of the stage."""
    held = np.where(
        vpp > 1,
        interleaved_in_flight(stage, pp, num_micro_batches, vpp),
        one_f_one_b_in_flight(stage, pp, num_micro_batches),
    )
    if not schedule.any():
        return held
    once = zero_bubble.in_flight(pp, num_micro_batches, 1)
    others = {
        "gpipe": gpipe_in_flight(num_micro_batches),
        "zb-h1": once,
        "zb-h2": zero_bubble.in_flight(pp, num_micro_batches, 2),
        "zb-interleaved": once,
        "zb-v": once,
        "dualpipe-v": dualpipe.in_flight(2.0 * pp, num_micro_batches) / 2.0,
    }
    return np.select([schedule == _CODE[name] for name in others], [*others.values()], held)


_SPLIT = (bubble_filled_s, layer_weight_gradient_s)
_ZB_H = (zero_bubble.bubble_h_s, zero_bubble.in_flight, *_SPLIT)
# What prices every schedule, and no other.
FORMULAS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "1f1b": (one_f_one_b_makespan_s, one_f_one_b_in_flight, interleaved_in_flight),
    "gpipe": (one_f_one_b_makespan_s, gpipe_in_flight),
    "zb-h1": _ZB_H,
    "zb-h2": _ZB_H,
    "zb-interleaved": _ZB_H,
    "zb-v": (zero_bubble.bubble_v_s, zero_bubble.in_flight, *_SPLIT),
    "dualpipe-v": (dualpipe.bubble_s, dualpipe.in_flight, *_SPLIT),
}
IN_FLIGHT = (
    one_f_one_b_in_flight,
    interleaved_in_flight,
    gpipe_in_flight,
    zero_bubble.in_flight,
    dualpipe.in_flight,
)
