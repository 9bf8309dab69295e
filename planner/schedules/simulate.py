"""Orders of all devices by the name of a schedule, and the event simulation of a pipeline."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from planner.schedules import dualpipe, zero_bubble
from planner.schedules.closed_form import Operation, Order, Slot, alternating, interleaved_order
from planner.spec.strategy import V_SHAPED


def num_chunks(schedule: str, num_devices: int, vpp: int = 1) -> int:
    """Chunks the model is cut into."""
    return num_devices * (2 if schedule in V_SHAPED else vpp)


def _order(schedule: str, device: int, p: int, m: int, vpp: int) -> Order:
    match schedule:
        case "1f1b":
            return interleaved_order(device, p, m, vpp, ahead=2 if vpp > 1 else 1)
        case "gpipe":
            # All forwards, then their backwards, oldest first.
            work = [(device, number) for number in range(m)]
            return alternating(work, work, num_warmup=m)
        case "zb-h1" | "zb-interleaved" | "zb-h2":
            # k (p - 1 - i) + (v - 1) p forwards, then F and B in turn, W behind the backward of
            # k · i later.
            k = 2 if schedule == "zb-h2" else 1
            chunks = 1 if schedule == "zb-h2" else vpp
            return interleaved_order(device, p, m, chunks, ahead=k, num_deferred=k * device)
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
    """Return the order of every device. Raises ValueError where the schedule does not exist."""
    return tuple(
        _order(schedule, device, num_devices, num_micro_batches, vpp)
        for device in range(num_devices)
    )


@dataclass(frozen=True, kw_only=True)
class ChunkTimes:
    """Seconds per micro-batch of every chunk, from embedding to loss."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]  # Gradient of the input
    weight_s: Sequence[float]  # Gradient of the weights
    p2p_s: float = 0.0
    """Between devices, either way; it delays who waits for it and occupies nobody."""

    def of(self, slot: Slot) -> float:
        """Seconds of a slot."""
        by_kind = {"F": self.forward_s, "B": self.backward_s, "W": self.weight_s}
        return sum(by_kind[kind][chunk] for kind, chunk, _ in slot)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Times at which every device ran its slots."""

    makespan_s: float  # Seconds from the first start to the last end over all devices
    span_s: float
    """Longest time a device needs from its first start to its last end: the period of iterations
    that follow each other without waiting for all devices (2401.10241, section 4)."""
    busy_s: tuple[float, ...]
    runs: tuple[tuple[tuple[float, float, Slot], ...], ...]  # Start, end and slot, by device


def inputs_of(slot: Slot, num_chunks: int) -> list[Operation]:
    """Operations whose results a slot needs, its own excluded."""
    needed = list[Operation]()
    for kind, chunk, micro_batch in slot:
        if kind == "W":
            needed.append(Operation("B", chunk, micro_batch))
            continue
        if kind == "B":
            needed.append(Operation("F", chunk, micro_batch))
        source = chunk - 1 if kind == "F" else chunk + 1
        if 0 <= source < num_chunks:
            needed.append(Operation(kind, source, micro_batch))
    return [operation for operation in needed if operation not in slot]


def simulate(orders: Sequence[Order], times: ChunkTimes) -> Simulation:
    """Run every device's order; a slot starts when its device is free and its inputs are there.

    Dependencies: F(c, m) after F(c - 1, m); B(c, m) after F(c, m) and B(c + 1, m); W(c, m) after
    B(c, m). Results of another device arrive ``p2p_s`` later. Excludes contention of transfers and
    their cost to the sender. Raises ValueError where the orders wait for each other.
    """
    num_chunks = len(times.forward_s)
    done: dict[Operation, tuple[float, int]] = {}
    waiting: dict[Operation, list[int]] = {}
    runs = [list[tuple[float, float, Slot]]() for _ in orders]
    ready = deque(range(len(orders)))
    while ready:
        device = ready.popleft()
        order, ran = orders[device], runs[device]
        while len(ran) < len(order):
            slot = order[len(ran)]
            start = ran[-1][1] if ran else 0.0
            for operation in inputs_of(slot, num_chunks):
                if operation not in done:
                    waiting.setdefault(operation, []).append(device)
                    break
                ended, where = done[operation]
                start = max(start, ended + times.p2p_s * (where != device))
            else:
                end = start + times.of(slot)
                ran.append((start, end, slot))
                for operation in slot:
                    done[operation] = (end, device)
                    ready.extend(waiting.pop(operation, ()))
                continue
            break
    for device, (order, ran) in enumerate(zip(orders, runs, strict=True)):
        if len(ran) < len(order):
            raise ValueError(f"device {device} waits for ever before {order[len(ran)]}")
    first = min(ran[0][0] for ran in runs)
    return Simulation(
        makespan_s=max(ran[-1][1] for ran in runs) - first,
        span_s=max(ran[-1][1] - ran[0][0] for ran in runs),
        busy_s=tuple(sum(end - start for start, end, _ in ran) for ran in runs),
        runs=tuple(tuple(ran) for ran in runs),
    )
