"""A machine stated whole from what was measured on it: no catalog stands behind its figures.

Peaks and rates are the best of the rows. Shares of them are assumed, and then fitted to the same
rows as those of any cluster are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.fit import Base
from planner.calibrate.points import FUSED_HOST_FRACTION, HOST_ADAM_BYTES
from planner.calibrate.rows import Measured, Table, What
from planner.catalog import PLAIN_FABRIC
from planner.catalog.clusters import cluster_of_data
from planner.collectives.cost import busbw_factor
from planner.errors import InputError
from planner.spec.cluster import Collective
from planner.units import GB, GIB, TERA, US, plural

NEEDED: tuple[What, ...] = (
    *("product", "copy", "norm", "launch"),
    *("attention_forward", "attention_backward", "host_adam"),
)
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SOURCE = "measured"
# Until rows say more: shares of a peak, sides of a product and a length at which half of it is
# reached.
GEMM = {"sustained_fraction": 0.9, "m0": 30.0, "n0": 30.0, "k0": 30.0}
PASS = {"fraction": 0.4, "s0": 100.0}
# Of links that nothing was measured of; no plan of one process uses them.
LINKS = {"gb_per_s_per_direction": 1.0, "latency_us": 100.0, "efficiency_fraction": 1.0}


def stated(path: str, table: Table, out: Path) -> Base:
    """The machine of a table, to be fitted to it; ``out``: its cluster file. Raises InputError."""
    if table.machine.nodes > 1:
        message = "is of several: give CLUSTER, whose network these rows are fitted to"
        raise InputError.single(path, "# nodes", message)
    if missing := [what for what in NEEDED if not table.of(what)]:
        message = f"a machine cannot be stated without rows of {', '.join(missing)}"
        raise InputError.single(path, "rows", message)
    raw = _document(table)
    try:
        return Base(cluster=cluster_of_data(raw, out), raw=raw)
    except InputError as error:
        hint = "measure again with nothing else on the machine"
        problems = [replace(each, message=f"{each.message}; {hint}") for each in error.problems]
        raise InputError(replace(each, where=path) for each in problems) from None


def _document(table: Table) -> dict[str, Any]:
    machine = table.machine
    # without brands and clock rates
    words = re.sub(r"\((?:r|tm)\)|cpu|processor|@.*|nvidia|amd instinct", " ", machine.name.lower())
    name = re.sub(r"[^a-z0-9.]+", "-", words).strip("-") or machine.device
    title = machine.name
    if machine.device == "cpu":
        threads = plural(machine.threads, "thread")
        name, title = f"{name}-{threads.replace(' ', '-')}", f"{title}, {threads} a process"
    note = f"planner calibrate --measure, {machine.software}, {machine.backend or 'one process'}"
    sources = {SOURCE: {"note": note, "date": machine.date}}
    scale_up = _links(table)
    count = _figure(machine.per_node)
    accelerator = {
        "title": f"{title}, as measured",
        "vendor": machine.device.upper(),
        **_accelerator(table),
        "sources": sources,
    }
    if lines := dict(_lines(table)):
        measured_at = {"measured_at_gb_per_s_per_direction": scale_up["gb_per_s_per_direction"]}
        accelerator["collectives"] = measured_at | lines
    node = {
        "title": f"{machine.per_node} x {name}",
        "accelerator": name,
        "accelerators_per_node": count,
        "scale_up": {"kind": machine.backend or "none", "domain_accelerators": count, **scale_up},
        "fabric": PLAIN_FABRIC,
        **_host(table),
        "sources": sources,
    }
    return {"node": node, "count": 1, "accelerator": accelerator}


def _figure(
    value: float | Sequence[float],
    note: str = "",
    basis: str = SOURCE,
) -> dict[str, Any]:
    """As a figure of hwdb, with few digits."""
    several = [value] if isinstance(value, int | float) else value
    rounded = [each if isinstance(each, int) else float(f"{each:.4g}") for each in several]
    shown = rounded[0] if several == [value] else rounded
    figure = {"value": shown, "basis": basis, "source": SOURCE}
    return {**figure, "note": note} if note else figure


def _assumed(value: float) -> dict[str, Any]:
    return _figure(value, basis="assumed")


def _accelerator(table: Table) -> dict[str, Any]:
    """Sizes, peaks and memory; shares of products and attention."""
    products = table.of("product")
    # the precision that was measured most is the one that training uses here
    usual = Counter(row.dtype for row in products).most_common(1)[0][0]
    best = {row.dtype: row for row in sorted(products, key=attrgetter("flops_per_s"))}
    fastest = max(table.of("copy", "add", "norm"), key=attrgetter("bytes_per_s"))
    made: dict[str, Any] = {
        "hbm_gib": _figure(table.machine.memory_bytes / GIB),
        "context_gib": _figure(table.machine.context_bytes / GIB),
        "hbm_gb_per_s": _figure(fastest.bytes_per_s / GB, f"best: {fastest.what}"),
        "memory_bound_fraction": _assumed(0.7),
    }
    for name, row in best.items():
        # 16 bits that are slower than 32 are emulated; nobody trains in them
        if name in (usual, "fp32") or row.flops_per_s >= best[usual].flops_per_s:
            key = f"{name}{'' if name == 'fp32' else '_dense'}_tflops"
            note = f"best product: {row.m} x {row.n} x {row.k}"
            made[key] = _figure(row.flops_per_s / TERA, note)
    launches = [row.time_s for row in table.of("launch")]
    # A kernel's own overhead is taken as two launches of a small one.
    launch = {"launch_us": 2.0 * float(np.median(launches)) / US}
    passes = {f"{way}_{key}": PASS[key] for way in ("forward", "backward") for key in PASS}
    for section, figures in {"gemm": GEMM, "attention": passes}.items():
        assumed = figures | launch
        made[section] = {key: _assumed(value) for key, value in assumed.items()}
    return made


def _host(table: Table) -> dict[str, Any]:
    """Memory, cores, their rates by Adam, and the links to the devices."""
    machine, adam = table.machine, table.of("host_adam")[0]
    moved = HOST_ADAM_BYTES * adam.params / adam.time_s / GB
    shared = moved * machine.per_node / FUSED_HOST_FRACTION
    links = table.of("host_to_device", "device_to_host")
    copies = max(row.bytes_per_s for row in table.of("copy", "add", "norm"))
    rate = min((row.bytes_per_s for row in links), default=copies)
    by_host = "copies in host memory: the device is the processor"
    note = "pinned copies, the slower way" if links else by_host
    by_all = f"Adam of all ranks, taken as {FUSED_HOST_FRACTION} of it"
    return {
        "host_memory_gib": _figure(machine.host_memory_bytes / GIB),
        "host_cores": _figure(machine.host_cores),
        "host_core_gb_per_s": _figure(moved / max(machine.threads, 1)),
        "host_memory_gb_per_s": _figure(shared, by_all),
        "host_link_gb_per_s_per_direction": _figure(rate / GB, note),
    }


def _links(table: Table) -> dict[str, Any]:
    """What messages between two ranks of a node say; the rate is the best that any carried."""
    sent = table.of(*COLLECTIVES, "p2p")
    inside = [row for row in sent if row.ranks <= table.machine.per_node]
    messages = [row for row in inside if row.what == "p2p"]
    if not messages:
        note = "nothing between ranks of a node was measured"
        return {key: _figure(value, note, "assumed") for key, value in LINKS.items()}
    latency_s, large = _line(messages)
    # no link is slower than what a rank took in by any collective
    best = max(large, *(row.bytes_per_s for row in inside))
    return {
        "gb_per_s_per_direction": _figure(best / GB, "best that any carried"),
        "latency_us": _figure(latency_s / US, "small messages between two ranks"),
        "efficiency_fraction": _figure(large / best, "large messages between two ranks"),
    }


def _lines(table: Table) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Measured lines of every collective, by groups inside a node."""
    for kind in COLLECTIVES:
        most = table.machine.per_node
        own = [row for row in table.of(kind) if 1 < row.ranks <= most]
        lines = []
        for ranks in sorted({row.ranks for row in own}):
            group = [row for row in own if row.ranks == ranks]
            latency_s, rate = _line(group, float(busbw_factor(kind, float(ranks))))
            line = {"latency_us": _figure([latency_s / US]), "busbw_gb_per_s": _figure([rate / GB])}
            lines.append({"num_ranks": ranks, **line})
        if lines:
            yield kind, lines


def _line(rows: Sequence[Measured], factor: float = 1.0) -> tuple[float, float]:
    """Latency and bytes per second of rows that move so many times their size.

    The time of the smallest, and what the largest takes beyond that: half of its time at least.
    """
    smallest, *_, largest = sorted([*rows, *rows], key=attrgetter("num_bytes"))
    latency_s = smallest.time_s
    moving_s = max(largest.time_s - latency_s, largest.time_s / 2.0)
    return latency_s, factor * largest.num_bytes / moving_s
