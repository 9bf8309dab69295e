"""DualPipe: two streams of micro-batches in opposite directions (arXiv 2412.19437, section 3.2).

Of p devices, device i holds stages i and p - 1 - i: every parameter twice. Half of the
micro-batches enter at device 0, half at device p - 1, and a forward of one stream runs together
with a backward of the other. DualPipe-V is half of it: p/2 devices, each with the two stages, one
stream that comes back the way it went, and every parameter once. Sources: the report's table 2 and
figure 5, https://github.com/deepseek-ai/DualPipe, torch's ScheduleDualPipeV.

Symbols: F, B, W seconds of one micro-batch on a whole stage, gradient of input (B) and weights (W)
apart; the report's B is the sum of the two here.
"""

import numpy as np

from planner.schedules.closed_form import Order, OrderBuilder
from planner.units import Array


def bubble_s(forward_s: Array, backward_s: Array, weight_s: Array, pp: Array) -> Array:
    """``(p/2 - 1)(F&B + (B + W) - 3W)`` with ``F&B = F + B + W``.

    Idle seconds of the middle devices, in p stages' terms; a DualPipe-V of P devices is p = 2P.
    Source: table 2. The event simulation agrees for F = B and W <= F; elsewhere it is below where
    B > F and above where F > B or W > F. Raises nothing; p must be even.
    """
    together = forward_s + backward_s + weight_s
    return np.asarray((pp / 2.0 - 1.0) * (together + backward_s - 2.0 * weight_s))


def in_flight(pp: Array | float, num_micro_batches: Array) -> Array:
    """Stages' activations a device holds: ``min(p + 1, 2 · m)``, of p stages (table 2: PP + 1).

    A DualPipe-V of P devices holds 2P + 1 halves: P + 1/2 micro-batches of both chunks. ``m``
    micro-batches pass each of the two stages.
    """
    return np.minimum(pp + 1.0, 2.0 * num_micro_batches)


def _order(builder: OrderBuilder, rank: int, num_ranks: int, num_micro_batches: int) -> Order:
    """The eight steps of a device ``rank`` places from the end; m micro-batches a stage.

    Local chunk 0 is the one on the way in, 1 the one on the way out.
    """
    if num_micro_batches < 2 * num_ranks:
        raise ValueError(
            f"DualPipe needs at least {2 * num_ranks} micro-batches per direction; "
            f"given {num_micro_batches}"
        )
    behind = num_ranks - rank - 1
    # Steps 1 to 3: forwards in, forwards both ways, the first backwards.
    for _ in range(2 * behind):
        builder.forward(0)
    for _ in range(rank + 1):
        builder.forward(0)
        builder.forward(1)
    for _ in range(behind):
        builder.split_backward(1)
        builder.forward(1)
    # Step 4: both streams, one's forward beside the other's backward.
    for step in range(num_micro_batches - 2 * num_ranks + rank + 1):
        if step == 0 and behind == 0:
            builder.forward(0)
            builder.backward(1)
        else:
            builder.together(0, 1)
        builder.together(1, 0)
    _drain(builder, rank, behind)
    return tuple(builder.slots)


def _drain(builder: OrderBuilder, rank: int, behind: int) -> None:
    """Steps 5 to 8: the last forwards, backwards, then weight gradients that were put off."""
    for _ in range(behind):
        builder.backward(1)
        builder.together(1, 0)
    for number in range(2 * (rank + 1)):
        if number > rank:
            builder.input_gradient(1 - number % 2)
        else:
            builder.backward(1 - number % 2)
    for _ in range(behind):
        builder.weight_gradient()
        builder.input_gradient(0)
    builder.remaining_weight_gradients()


def order(device: int, num_devices: int, num_micro_batches: int) -> Order:
    """Return a device's order in DualPipe: stages i and p - 1 - i, m / 2 micro-batches each way.

    Raises ValueError for an odd p or m, and for m < 2p.
    """
    if num_devices % 2 or num_micro_batches % 2:
        raise ValueError(
            "DualPipe needs an even number of devices and of micro-batches; "
            f"given {num_devices} and {num_micro_batches}"
        )
    half, mirror = num_micro_batches // 2, num_devices - 1 - device
    if device < mirror:
        builder = OrderBuilder(chunks=(device, mirror), first_micro_batches=(0, half))
    else:
        builder = OrderBuilder(chunks=(mirror, device), first_micro_batches=(half, 0))
    return _order(builder, min(device, mirror), num_devices // 2, half)


def order_v(device: int, num_devices: int, num_micro_batches: int) -> Order:
    """Return a device's order in DualPipe-V: chunks i and 2p - 1 - i. ValueError for m < 2p."""
    builder = OrderBuilder(chunks=(device, 2 * num_devices - 1 - device))
    return _order(builder, device, num_devices, num_micro_batches)
