"""Measured collectives inside one scale-up domain: what was published, and how far a fit is off.

Sizes follow nccl-tests (planner.collectives.cost).
"""

import csv
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from planner.collectives.cost import busbw_factor
from planner.collectives.fitted import fitted_s
from planner.spec.cluster import Collective, CollectiveFit
from planner.units import GB, US, Array

_NAMES: Mapping[str, Collective] = {
    **{name: name for name in get_args(Collective)},
    "alltoall": "all_to_all",
}
BYTES_PER_ELEMENT = 2


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured collective."""

    accelerator: str
    """Catalog name; the name of the table for the measured tables."""
    collective: Collective
    num_nodes: int
    num_gpus: int
    num_bytes: int
    time_us: float
    tool: str
    curve: str
    source: str
    cluster: str = ""
    """Where it was measured, as the catalog names it; empty for the tables."""

    @property
    def moved_bytes(self) -> float:
        """Bytes times the bus bandwidth factor."""
        return float(busbw_factor(self.collective, np.array(self.num_gpus))) * self.num_bytes


def measured_points(folder: Path) -> dict[str, list[Point]]:
    """Return the tables ``nccl_NAME.csv.gz`` of a folder by NAME."""
    tables: dict[str, list[Point]] = {}
    for path in sorted(folder.glob("nccl_*.csv.gz")):
        name = path.name.removeprefix("nccl_").removesuffix(".csv.gz")
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            tables[name] = [
                Point(
                    accelerator=name,
                    collective=_NAMES[row["op"]],
                    num_nodes=1,
                    num_gpus=int(row["num_gpus"]),
                    num_bytes=int(row["message_elements"]) * BYTES_PER_ELEMENT,
                    time_us=float(row["latency_us"]),
                    tool=row["measured_with"],
                    curve=name,
                    source="aiconfigurator-core 0.12.0",
                )
                for row in csv.DictReader(file)
            ]
    return tables


def published_points(folder: Path) -> list[Point]:
    """Return ``published_curves.csv`` of a folder; times follow from bus bandwidths."""
    points = []
    with (folder / "published_curves.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            collective, num_gpus = _NAMES[row["collective"]], int(row["num_gpus"])
            num_bytes = int(row["bytes"])
            factor = float(busbw_factor(collective, np.array(num_gpus)))
            seconds = factor * num_bytes / (float(row["busbw_gb_per_s"]) * GB)
            points.append(
                Point(
                    accelerator=row["accelerator"],
                    collective=collective,
                    num_nodes=int(row["num_nodes"]),
                    num_gpus=num_gpus,
                    num_bytes=num_bytes,
                    time_us=seconds / US,
                    tool=row["tool"],
                    curve=row["curve"],
                    source=row["source"],
                    cluster=row["cluster"],
                )
            )
    return points


def relative_errors(points: Sequence[Point], fits: tuple[CollectiveFit, ...]) -> Array:
    """Error of the fits, relative to each measured time of one collective."""
    num_bytes = np.array([p.num_bytes for p in points])
    num_gpus = np.array([p.num_gpus for p in points])
    seconds = fitted_s(fits, points[0].collective, num_bytes, num_gpus)
    errors: Array = seconds / (np.array([p.time_us for p in points]) * US) - 1.0
    return errors
