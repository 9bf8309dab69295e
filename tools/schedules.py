"""Documentation drawn from the event simulator: schedules as text, and the table of them."""

from collections.abc import Sequence

from planner.schedules.closed_form import Order, Slot
from planner.schedules.simulate import (
    ChunkTimes,
    Simulation,
    device_orders,
    num_chunks,
    simulate,
)
from tools.formulas import table

DEVICES, MICRO_BATCHES = 4, 8
DRAWN = (
    ("gpipe", 1),
    ("1f1b", 1),
    ("1f1b", 2),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("dualpipe", 1),
    ("dualpipe-v", 2),
)
"""Schedule and chunks per device."""
TITLES = {("1f1b", 2): "1f1b, two chunks per device (interleaved)"}
SLOTS_PER_STAGE = 2
"""Characters of one operation of a whole stage, so that half a stage has one."""


def unit_simulation(schedule: str, vpp: int) -> Simulation:
    """F = B = W = 2 units of time for a whole stage, split evenly over its chunks."""
    chunks = num_chunks(schedule, DEVICES, vpp)
    each = [SLOTS_PER_STAGE * DEVICES / chunks] * chunks
    orders = device_orders(schedule, DEVICES, MICRO_BATCHES, vpp)
    return simulate(orders, ChunkTimes(forward_s=each, backward_s=each, weight_s=each))


def peak_in_flight(order: Order, *, until_weight: bool = True) -> int:
    """Most chunks a device holds activations of at once: from F to W, or only to B.

    Weight gradients need part of what a layer keeps, so the truth lies between the two.
    """
    held = peak = 0
    release = "W" if until_weight else "B"
    for slot in order:
        held += sum(operation.kind == "F" for operation in slot)
        peak = max(peak, held)
        held -= sum(operation.kind == release for operation in slot)
    return peak


def _row(runs: Sequence[tuple[float, float, Slot]], end: int) -> str:
    """One character per unit: a digit for forward, b for input and w for weight gradients."""
    cells = ["."] * end
    for start, stop, slot in runs:
        width = round((stop - start) / len(slot))
        for number, (kind, _, micro_batch) in enumerate(slot):
            first = round(start) + number * width
            mark = {"F": str(micro_batch), "B": "b", "W": "w"}[kind]
            cells[first : first + width] = mark * width
    return "".join(cells)


def schedule_pictures() -> str:
    """Return every schedule as rows of devices over time, with its bubble."""
    parts = []
    for schedule, vpp in DRAWN:
        run = unit_simulation(schedule, vpp)
        title = TITLES.get((schedule, vpp), schedule)
        bubble = run.makespan_s / max(run.busy_s) - 1.0
        rows = [
            f"device {device}  {_row(runs, round(run.makespan_s))}"
            for device, runs in enumerate(run.runs)
        ]
        parts.append("\n".join([f"{title}: bubble {bubble:.1%} of the work", *rows]))
    return "```text\n" + "\n\n".join(parts) + "\n```"


def schedules_table() -> str:
    """Return bubble, span, activations and parameter copies of every schedule, simulated."""
    titles = (
        "schedule",
        "bubble",
        "without waiting",
        "micro-batches in flight, by device",
        "parameter copies",
    )
    rows = []
    for schedule, vpp in DRAWN:
        run = unit_simulation(schedule, vpp)
        chunks = num_chunks(schedule, DEVICES, vpp) / DEVICES
        held = [
            f"{peak_in_flight(order) / chunks:g}"
            for order in device_orders(schedule, DEVICES, MICRO_BATCHES, vpp)
        ]
        work = max(run.busy_s)
        title = TITLES.get((schedule, vpp), schedule)
        copies = 2 if schedule == "dualpipe" else 1
        bubbles = (f"{seconds / work - 1.0:.1%}" for seconds in (run.makespan_s, run.span_s))
        rows.append((title, *bubbles, ", ".join(held), str(copies)))
    return table(titles, rows)
