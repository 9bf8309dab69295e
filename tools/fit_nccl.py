"""Fit the ``collectives:`` section of hwdb/accelerators/ to published measurements.

``python -m tools.fit_nccl`` reads tests/validation/nccl/ (its README names the sources) and
rewrites the section of every accelerator that was measured, or that another stands in for. The
form is that of planner.collectives.fitted: a line per regime, as few regimes as hold every point
from 1 MiB within GOAL and the mean within MEAN_GOAL. For given switch points the best lines solve
a linear program: least mean error, an error above GOAL counting OVERSHOOT_WEIGHT times.
"""

import argparse
import bisect
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from ortools.linear_solver import pywraplp

from planner.spec.cluster import Collective, CollectiveFit
from planner.units import GB, KIB, US
from tools.nccl import Point, measured_points, published_points, relative_errors

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "validation" / "nccl"
GOAL, MEAN_GOAL = 0.145, 0.04
SMALLEST, FROM = 2**16, 2**20
MAX_REGIMES = 4
OVERSHOOT_WEIGHT = 20.0
STEEPEST = 2.0
"""No line is faster than this times the largest measured bus bandwidth."""
MAX_LATENCY_US = 10_000.0
MEASURED = {
    "a100_sxm": ("a100-sxm-80", "a100-sxm-40"),
    "b200_sxm": ("b200-sxm",),
    "b300_sxm": ("b300-sxm",),
    "gb200": ("gb200",),
    "gb300": ("gb300",),
    "h100_sxm": ("h100-sxm",),
    "h200_sxm": ("h200-sxm",),
    "l40s": ("l40s",),
}
"""Table to the accelerators it was measured on."""
STAND_INS = {
    "a100_sxm": ("a800-sxm-80",),
    "b200_sxm": ("b100",),
    "h100_sxm": ("h100-sxm-96-500w", "h800-sxm", "h20"),
}
"""Table to the accelerators it stands in for."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Lines of one collective on a number of ranks, and their errors."""

    fit: CollectiveFit
    worst: float
    mean: float
    cost: float


def lines_of(points: Sequence[Point], bounds: Sequence[float]) -> Fit | None:
    """Best lines between the switch points ``bounds``; None when there are none.

    A line begins no lower than the one before it ends: more bytes never take less time.
    """
    solver = pywraplp.Solver.CreateSolver("GLOP")
    infinity = solver.infinity()
    factor = points[0].moved_bytes / points[0].num_bytes
    least = min(p.time_us / p.moved_bytes for p in points) / STEEPEST
    lines = [
        (solver.NumVar(0.1, MAX_LATENCY_US, ""), solver.NumVar(least, infinity, ""))
        for _ in range(len(bounds) + 1)
    ]
    for bound, (before, after) in zip(bounds, itertools.pairwise(lines), strict=True):
        moved = factor * bound
        solver.Add(after[0] + after[1] * moved >= (before[0] + before[1] * moved) * 1.001)
    cost = solver.Sum([])
    for point in points:
        latency, us_per_byte = lines[bisect.bisect_right(bounds, point.num_bytes)]
        wrong, above = solver.NumVar(0, infinity, ""), solver.NumVar(0, infinity, "")
        value = latency * (1 / point.time_us) + us_per_byte * (point.moved_bytes / point.time_us)
        solver.Add(value - 1 <= wrong)
        solver.Add(1 - value <= wrong)
        cost += wrong * (1.0 / len(points))
        if point.num_bytes >= FROM:
            solver.Add(wrong <= GOAL + above)
            cost += above * OVERSHOOT_WEIGHT
    solver.Minimize(cost)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return rounded(points, bounds, lines, solver.Objective().Value())


def rounded(
    points: Sequence[Point],
    bounds: Sequence[float],
    lines: Sequence[tuple[pywraplp.Variable, pywraplp.Variable]],
    cost: float,
) -> Fit:
    """Lines with four significant digits, and the errors they leave."""
    collective = CollectiveFit(
        num_ranks=points[0].num_gpus,
        latency_s=tuple(float(f"{a.solution_value():.4g}") * US for a, _ in lines),
        busbw_bytes_per_s=tuple(float(f"{1e-3 / b.solution_value():.4g}") * GB for _, b in lines),
        switch_bytes=tuple(bounds),
    )
    errors = np.abs(relative_errors(points, (collective,)))
    large = np.array([p.num_bytes >= FROM for p in points])
    return Fit(
        fit=collective, worst=float(errors[large].max()), mean=float(errors.mean()), cost=cost
    )


def best_fit(points: Sequence[Point]) -> Fit:
    """Fewest regimes that hold every point within GOAL, or the best of all."""
    sizes = sorted({p.num_bytes for p in points})
    between = [KIB * round(math.sqrt(a * b) / KIB) for a, b in itertools.pairwise(sizes)]
    best: Fit | None = None
    for regimes in range(2, MAX_REGIMES + 1):
        for cuts in itertools.combinations(range(1, len(between) - 1), regimes - 1):
            if min(np.diff((-1, *cuts, len(between)))) < 2:
                continue
            fit = lines_of(points, [float(between[cut]) for cut in cuts])
            if fit is not None and (best is None or fit.cost < best.cost - 1e-9):
                best = fit
        if best is not None and best.worst <= GOAL + 0.002 and best.mean <= MEAN_GOAL:
            break
    assert best is not None
    return best


def points_of(table: str, collective: Collective, num_gpus: int) -> list[Point]:
    """Measured and published points of a table that a fit answers for."""
    found = [
        p
        for p in measured_points(DATA)[table]
        if p.collective == collective and p.num_gpus == num_gpus
    ]
    extra = [
        p
        for p in published_points(DATA)
        if p.accelerator in MEASURED[table]
        and p.num_nodes == 1
        and p.collective == collective
        and p.num_gpus == num_gpus
        and (p.tool.startswith("nccl-tests") or p.num_bytes > 2**29)
    ]
    return [p for p in (*found, *extra) if p.num_bytes >= SMALLEST]


def section(fits: dict[tuple[Collective, int], Fit], origin: str) -> str:
    """YAML of the fits; ``origin`` is basis and source, and a note."""
    lines = []
    for collective in get_args(Collective):
        lines.append(f"  {collective}:")
        for (kind, num_gpus), fit in fits.items():
            if kind == collective:
                lines.append(f"  - num_ranks: {num_gpus}")
                columns = {
                    "switch_kib": [value / KIB for value in fit.fit.switch_bytes],
                    "latency_us": [value / US for value in fit.fit.latency_s],
                    "busbw_gb_per_s": [value / GB for value in fit.fit.busbw_bytes_per_s],
                }
                for key, column in columns.items():
                    values = ", ".join(f"{value:.6g}" for value in column)
                    lines.append(f"    {key}: {{value: [{values}], {origin}}}")
    return "\n".join(lines) + "\n"


def write(name: str, text: str) -> None:
    """Replace the fits of an accelerator file."""
    path = ROOT / "hwdb" / "accelerators" / f"{name}.yaml"
    block = re.compile(
        r"(?<=^collectives:\n)(  measured_at[^\n]*\n)(?:[ -][^\n]*\n)*", re.MULTILINE
    )
    old = path.read_text(encoding="utf-8")
    path.write_text(block.sub(lambda match: match[1] + text, old), encoding="utf-8")


def main() -> None:
    """Fit the tables and rewrite their sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help="tables to fit [all]")
    for table in parser.parse_args().tables or sorted(MEASURED):
        ranks = sorted({p.num_gpus for p in measured_points(DATA)[table]})
        fits: dict[tuple[Collective, int], Fit] = {}
        for collective, num_gpus in itertools.product(get_args(Collective), ranks):
            fits[collective, num_gpus] = fit = best_fit(points_of(table, collective, num_gpus))
            errors = f"mean {fit.mean:.1%}, worst from 1 MiB {fit.worst:.1%}"
            print(f"{table} {collective} {num_gpus}: {len(fit.fit.latency_s)} regimes, {errors}")
        source = "source: kernel-tables"
        for name in MEASURED[table]:
            write(name, section(fits, f"basis: measured, {source}"))
        for name in STAND_INS.get(table, ()):
            write(name, section(fits, f"basis: derived, {source}, note: fit of {table}"))


if __name__ == "__main__":
    main()
