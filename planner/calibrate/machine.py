"""A machine stated whole from what was measured on it: no catalog stands behind its figures.

Accelerator and host, messages between ranks, and lines of collectives.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np

from planner.calibrate.fit import Base, Calibration, Figure, FormulaFit, fit_formula, own_errors
from planner.calibrate.points import FUSED_HOST_FRACTION, HOST_ADAM_BYTES, table_points, work_of
from planner.calibrate.rows import Measured, Table, What
from planner.catalog import PLAIN_FABRIC
from planner.catalog.clusters import cluster_of_data
from planner.collectives.cost import busbw_factor
from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import product_s
from planner.errors import InputError
from planner.layers.op import Gemm
from planner.spec.cluster import (
    AcceleratorSpec,
    AttentionEfficiency,
    Collective,
    Dtype,
    GemmEfficiency,
)
from planner.units import GB, GIB, KIB, MIB, TERA, US, Array, plural

NEEDED: tuple[What, ...] = (
    *("product", "copy", "norm", "launch"),
    *("attention_forward", "attention_backward", "host_adam"),
)
# Of the sides of a product: known to a factor of three until products say more.
OFFSET, OFFSET_DEVIATION = 30.0, 1.1
FRACTION_DEVIATION = 0.5  # of a share of the peak
LAUNCHES = 2.0  # launches of a small kernel that a product's own overhead is taken to be at first
SOURCE = "measured"
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEAST_POINTS = 3  # of a regime


def machine_of(path: str, table: Table, out: Path) -> Calibration:
    """The machine of a table; ``out``: the cluster file, which names it.

    Raises InputError where rows are missing, or cannot be, or make a figure that no machine has.
    """
    if table.machine.nodes > 1:
        message = "is of several: give CLUSTER, whose network these rows are fitted to"
        raise InputError.single(path, "# nodes", message)
    if missing := [what for what in NEEDED if not table.of(what)]:
        message = f"a machine cannot be stated without rows of {', '.join(missing)}"
        raise InputError.single(path, "rows", message)
    figures = (*_accelerator(path, table), *link_figures(table), *_host(table))
    document = _document(table, figures)
    try:
        base = Base(cluster=cluster_of_data(document, out), raw=document)
    except InputError as error:
        hint = "measure again with nothing else on the machine"
        raise InputError(
            replace(each, where=path, message=f"{each.message}; {hint}") for each in error.problems
        ) from None
    own = own_errors(base, list(table_points(path, table, base.cluster)), {})
    return Calibration(base=base, figures=figures, own=own)


def _accelerator(path: str, table: Table) -> list[Figure]:
    """Sizes, peaks, memory, and the fits of products and attention."""
    machine, rows = table.machine, table.of("product")
    by_dtype: dict[str, list[Measured]] = {}
    for row in rows:
        by_dtype.setdefault(row.dtype, []).append(row)
    # the precision that was measured most is the one that training uses here
    usual = cast("Dtype", max(by_dtype, key=lambda name: len(by_dtype[name])))
    best = {name: max(own, key=attrgetter("flops_per_s")) for name, own in by_dtype.items()}
    moving = table.of("copy", "add", "norm")
    fastest = max(moving, key=attrgetter("bytes_per_s"))
    launch_s = float(np.median([row.time_s for row in table.of("launch")]))
    # kernels that reach the peak, for the fits to change
    attention = AttentionEfficiency(
        forward_fraction=1.0, forward_s0=1.0, backward_fraction=1.0, backward_s0=1.0
    )
    spec = AcceleratorSpec(
        name="measured",
        vendor="measured",
        hbm_bytes=1.0,
        hbm_bytes_per_s=fastest.bytes_per_s,
        peak_flops_per_s={usual: best[usual].flops_per_s},
        memory_bound_fraction=1.0,
        gemm=GemmEfficiency(sustained_fraction=1.0, m0=1.0, n0=1.0, k0=1.0, launch_s=0.0),
        attention=attention,
        attention_flash2=attention,
    )
    sizes = {
        "accelerator.hbm_gib": machine.memory_bytes / GIB,
        "accelerator.context_gib": machine.context_bytes / GIB,
        "node.host_memory_gib": machine.host_memory_bytes / GIB,
        "node.host_cores": machine.host_cores,
    }
    found = [Figure(at, value) for at, value in sizes.items()]
    for name, row in best.items():
        # 16 bits that are slower than 32 are emulated; nobody trains in them
        if name in (usual, "fp32") or row.flops_per_s >= best[usual].flops_per_s:
            key = f"accelerator.{name}{'' if name == 'fp32' else '_dense'}_tflops"
            note = f"best product: {row.m} x {row.n} x {row.k}"
            tflops, count = row.flops_per_s / TERA, len(by_dtype[name])
            found.append(Figure(key, tflops, row.deviation, count, note))
    note = f"best: {fastest.what} of {fastest.num_bytes / MIB:.0f} MiB, all ranks at once"
    rate = fastest.bytes_per_s / GB
    found.append(Figure("accelerator.hbm_gb_per_s", rate, fastest.deviation, len(moving), note))
    kernels = table.of("add", "norm")
    shares = np.log([row.bytes_per_s / fastest.bytes_per_s for row in kernels])
    share = float(np.exp(np.mean(shares)))
    spread = float(np.std(shares) / np.sqrt(len(shares)))
    note = "additions and norms into new tensors, mean of all sizes"
    found.append(Figure("accelerator.memory_bound_fraction", share, spread, len(kernels), note))
    found += _gemm(by_dtype[usual], spec, usual, launch_s)
    return found + _attention(path, table, spec, usual, LAUNCHES * launch_s)


def _gemm(
    rows: Sequence[Measured], spec: AcceleratorSpec, dtype: Dtype, launch_s: float
) -> list[Figure]:
    """Share of the peak, offsets and launch, by the model's own formula of a product."""
    m, n, k = (np.array([getattr(row, side) for row in rows], dtype=float) for side in "mnk")

    def predict(values: Array) -> Array:
        fraction, m0, n0, k0, launch_us = values
        gemm = GemmEfficiency(
            sustained_fraction=min(fraction, 1.0), m0=m0, n0=n0, k0=k0, launch_s=launch_us * US
        )
        return product_s(Gemm(m=m, n=n, k=k), replace(spec, gemm=gemm), dtype)

    start = np.array([0.9, OFFSET, OFFSET, OFFSET, LAUNCHES * launch_s / US])
    deviation = np.array([FRACTION_DEVIATION, *[OFFSET_DEVIATION] * 4])
    fit = fit_formula(predict, [row.time_s for row in rows], start, deviation)
    names = ("sustained_fraction", "m0", "n0", "k0", "launch_us")
    return _figures("accelerator.gemm.", names, fit, len(rows))


def _figures(prefix: str, names: Sequence[str], fit: FormulaFit, num_points: int) -> list[Figure]:
    """The first figures of a fit by their names; fractions end at 1."""
    found = []
    for name, value, deviation in zip(names, fit.values, fit.deviations, strict=False):
        most = 1.0 if name.endswith("fraction") else math.inf
        found.append(Figure(prefix + name, min(float(value), most), float(deviation), num_points))
    return found


def _attention(
    path: str, table: Table, spec: AcceleratorSpec, dtype: Dtype, launch_s: float
) -> list[Figure]:
    """Share of the peak, ramp and factors of head sizes, forward and backward."""
    forward, backward = table.of("attention_forward"), table.of("attention_backward")
    both = {row.head_dim for row in forward} & {row.head_dim for row in backward}
    if not both:
        message = "attention was measured forward and backward at no common head_dim"
        raise InputError.single(path, "rows", message)
    dims = tuple(map(float, sorted(both)))
    launched = replace(spec, attention=replace(spec.attention, launch_s=launch_s, head_dims=dims))
    note = f"{LAUNCHES:g} launches of a small kernel"
    return [
        *_one_pass("forward", forward, launched, dtype),
        *_one_pass("backward", backward, launched, dtype),
        Figure("accelerator.attention.head_dims", dims[-1], values=dims),
        Figure("accelerator.attention.launch_us", launch_s / US, note=note),
    ]


def _one_pass(
    name: str, rows: Sequence[Measured], spec: AcceleratorSpec, dtype: Dtype
) -> list[Figure]:
    dims = spec.attention.head_dims
    rows = [row for row in rows if row.head_dim in dims]
    work = [work_of(row) for row in rows]
    seconds = flash_attention_forward_s if name == "forward" else flash_attention_backward_s

    def predict(values: Array) -> Array:
        fraction, ramp, *factors = values
        own: dict[str, Any] = {f"{name}_fraction": min(fraction, 1.0), f"{name}_s0": ramp}
        own[f"{name}_head_factors"] = (*factors, 1.0)
        attention = replace(spec.attention, **own)
        machine = replace(spec, attention=attention, attention_flash2=attention)
        return np.concatenate([np.ravel(seconds(each, machine, dtype)) for each in work])

    # the widest head has the factor 1, to which the others are relative; a ramp is the length at
    # which attention reaches half its rate, known as the offsets are
    start = np.array([0.4, 100.0, *[0.8] * (len(dims) - 1)])
    deviation = np.array([1.0, OFFSET_DEVIATION, *[FRACTION_DEVIATION] * (len(dims) - 1)])
    fit = fit_formula(predict, [row.time_s for row in rows], start, deviation)
    prefix = f"accelerator.attention.{name}_"
    factors = (*map(float, fit.values[2:]), 1.0)
    return [
        *_figures(prefix, ("fraction", "s0"), fit, len(rows)),
        Figure(f"{prefix}head_factors", 1.0, values=factors),
    ]


def _host(table: Table) -> list[Figure]:
    """Return the host figures: memory rate of Adam, per thread and of all ranks; device links."""
    machine, adam = table.machine, table.of("host_adam")[0]
    moved = HOST_ADAM_BYTES * adam.params / adam.time_s / GB
    by_all = f"Adam of all ranks, taken as {FUSED_HOST_FRACTION} of it"
    shared = moved * machine.per_node / FUSED_HOST_FRACTION
    thread = moved / max(machine.threads, 1)
    at = "node.host_link_gb_per_s_per_direction"
    if links := table.of("host_to_device", "device_to_host"):
        slowest = min(links, key=attrgetter("bytes_per_s"))
        rate, note = slowest.bytes_per_s / GB, "pinned copies, the slower way"
        link = Figure(at, rate, slowest.deviation, len(links), note)
    else:
        memory = max(row.bytes_per_s for row in table.of("copy", "add", "norm")) / GB
        link = Figure(at, memory, note="copies in host memory: the device is the processor")
    return [
        Figure("node.host_core_gb_per_s", thread, adam.deviation, 1),
        Figure("node.host_memory_gb_per_s", shared, adam.deviation, 1, by_all),
        link,
    ]


def _document(table: Table, figures: Sequence[Figure]) -> dict[str, Any]:
    """The cluster file as data."""
    machine, made = table.machine, _sections(figures)
    # without brands and clock rates
    words = re.sub(r"\((?:r|tm)\)|cpu|processor|@.*|nvidia|amd instinct", " ", machine.name.lower())
    name = re.sub(r"[^a-z0-9.]+", "-", words).strip("-") or machine.device
    title = machine.name
    if machine.device == "cpu":
        threads = plural(machine.threads, "thread")
        name, title = f"{name}-{threads.replace(' ', '-')}", f"{title}, {threads} a process"
    note = f"planner calibrate --measure, {machine.software}, {machine.backend or 'one process'}"
    sources = {SOURCE: {"note": note, "date": machine.date}}
    count = {"value": machine.per_node, "basis": SOURCE, "source": SOURCE}
    accelerator = {
        "title": f"{title}, as measured",
        "vendor": machine.device.upper(),
        **made["accelerator"],
        "sources": sources,
    }
    scale_up = made["node"].pop("scale_up")
    node = {
        "title": f"{machine.per_node} x {name}",
        "accelerator": name,
        "accelerators_per_node": count,
        "scale_up": {"kind": machine.backend or "none", "domain_accelerators": count, **scale_up},
        "fabric": PLAIN_FABRIC,
        **made["node"],
        "sources": sources,
    }
    return {"node": node, "count": 1, "accelerator": accelerator}


def _sections(figures: Sequence[Figure]) -> dict[str, Any]:
    """The figures as nested mappings; the lines of a collective are a list."""
    root: dict[str, Any] = {}
    for each in figures:
        *steps, last = each.key.split(".")
        section = root
        for step in steps:
            section = section.setdefault(step, {})
        section[last] = each.value if last == "num_ranks" else _stated(each)
    collectives = root["accelerator"].get("collectives", {})
    for kind in collectives.keys() & set(COLLECTIVES):
        collectives[kind] = [*collectives[kind].values()]
    return root


def _stated(figure: Figure) -> dict[str, Any]:
    """As a figure of hwdb, with few digits."""
    spread = f"+- {figure.deviation:.1%}, {plural(figure.num_points, 'point')}"
    note = "; ".join(text for text in (spread * (figure.num_points > 0), figure.note) if text)
    values = figure.values or (figure.value,)
    rounded = [each if isinstance(each, int) else float(f"{each:.4g}") for each in values]
    stated = {
        "value": rounded if figure.values else rounded[0],
        "basis": figure.basis,
        "source": SOURCE,
    }
    return {**stated, "note": note} if note else stated


@dataclass(frozen=True, kw_only=True)
class AlphaBetaFit:
    """``latency + moved / rate`` of one collective, in each regime its library goes through."""

    latency_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    switch_bytes: tuple[float, ...]
    deviation: float  # relative, of the last rate
    error: float  # root mean square, of logarithms
    num_points: int


def alpha_beta_fit(sizes: Array, moved: Array, seconds: Sequence[float]) -> AlphaBetaFit:
    """The fit of one regime, or of two where these fit clearly better; at least one point."""
    # a regime is a run of neighbouring sizes
    order = np.argsort(sizes)
    size, bus, time = sizes[order], moved[order], np.array(seconds)[order]
    count = len(time)
    one = _regime(bus, time)
    regimes, error = [one], one.error
    switch_bytes: tuple[float, ...] = ()
    for at in range(LEAST_POINTS, count - LEAST_POINTS + 1):
        small = _regime(bus[:at], time[:at])
        large = _regime(bus[at:], time[at:])
        squares = at * small.error**2 + (count - at) * large.error**2
        joined = float(np.sqrt(squares / count))
        # a second regime is worth stating where it leaves less than 70 % of the error
        if joined < 0.7 * one.error and joined < error:
            regimes, error = [small, large], joined
            # somewhere between the two: their geometric mean
            switch_bytes = (float(np.sqrt(size[at - 1] * size[at])),)
    latency_s, bytes_per_s = zip(*(map(float, fit.values) for fit in regimes), strict=True)
    return AlphaBetaFit(
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        switch_bytes=switch_bytes,
        deviation=float(regimes[-1].deviations[1]),
        error=error,
        num_points=count,
    )


def _regime(moved: Array, seconds: Array) -> FormulaFit:
    start = np.array([np.min(seconds), np.max(moved / seconds)])
    # deviations of the logarithms of what nothing is known of
    wide = np.full(2, 3.0)
    return fit_formula(lambda v: v[0] + moved / v[1], seconds, start, wide)


def _fit(rows: Sequence[Measured], factor: float = 1.0) -> AlphaBetaFit:
    """The fit of rows that move so many times their size."""
    sizes = np.array([float(row.num_bytes) for row in rows])
    return alpha_beta_fit(sizes, factor * sizes, [row.time_s for row in rows])


def link_figures(table: Table) -> Iterator[Figure]:
    """Links of a node: messages, and the lines of collectives."""
    local = table.machine.per_node
    inside = [row for row in table.of(*COLLECTIVES, "p2p") if row.ranks <= local]
    messages = [row for row in inside if row.what == "p2p"]
    rate, latency = "node.scale_up.gb_per_s_per_direction", "node.scale_up.latency_us"
    share = "node.scale_up.efficiency_fraction"
    if not messages:
        note = "assumed: nothing between ranks of a node was measured"
        # no plan of one process uses them; what slow links reach
        for key, value in {rate: 1.0, latency: 100.0, share: 1.0}.items():
            yield Figure(key, value, note=note, basis="assumed")
        return
    fit = _fit(messages)
    large = fit.bytes_per_s[-1] / GB
    # no link is slower than what a rank took in by any collective
    best = max([large, *(row.bytes_per_s / GB for row in inside)])
    surely = (fit.deviation, fit.num_points)
    yield Figure(rate, best, *surely, "best that any carried")
    note = "small messages between two ranks"
    yield Figure(latency, fit.latency_s[0] / US, fit.error, fit.num_points, note)
    yield Figure(share, large / best, *surely, "large messages between two ranks")
    yield from _lines(table, best)


def _lines(table: Table, rate_gb_per_s: float) -> Iterator[Figure]:
    """Measured lines of every collective and group inside a node."""
    rows = [row for row in table.of(*COLLECTIVES) if 1 < row.ranks <= table.machine.per_node]
    if rows:
        yield Figure("accelerator.collectives.measured_at_gb_per_s_per_direction", rate_gb_per_s)
    for kind in COLLECTIVES:
        own = [row for row in rows if row.what == kind]
        for place, ranks in enumerate(sorted({row.ranks for row in own})):
            factor = float(busbw_factor(kind, float(ranks)))
            fit = _fit([row for row in own if row.ranks == ranks], factor)
            prefix = f"accelerator.collectives.{kind}.{place}."
            yield Figure(prefix + "num_ranks", ranks)
            lists = {
                "latency_us": [each / US for each in fit.latency_s],
                "busbw_gb_per_s": [each / GB for each in fit.bytes_per_s],
                "switch_kib": [each / KIB for each in fit.switch_bytes],
            }
            for key, values in lists.items():
                if values:
                    surely = (fit.error, fit.num_points)
                    yield Figure(prefix + key, values[-1], *surely, values=tuple(values))
