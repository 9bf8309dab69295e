"""What a machine that is stated whole has between its ranks: messages, and lines of collectives."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibrate.figures import Figure
from planner.calibrate.fit import FormulaFit, fit_formula
from planner.calibrate.rows import Measured, Table
from planner.collectives.cost import busbw_factor
from planner.spec.cluster import Collective
from planner.units import GB, GBIT_PER_S, KIB, US, Array

COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LEAST_POINTS = 3  # of a regime
OPEN = 3.0  # deviation of the logarithms of what nothing is known of


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
    regimes, switch_bytes, error = [one], [], one.error
    for at in range(LEAST_POINTS, count - LEAST_POINTS + 1):
        both = [_regime(bus[:at], time[:at]), _regime(bus[at:], time[at:])]
        squares = at * both[0].error ** 2 + (count - at) * both[1].error ** 2
        joined = float(np.sqrt(squares / count))
        # a second regime is worth stating where it leaves less than 70 % of the error
        if joined < 0.7 * one.error and joined < error:
            regimes, error = both, joined
            # somewhere between the two: their geometric mean
            switch_bytes = [float(np.sqrt(size[at - 1] * size[at]))]
    return AlphaBetaFit(
        latency_s=tuple(float(fit.values[0]) for fit in regimes),
        bytes_per_s=tuple(float(fit.values[1]) for fit in regimes),
        switch_bytes=tuple(switch_bytes),
        deviation=float(regimes[-1].deviations[1]),
        error=error,
        num_points=count,
    )


def _regime(moved: Array, seconds: Array) -> FormulaFit:
    start = np.array([np.min(seconds), np.max(moved / seconds)])
    return fit_formula(lambda v: v[0] + moved / v[1], seconds, start, np.full(2, OPEN))


def link_figures(table: Table) -> list[Figure]:
    """Links of one node: messages, and the lines of collectives; of several, the network."""
    local = table.machine.per_node
    inside = [row for row in table.of(*COLLECTIVES, "p2p") if row.ranks <= local]
    messages = [row for row in inside if row.what == "p2p"]
    scale_up = "node.scale_up."
    if not messages:
        note = "assumed: nothing between ranks of a node was measured"
        # no plan of one process uses them; what slow links reach
        unknown = {"gb_per_s_per_direction": 1.0, "latency_us": 100.0, "efficiency_fraction": 1.0}
        return [
            Figure(scale_up + key, value, note=note, basis="assumed")
            for key, value in unknown.items()
        ]
    fit = _fit(messages)
    large = fit.bytes_per_s[-1] / GB
    # no link is slower than what a rank took in by any collective
    best = max([large, *(row.bytes_per_s / GB for row in inside)])
    surely = (fit.deviation, fit.num_points)
    share = "large messages between two ranks"
    return [
        Figure(scale_up + "gb_per_s_per_direction", best, *surely, "best that any carried"),
        _latency(scale_up + "latency_us", fit),
        Figure(scale_up + "efficiency_fraction", large / best, *surely, share),
        *_lines(table, best),
        *_network(table),
    ]


def _fit(rows: Sequence[Measured], factor: float = 1.0) -> AlphaBetaFit:
    """The fit of rows that move so many times their size."""
    sizes = np.array([float(row.num_bytes) for row in rows])
    return alpha_beta_fit(sizes, factor * sizes, [row.time_s for row in rows])


def _latency(path: str, fit: AlphaBetaFit) -> Figure:
    note = "small messages between two ranks"
    return Figure(path, fit.latency_s[0] / US, fit.error, fit.num_points, note)


def _lines(table: Table, rate_gb_per_s: float) -> list[Figure]:
    """Measured lines of every collective and group inside a node."""
    found: list[Figure] = []
    for kind in COLLECTIVES:
        rows = [row for row in table.of(kind) if 1 < row.ranks <= table.machine.per_node]
        for place, ranks in enumerate(sorted({row.ranks for row in rows})):
            own = [row for row in rows if row.ranks == ranks]
            fit = _fit(own, float(busbw_factor(kind, float(ranks))))
            prefix = f"accelerator.collectives.{kind}.{place}."
            lists = {
                "latency_us": tuple(each / US for each in fit.latency_s),
                "busbw_gb_per_s": tuple(each / GB for each in fit.bytes_per_s),
                "switch_kib": tuple(each / KIB for each in fit.switch_bytes),
            }
            found.append(Figure(prefix + "num_ranks", ranks))
            found += [
                Figure(prefix + key, values[-1], fit.error, fit.num_points, values=values)
                for key, values in lists.items()
                if values
            ]
    measured_at = "accelerator.collectives.measured_at_gb_per_s_per_direction"
    return [Figure(measured_at, rate_gb_per_s), *found] if found else []


def _network(table: Table) -> list[Figure]:
    """All ports of a node by the fastest ring through all ranks; latency by messages."""
    machine = table.machine
    total = machine.nodes * machine.per_node
    far = [row for row in table.of("p2p") if row.ranks == total]
    rings = [row for row in table.of("all_gather", "all_reduce") if row.ranks == total]
    if machine.nodes == 1 or not rings or not far:
        return []

    def busbw(row: Measured) -> float:
        return float(busbw_factor(row.what, float(total))) * row.bytes_per_s  # type: ignore[arg-type]

    best = max(rings, key=busbw)
    note = "ring through all ranks: what the ports of a node carried of it"
    port = busbw(best) / GBIT_PER_S
    return [
        Figure("node.nics", 1, note="all ports together"),
        Figure("node.nic_gbit_per_s", port, best.deviation, 1, note),
        _latency("overrides.fabric_latency_us", _fit(far)),
        Figure("overrides.fabric_efficiency_fraction", 1.0, note=note),
    ]
