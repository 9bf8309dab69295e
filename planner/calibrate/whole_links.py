"""What a machine that is stated whole has between its accelerators, of host and of disks."""

from collections.abc import Sequence
from dataclasses import replace

from planner.calibrate.kernel_points import FUSED_HOST_FRACTION, HOST_ADAM_BYTES
from planner.calibrate.lines import line_of
from planner.calibrate.measured import Measured, Table
from planner.calibrate.stated import Stated, Value
from planner.collectives.cost import busbw_factor
from planner.spec.cluster import Collective
from planner.units import GB, GBIT_PER_S, KIB, TERA, US

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
UNKNOWN_GB_PER_S, UNKNOWN_LATENCY_US = 1.0, 100.0
"""Of links between ranks of a node where one process alone was measured."""
_LINKS = ("node", "scale_up")
_LINES = ("accelerator", "collectives")


def between(table: Table) -> list[Stated]:
    """Links of one node: messages, and the lines of collectives; of several, the network."""
    messages = [row for row in table.of("p2p") if row.ranks <= table.machine.per_node]
    if not messages:
        note = "assumed: nothing between ranks of a node was measured"
        return [
            Value(value=UNKNOWN_GB_PER_S, note=note).at(*_LINKS, "gb_per_s_per_direction"),
            Value(value=UNKNOWN_LATENCY_US, note=note).at(*_LINKS, "latency_us"),
            Value(value=1.0, note=note).at(*_LINKS, "efficiency_fraction"),
        ]
    rate, latency = _message(messages)
    best = max([rate.value, *_entering(table)])
    links = [
        replace(rate, value=best, note="best that any carried").at(
            *_LINKS, "gb_per_s_per_direction"
        ),
        latency.at(*_LINKS, "latency_us"),
        replace(rate, value=rate.value / best).at(*_LINKS, "efficiency_fraction"),
    ]
    return [*links, *_lines(table, best), *_network(table)]


def _entering(table: Table) -> list[float]:
    """GB/s that a rank took in, of every collective inside a node: no link is slower than that."""
    rows = [row for row in table.of(*COLLECTIVES, "p2p") if row.ranks <= table.machine.per_node]
    return [row.num_bytes / row.time_s / GB for row in rows]


def _message(rows: Sequence[Measured]) -> tuple[Value, Value]:
    """Rate in GB/s of large messages, and latency in us of small ones."""
    sizes = [row.num_bytes for row in rows]
    line = line_of(sizes, sizes, [row.time_s for row in rows])
    rate, latency = line.bytes_per_s[-1] / GB, line.latency_s[0] / US
    count, note = line.num_points, "messages between two ranks"
    return (
        Value(value=rate, deviation=line.deviation, num_points=count, note=f"large {note}"),
        Value(value=latency, deviation=line.error, num_points=count, note=f"small {note}"),
    )


def _lines(table: Table, rate_gb_per_s: float) -> list[Stated]:
    """Measured lines of every collective and group inside a node."""
    found = [Value(value=rate_gb_per_s).at(*_LINES, "measured_at_gb_per_s_per_direction")]
    for kind in COLLECTIVES:
        rows = [row for row in table.of(kind) if 1 < row.ranks <= table.machine.per_node]
        for at, ranks in enumerate(sorted({row.ranks for row in rows})):
            own = [row for row in rows if row.ranks == ranks]
            found += _line((*_LINES, kind, at), kind, ranks, own)
    return found if len(found) > 1 else []


def _line(
    path: tuple[str | int, ...], kind: Collective, ranks: int, rows: Sequence[Measured]
) -> list[Stated]:
    sizes = [float(row.num_bytes) for row in rows]
    moved = [float(busbw_factor(kind, float(ranks))) * size for size in sizes]
    line = line_of(sizes, moved, [row.time_s for row in rows])

    def stated(key: str, values: Sequence[float], unit: float) -> Stated:
        value = tuple(each / unit for each in values)
        of = line.num_points
        return Stated(path=(*path, key), value=value, deviation=line.error, num_points=of)

    parts = [
        Stated(path=(*path, "num_ranks"), value=ranks),
        stated("latency_us", line.latency_s, US),
        stated("busbw_gb_per_s", line.bytes_per_s, GB),
    ]
    return [*parts, stated("switch_kib", line.switch_bytes, KIB)] if line.switch_bytes else parts


def _network(table: Table) -> list[Stated]:
    """All ports of a node by the fastest ring through all ranks; latency by messages."""
    machine = table.machine
    total = machine.nodes * machine.per_node
    far = [row for row in table.of("p2p") if row.ranks == total]
    rings = [
        (float(busbw_factor(kind, float(total))) * row.num_bytes / row.time_s, row)
        for kind in ("all_gather", "all_reduce")
        for row in table.of(kind)
        if row.ranks == total
    ]
    if machine.nodes == 1 or not rings or not far:
        return []
    rate, best = max(rings, key=lambda each: each[0])
    note = "ring through all ranks: what the ports of a node carried of it"
    port = Value(
        value=rate / GBIT_PER_S, deviation=best.spread_s / best.time_s, num_points=1, note=note
    )
    return [
        Value(value=1, note="all ports together").at("node", "nics"),
        port.at("node", "nic_gbit_per_s"),
        _message(far)[1].at("overrides", "fabric_latency_us"),
        Value(value=1.0, note=note).at("overrides", "fabric_efficiency_fraction"),
    ]


def hosts(table: Table, memory_gb_per_s: float) -> list[Stated]:
    """What Adam moves in host memory, by a thread and by all ranks; the links to the device."""
    machine = table.machine
    row = table.of("host_adam")[0]
    moved = HOST_ADAM_BYTES * row.params / row.time_s / GB
    thread = Value(
        value=moved / max(machine.threads, 1), deviation=row.spread_s / row.time_s, num_points=1
    )
    shared = replace(
        thread,
        value=moved * machine.per_node / FUSED_HOST_FRACTION,
        note=f"Adam of all ranks, taken as {FUSED_HOST_FRACTION} of it",
    )
    return [
        thread.at("node", "host_core_gb_per_s"),
        shared.at("node", "host_memory_gb_per_s"),
        _host_link(table, memory_gb_per_s).at("node", "host_link_gb_per_s_per_direction"),
    ]


def _host_link(table: Table, memory_gb_per_s: float) -> Value:
    links = table.of("host_to_device", "device_to_host")
    if not links:
        note = "copies in host memory: the device is the processor"
        return Value(value=memory_gb_per_s, note=note)
    slowest = max(links, key=lambda each: each.time_s / each.num_bytes)
    return Value(
        value=slowest.num_bytes / slowest.time_s / GB,
        deviation=slowest.spread_s / slowest.time_s,
        num_points=len(links),
        note="pinned copies, the slower way",
    )


def disks(table: Table) -> list[Stated]:
    """The disk that was written to and read from."""
    rows = table.of("nvme_write", "nvme_read")
    if len(rows) < 2:
        return []
    size = Value(value=table.machine.disk_bytes / TERA, note="whole file system")
    return [size.at("node", "nvme_tb")] + [
        Value(
            value=row.num_bytes / row.time_s / GB,
            deviation=row.spread_s / row.time_s,
            num_points=1,
            note=table.machine.disk,
        ).at("node", f"{row.what}_gb_per_s")
        for row in rows
    ]
