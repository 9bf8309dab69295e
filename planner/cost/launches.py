"""What the host takes to launch a layer's kernels: a floor under the time they take to run."""

from collections.abc import Iterable

import numpy as np

from planner.layers.block import LayerGroup
from planner.layers.op import ZERO, Comm, Op
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import KernelTraits
from planner.units import Array

BACKWARD_PRODUCTS = 2.0
"""Kernels of a product's backward: the gradients of its two operands."""


def _collectives(comms: Iterable[Comm], strategy: StrategyColumns) -> Array:
    """Collectives that send something, of groups with more than one rank."""
    return ZERO + sum(
        np.where((getattr(strategy, comm.axis) > 1) & (comm.num_bytes > 0), 1.0, 0.0)
        for comm in comms
    )


def grouped_calls(op: Op) -> Array:
    """Products of a rank's experts that one pass through an op calls one by one; C.

    Experts on the rank times grouped products: Transformer Engine calls cuBLAS per expert on a few
    streams (general_grouped_gemm). A group of one is an ordinary product.
    """
    return ZERO + sum(np.asarray(gemm.count, dtype=float) for gemm in op.gemms if op.is_expert)


def traffic_kernels(op: Op, kernels: KernelTraits) -> float:
    """Kernels that move an op's traffic: the framework's, none where its own are counted apart."""
    return 0.0 if op.has_own_kernels else kernels.memory_bound_kernels


def forward_launches(op: Op, kernels: KernelTraits, strategy: StrategyColumns) -> Array:
    """Kernels that the host launches in one op's forward; C.

    One for every product, batched and grouped ones included, and for fused attention;
    :func:`traffic_kernels` where the op moves data through HBM; one for every collective.
    Source: counted in the frameworks' modules. Excludes views and allocations, whose time is part
    of a launch's.
    """
    own = len(op.gemms) + (op.attention is not None) + op.small_kernels[0] + op.tiny_kernels[0]
    moves = np.where(op.forward_bytes > 0, traffic_kernels(op, kernels), 0.0)
    return own + moves + _collectives(op.forward_comms, strategy)


def backward_launches(op: Op, kernels: KernelTraits, strategy: StrategyColumns) -> Array:
    """Kernels that the host launches in one op's backward; C.

    As :func:`forward_launches`, with two for every product, one where its weight is
    frozen.
    """
    products = sum(1.0 if gemm.is_frozen else BACKWARD_PRODUCTS for gemm in op.gemms)
    own = products + (op.attention is not None) + op.small_kernels[1] + op.tiny_kernels[1]
    moves = np.where(op.backward_bytes > 0, traffic_kernels(op, kernels), 0.0)
    return own + moves + _collectives(op.backward_comms, strategy)


Passes = tuple[Array, Array, Array]
"""Seconds of a layer's forward, its backward and a repeated forward."""


def launch_floors_s(group: LayerGroup, kernels: KernelTraits, strategy: StrategyColumns) -> Passes:
    """Host seconds to launch one layer's forward, its backward and a repeated forward; C each.

    ``launches · launch_s``, for a mixture at least what routing and dispatch were seen to take,
    and ``calls · grouped_launch_s`` for the products of its experts (:func:`grouped_calls`, twice
    in backward). All less what CUDA graphs replay: graphs of a part of the layer leave experts
    out, so that their products are launched unless the whole iteration is replayed.
    """
    launched = 1.0 - kernels.cuda_graph_fraction
    forward = ZERO + sum(forward_launches(op, kernels, strategy) for op in group.ops)
    backward = ZERO + sum(backward_launches(op, kernels, strategy) for op in group.ops)
    forward, backward = forward * kernels.launch_s, backward * kernels.launch_s
    if group.name != "moe":
        spared = [forward_launches(op, kernels, strategy) for op in group.ops if op.is_spared]
        repeated = forward - sum(spared) * kernels.launch_s
        return forward * launched, backward * launched, repeated * launched
    calls = ZERO + sum(grouped_calls(op) for op in group.ops)
    calls_s = calls * kernels.grouped_launch_s * (launched > 0)
    forward = np.maximum(forward, kernels.moe_launch_forward_s) * launched
    backward = np.maximum(backward, kernels.moe_launch_backward_s) * launched
    return forward + calls_s, backward + BACKWARD_PRODUCTS * calls_s, forward + calls_s


def launch_waits_s(
    kernels_s: Passes, floors_s: Passes, *, waits_for_kernels: bool = False
) -> Passes:
    """Seconds a layer's kernels wait for the host: in forward, in backward, in a repeated forward.

    Launching is asynchronous, so that the host runs ahead in one pass what it lacks in the other:
    a micro-batch takes ``max(kernels, launches)`` of all its passes together, each the sum over
    passes. What is waited is dealt out to the passes that lack it. A repeated forward waits for
    what the sum with it is longer than without it. A host that waits for every kernel
    (CUDA_LAUNCH_BLOCKING) is never ahead: all launches show. Excludes points at which the framework
    waits for the device, after which the host is no longer ahead.
    """
    if waits_for_kernels:
        return floors_s
    forward, backward, again = (
        floor - seconds for floor, seconds in zip(floors_s, kernels_s, strict=True)
    )
    short_forward, short_backward = np.maximum(forward, 0.0), np.maximum(backward, 0.0)
    lacking = forward + backward
    waited = np.maximum(lacking, 0.0)
    short = short_forward + short_backward
    share = np.divide(waited, short, out=np.zeros_like(short), where=short > 0)
    repeated = np.maximum(lacking + again, 0.0) - waited
    return short_forward * share, short_backward * share, np.maximum(repeated, 0.0)
