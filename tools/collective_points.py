"""Collectives as the planner prices them beside published measurements.

``python -m tools.collective_points [--all]`` prints the ratio by kind of network, and with
``--all`` every machine.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from planner.catalog.clusters import cluster_of_data
from planner.cost.network import collective_s
from planner.cost.topology import Group
from planner.spec.cluster import ClusterSpec, Collective
from planner.units import MIB

DATA = Path(__file__).resolve().parents[1] / "tests" / "validation" / "collectives"
LARGE_BYTES = 32 * MIB
"""Of the largest message of a machine, for it to tell a bandwidth."""
SMALL_BYTES = MIB
"""Of the largest message that tells a latency."""
OVERRIDES = ("nics", "nic_gbit_per_s")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement and what the planner says of it."""

    machine: str
    kind: str  # of the network that decides: pcie, nvlink, xgmi, ib, roce, ...
    state: str  # healthy; bad, untuned, old: slower than it can be; forced: not what NCCL chooses
    source: str
    collective: Collective
    num_ranks: int
    num_bytes: float
    measured_s: float
    predicted_s: float

    @property
    def log_error(self) -> float:
        """``ln(predicted / measured)`` of the time."""
        return float(np.log(self.predicted_s / self.measured_s))


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


@cache
def _machines() -> dict[str, dict[str, str]]:
    with (DATA / "machines.csv").open(encoding="utf-8", newline="") as file:
        return {row["machine"]: row for row in csv.DictReader(file)}


@cache
def _cluster(name: str) -> ClusterSpec:
    row = _machines()[name]
    overrides: dict[str, Any] = {key: _number(row[key]) for key in OVERRIDES if row[key]}
    if row["peer_to_peer"]:
        overrides["peer_to_peer"] = True
    if row["per_node"]:
        sizes = ("accelerators_per_node", "scale_up_domain_accelerators")
        overrides |= dict.fromkeys(sizes, int(row["per_node"]))
    document: dict[str, Any] = {"node": row["node"], "count": int(row["nodes"])}
    document |= {"overrides": overrides} | ({"fabric": row["fabric"]} if row["fabric"] else {})
    return cluster_of_data(document, DATA / f"{name}.yaml")


def predicted_s(machine: str, collective: Collective, num_bytes: float, num_ranks: int) -> float:
    """Seconds of a collective over so many ranks of a machine, as many on every node."""
    cluster = _cluster(machine)
    local = -(-num_ranks // cluster.num_nodes)
    inside = [
        min(num_ranks, level.num_accelerators // cluster.node.num_accelerators * local or local)
        for level in cluster.levels[:-1]
    ]
    members = tuple(np.array([each]) for each in (*inside, num_ranks))
    group = Group(members=members, domain=cluster.num_inner_levels)
    return float(collective_s(collective, np.array([num_bytes]), group, cluster)[0])


def read_points() -> Iterator[Point]:
    """Yield the measurements on machines of the catalog; messages between two are left out."""
    with (DATA / "points.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            of = _machines()[row["machine"]]
            if not of["node"] or row["collective"] == "p2p":
                continue
            size, ranks = float(row["bytes"]), int(row["ranks"])
            collective = cast("Collective", row["collective"])
            yield Point(
                machine=row["machine"],
                kind=of["kind"],
                state=of["state"],
                source=row["source"],
                collective=collective,
                num_ranks=ranks,
                num_bytes=size,
                measured_s=float(row["time_us"]) * 1e-6,
                predicted_s=predicted_s(row["machine"], collective, size, ranks),
            )


def largest(points: Iterable[Point]) -> list[Point]:
    """The largest message of every machine and collective, where it is large."""
    found: dict[tuple[str, str], Point] = {}
    for point in points:
        key = (point.machine, point.collective)
        if key not in found or point.num_bytes > found[key].num_bytes:
            found[key] = point
    return [point for point in found.values() if point.num_bytes >= LARGE_BYTES]


def small(points: Iterable[Point]) -> list[Point]:
    """Messages that are too small to tell a bandwidth."""
    return [point for point in points if point.num_bytes <= SMALL_BYTES]


def median_error(points: Iterable[Point]) -> float:
    """Median absolute log error."""
    return median(abs(point.log_error) for point in points)


def _print_table(title: str, points: list[Point]) -> None:
    print(f"\n{title}\n{'kind':10s} {'state':8s} machines  median |ln|  median ln")
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        for kind in (point.kind, "all"):
            groups[kind, point.state].append(point)
    for (kind, state), own in sorted(groups.items()):
        signed = median(point.log_error for point in own)
        print(f"{kind:10s} {state:8s} {len(own):8d} {median_error(own):12.3f} {signed:+10.3f}")


def main() -> None:
    """Print ratios of predicted to measured times."""
    points = list(read_points())
    _print_table("largest messages", largest(points))
    _print_table("messages up to 1 MiB", small(points))
    for point in largest(points) if "--all" in sys.argv else ():
        print(
            f"{point.machine:34s} {point.collective:15s} {point.kind:9s} {point.state:8s} "
            f"{point.num_bytes:12.0f} ln {point.log_error:+.2f}"
        )


if __name__ == "__main__":
    main()
