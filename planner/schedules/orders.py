"""The orders of all devices under a schedule, by its name."""

from planner.schedules import dualpipe, gpipe, interleaved, one_f_one_b, zero_bubble
from planner.schedules.operation import Order
from planner.spec.strategy import V_SHAPED


def num_chunks(schedule: str, num_devices: int, vpp: int = 1) -> int:
    """Chunks the model is cut into."""
    return num_devices * (2 if schedule in V_SHAPED else vpp)


def _order(schedule: str, device: int, p: int, m: int, vpp: int) -> Order:
    match schedule:
        case "1f1b" if vpp == 1:
            return one_f_one_b.order(device, p, m)
        case "1f1b":
            return interleaved.order(device, p, m, vpp)
        case "gpipe":
            return gpipe.order(device, m)
        case "zb-h1" | "zb-interleaved":
            return zero_bubble.order_h(device, p, m, vpp=vpp)
        case "zb-h2":
            return zero_bubble.order_h(device, p, m, k=2)
        case "zb-v":
            return zero_bubble.order_v(device, p, m)
        case "dualpipe":
            return dualpipe.order(device, p, m)
        case "dualpipe-v":
            return dualpipe.order_v(device, p, m)
    raise ValueError(f"unknown schedule {schedule!r}")


def device_orders(
    schedule: str, num_devices: int, num_micro_batches: int, vpp: int = 1
) -> tuple[Order, ...]:
    """What every device runs. Raises ValueError where the schedule does not exist."""
    return tuple(
        _order(schedule, device, num_devices, num_micro_batches, vpp)
        for device in range(num_devices)
    )
