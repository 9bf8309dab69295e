"""Zero-bubble schedules: weight gradients wait until a device has nothing else to do.

ZB-H1, ZB-H2 and ZB-V (Qi et al., arXiv 2401.10241, sections 2 and 6; ZB-V also arXiv 2405.15362,
where it is V-ZB). A backward is split into the gradient of the input (B), which the stage before
waits for, and that of the weights (W), which nobody waits for. With k = 1 (H1) or 2 (H2) every
device starts k forwards earlier per stage behind it than under plain alternation and defers k · i
weight gradients. ZB-V gives device i chunks i and 2p - 1 - i, so that embedding and head share
device 0.

Symbols: F, B, W seconds of one micro-batch on a whole stage; T = F + B + W; p devices, m
micro-batches, v chunks per device.
"""

import numpy as np

from planner.schedules.closed_form import Order, OrderBuilder
from planner.units import Array


def bubble_h_s(
    forward_s: Array, backward_s: Array, weight_s: Array, k: Array | int, *, in_step: bool = True
) -> Array:
    """ZB-H bubble per stage behind the first: ``max(F, B - (k-1)F, F + B - kW)``.

    k = 1: H1, 2: H2. Makespan of equal stages: ``m T + (p - 1) / v · this``, for m >= p (H1) or
    m >= 2p - 1 (H2). The first term is there only ``in_step``, where the optimizer waits for all
    devices; else (post-validation, section 4) the period is one device's own span. Table 2 of the
    paper has the third term, (p-1)(F + B - W) and (p-1)(F + B - 2W), written for F = B = W; the
    second appears where F < W.
    """
    behind = backward_s - (k - 1) * forward_s
    late = np.maximum(behind, forward_s + backward_s - k * weight_s)
    return np.asarray(np.maximum(late, forward_s if in_step else 0.0))


def bubble_v_s(
    forward_s: Array, backward_s: Array, weight_s: Array, *, in_step: bool = True
) -> Array:
    """ZB-V bubble per stage behind the first: ``max(B, 2(B - W)) / 2``.

    Makespan of equal chunks: ``m T + (p - 1) · this``, for m >= 2p - 1, F <= B and W <= B; forwards
    longer than that wait for each other in ways only the event simulation tells. ``in_step`` as
    in :func:`bubble_h_s`; without it ``max(B - F, 2(B - W)) / 2``, 0 where F = B = W (section 6).
    """
    early = backward_s if in_step else backward_s - forward_s
    return 0.5 * np.maximum(np.maximum(early, 2.0 * (backward_s - weight_s)), 0.0)


def in_flight(pp: Array | float, num_micro_batches: Array, k: Array | int) -> Array:
    """Micro-batches a device holds activations of, from F to W: ``min(k (p - 1) + 1, m)``.

    Every device alike; ZB-V as k = 1, in units of both chunks. The paper's table 2 counts p M_B
    and (2p - 1) M_B, of which device i has (k(p - 1 - i) + 1) M_B before B and the rest between B
    and W, where M_W <= M_B. Here M_W = M_B: an upper bound. Excludes outputs' gradients for W.
    """
    return np.minimum(k * (pp - 1.0) + 1.0, num_micro_batches)


def order_v(device: int, num_devices: int, num_micro_batches: int) -> Order:
    """Return a device's order in ZB-V: down the V with chunk i, up with chunk 2p - 1 - i.

    Warm-up: forwards of the lower chunk until the first comes back up, both in turn, then the
    upper chunk's F, B, W until its counterpart's first backward is due. Steady: F, B, W of either
    chunk in turn. At the end B first, W last. Written for m >= 2p - 1; with fewer the later
    micro-batches are left out, as torch's ScheduleZBVZeroBubble does.
    """
    builder = OrderBuilder(chunks=(device, 2 * num_devices - 1 - device))
    behind, total = num_devices - device, max(num_micro_batches, 2 * num_devices - 1)
    for _ in range(2 * behind - 1):
        builder.forward(0)
    for _ in range(device):
        builder.forward(1)
        builder.forward(0)
    for _ in range(behind):
        builder.forward(1)
        builder.split_backward(1)
    for number in range(total - num_devices):
        if number < total - (num_devices + behind - 1):
            builder.forward(0)
        builder.split_backward(0)
        builder.forward(1)
        builder.split_backward(1)
    for _ in range(device):
        builder.input_gradient(0)
        builder.input_gradient(1)
    for _ in range(behind):
        builder.input_gradient(0)
        builder.weight_gradient(0)
    builder.remaining_weight_gradients(1)
    builder.remaining_weight_gradients(0)
    return tuple(slot for slot in builder.slots if slot[0].micro_batch < num_micro_batches)
