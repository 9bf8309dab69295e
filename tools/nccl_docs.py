"""Tables of docs/communication.md: measured collectives against the model."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from planner.catalog.clusters import load_cluster
from planner.catalog.hardware import load_accelerator
from planner.cost.collectives import collective_s
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec
from planner.units import GB, MIB, US, format_bytes
from tools.nccl import Point, measured_points, published_points, relative_errors

TABLE_ACCELERATORS = {
    "a100_sxm": "a100-sxm-80",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
}
"""Measured table to catalog entry."""
FROM_BYTES = MIB
LIMIT = 0.15


def table_errors(folder: Path, table: str) -> tuple[list[Point], list[float]]:
    """Points of a measured table from 1 MiB, and the error of the fit at each."""
    fits = load_accelerator(TABLE_ACCELERATORS[table]).collectives
    by_kind = defaultdict(list)
    for point in measured_points(folder)[table]:
        if point.num_bytes >= FROM_BYTES:
            by_kind[point.collective].append(point)
    points = [point for group in by_kind.values() for point in group]
    errors = [e for kind, group in by_kind.items() for e in relative_errors(group, fits[kind])]
    return points, [float(error) for error in errors]


@cache
def _cluster(name: str) -> ClusterSpec:
    return load_cluster(name)


def published_error(point: Point) -> float:
    """Error of what plans would use, relative to a published time."""
    cluster = _cluster(point.cluster)
    inside = [min(point.num_gpus, level.num_accelerators) for level in cluster.levels]
    group = Group(
        members=tuple(np.array([number]) for number in inside), domain=cluster.num_inner_levels
    )
    size = np.array([float(point.num_bytes)])
    return float(collective_s(point.collective, size, group, cluster)[0]) / (point.time_us * US) - 1


def curves(folder: Path) -> dict[str, list[Point]]:
    """Published points from 1 MiB by curve."""
    found = defaultdict(list)
    for point in published_points(folder):
        if point.num_bytes >= FROM_BYTES:
            found[point.curve].append(point)
    return dict(found)


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _cells(errors: Sequence[float]) -> list[str]:
    size = np.abs(errors)
    within = f"{int((size <= LIMIT).sum())} of {len(size)}"
    return [*(f"{100 * v:.1f}" for v in (size.mean(), np.percentile(size, 90), size.max())), within]


def measured_table(folder: Path) -> str:
    """Error of the fits by measured table."""
    found = {table: table_errors(folder, table)[1] for table in TABLE_ACCELERATORS}
    rows = [[table, *_cells(errors)] for table, errors in found.items()]
    rows.append(["all", *_cells([e for errors in found.values() for e in errors])])
    return _markdown(["table", "mean %", "p90 %", "largest %", "within 15 %"], rows)


def published_table(folder: Path) -> str:
    """Error by published curve, with the sizes that are further off than 15 %."""
    rows = []
    for name, points in curves(folder).items():
        errors = [published_error(point) for point in points]
        off = [
            f"{format_bytes(point.num_bytes)}: {100 * error:+.0f}"
            for point, error in zip(points, errors, strict=True)
            if abs(error) > LIMIT
        ]
        first = points[0]
        where = f"{first.num_nodes} x {first.num_gpus // first.num_nodes} {first.accelerator}"
        cells = [name, where, first.tool, *_cells(errors), ", ".join(off)]
        rows.append(cells)
    titles = ["curve", "GPUs", "tool", "mean %", "p90 %", "largest %", "within 15 %", "further off"]
    return _markdown(titles, rows)


def multi_node_table(folder: Path) -> str:
    """Every published row of several nodes: bus bandwidth published and predicted."""
    rows = []
    for point in published_points(folder):
        if point.num_nodes > 1 and point.num_bytes >= FROM_BYTES:
            busbw = point.moved_bytes / (point.time_us * US) / GB
            error = published_error(point)
            rows.append(
                [
                    point.cluster,
                    format_bytes(point.num_bytes),
                    f"{busbw:.4g}",
                    f"{busbw / (1 + error):.4g}",
                    f"{100 * error:+.0f}",
                    point.source,
                ]
            )
    titles = ["cluster", "all-reduce of", "GB/s published", "GB/s predicted", "time, error %"]
    return _markdown([*titles, "source"], rows)
