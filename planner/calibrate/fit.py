"""Figures that measurements can change, and their fit: least squares of logarithms with priors."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibrate.points import NOISE, Point
from planner.catalog import hwdb_dir
from planner.catalog.cluster_file import OVERRIDES, file_text
from planner.catalog.clusters import cluster_of_data, load_cluster, split_host_memory
from planner.catalog.hardware import find_file, is_path
from planner.catalog.hardware_file import Kind
from planner.documents.tree import load_yaml
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec
from planner.units import Array, plural

STEP = 1e-3  # of a logarithm, for derivatives
LEAST_EFFECT = 0.02  # a figure that no point follows by this share of its change is left as it is
# Points of one file and kind that count as independent at most: they share node, day, settings.
INDEPENDENT = 4.0
# Relative standard deviation of a figure of the catalog by how it is known; assumed, after the
# ranges of tools/validation/constants.yaml: 5 % of measured products, 7 to 15 % of networks.
BY_BASIS: Mapping[str, float] = {
    "measured": 0.05,
    "given": 0.05,
    "read": 0.10,
    "derived": 0.10,
    "recalled": 0.15,
    "assumed": 0.25,
}


@dataclass(frozen=True)
class Figure:
    """A figure in the unit of its key: as the catalog has it, or as measurements make it."""

    key: str  # of overrides in a cluster file
    value: float
    deviation: float  # relative
    basis: str  # of the catalog, or the cluster file in front
    num_points: int = 0  # that it depends on
    catalog: float = math.nan  # what was fitted

    @property
    def factor(self) -> float:
        """New over old."""
        return self.value / self.catalog


@dataclass(frozen=True, kw_only=True)
class Base:
    """The cluster that is calibrated: as priced, and as its file says it."""

    cluster: ClusterSpec
    raw: Mapping[str, Any]  # of the cluster file that is written, before its own overrides change


def read_base(argument: str) -> Base:
    """The base of a calibration; raises InputError where it is no whole number of nodes."""
    cluster = load_cluster(argument)
    place, _ = split_host_memory(argument)
    if is_path(place):
        raw = load_yaml(Path(place))
        # files are named from the folder of the cluster file
        folder = Path(place).parent
        named = {key: str(folder / file) for key, file in named_files(raw).items()}
        return Base(cluster=cluster, raw={**raw, **named})
    if cluster.node.whole is not None:
        whole = cluster.node.whole.name
        message = f"a part of a node cannot be calibrated; give whole ones, such as 1x{whole}"
        raise InputError.single("command line", "CLUSTER", message)
    return Base(cluster=cluster, raw={"node": cluster.node.name, "count": cluster.num_nodes})


def named_files(raw: Mapping[str, Any]) -> dict[str, str]:
    """The files that a cluster file names, by their keys."""
    parts = {key: raw.get(key) for key in ("node", "accelerator", "fabric")}
    texts = {key: part for key, part in parts.items() if isinstance(part, str)}
    return {key: text for key, text in texts.items() if is_path(text)}


def known(base: Base, key: str) -> Figure | None:
    """The figure that a key of a cluster file replaces; None where the machine has none."""
    part, *path = OVERRIDES[key].split(".")
    given = base.raw.get("overrides", {}).get(key)
    # latencies vary so many times more than rates: drivers, switches, cables
    scale = 4.0 if key.endswith("_us") else 1.0
    if given is not None:
        return Figure(key, given, scale * BY_BASIS["given"], "given")
    # the raw file of the part, or the section of the cluster file that states it whole
    named = base.raw["node"]
    file = None if isinstance(named, Mapping) else find_file("nodes", str(named))
    section: Any = load_yaml(file) if file else named
    if part != "node":
        section = base.raw.get(part) or section[part]
    if not isinstance(section, Mapping):
        kind: Kind = "accelerators" if part == "accelerator" else "fabrics"
        section = load_yaml(find_file(kind, str(section), file, part))
    for step in path:
        section = section.get(step) if isinstance(section, Mapping) else None
    # nodes that state no processor are priced with the usual one
    if section is None and part == "node":
        section = load_yaml(hwdb_dir() / "host_processor.yaml").get(key)
    if not isinstance(section, Mapping) or "value" not in section:
        return None
    basis = str(section.get("basis"))
    # Networks differ between sites however well one was measured.
    known_by = "assumed" if part == "fabric" else basis
    deviation = scale * BY_BASIS.get(known_by, BY_BASIS["assumed"])
    gemm = base.cluster.accelerator.gemm
    if key == "gemm_sustained_fraction" and gemm.has_range:
        # Standard deviations between the slowest and the fastest machine that the catalog states.
        deviation = math.log(gemm.fastest / gemm.slowest) / 4.0
    return Figure(key, float(section["value"]), deviation, basis)


# Keys of overrides.
FIGURES = (
    *("gemm_sustained_fraction", "attention_forward_fraction", "attention_backward_fraction"),
    *("attention_flash2_forward_fraction", "attention_flash2_backward_fraction"),
    *("memory_bound_fraction", "collectives_at_gb_per_s_per_direction"),
    *("scale_up_efficiency_fraction", "scale_up_latency_us"),
    *("fabric_efficiency_fraction", "fabric_latency_us"),
    *("host_link_gb_per_s_per_direction", "host_core_gb_per_s", "host_memory_gb_per_s"),
)


def with_values(base: Base, values: Mapping[str, float]) -> ClusterSpec:
    """The cluster of the base's file with these overrides; fractions end at 1."""
    most = {key: 1.0 if key.endswith("fraction") else math.inf for key in values}
    stated = {key: min(value, most[key]) for key, value in values.items()}
    overrides = base.raw.get("overrides", {}) | stated
    return cluster_of_data({**base.raw, "overrides": overrides}, Path(base.cluster.name))


@dataclass(frozen=True, kw_only=True)
class OwnErrors:
    """Error of the model on one file, before and after."""

    path: str
    kind: str
    num_points: int
    before: float  # mean of the absolute errors, predicted over measured minus one
    after: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A cluster's figures that measurements change."""

    base: Base
    figures: tuple[Figure, ...]
    own: tuple[OwnErrors, ...]


def calibrate(base: Base, points: Sequence[Point]) -> Calibration:
    """The most probable figures.

    Minimises ``Σ w_i (ln p_i(θ) - ln t_i)² / σ_i² + Σ_j θ_j² / s_j²`` by Gauss and Newton, θ the
    logarithms of new over old; s the deviation of the catalog's figure by its basis, σ that of a
    kind of point (NOISE), ``w_i = min(1, INDEPENDENT / points of the file) · Huber``. So a few
    points move a figure by little more than what the catalog leaves open. A fraction ends at 1.
    """
    priors = {key: each for key in FIGURES if (each := known(base, key))}
    errors = _errors(base, points, priors)
    slopes = _slopes(errors, np.zeros(len(priors)))
    effects = dict(zip(priors, np.abs(slopes).T, strict=True))
    used = [key for key, effect in effects.items() if np.max(effect) > LEAST_EFFECT]
    errors = _errors(base, points, {key: priors[key] for key in used})
    theta = np.zeros(len(used))
    scales = np.array([priors[key].deviation for key in used])
    values = np.array([priors[key].value for key in used])
    is_fraction = [key.endswith("fraction") for key in used]
    most = np.where(is_fraction, 1.0 / values, np.inf)
    # inverse variances: of the kind, shared by the points of a file
    noise = np.array([NOISE[point.kind] for point in points])
    number = Counter((point.place.path, point.kind) for point in points)
    numbers = np.array([number[each.place.path, each.kind] for each in points])
    shared = np.minimum(1.0, INDEPENDENT / numbers)
    spread = scales
    # six rounds: further ones change nothing that is written
    for _ in range(6 if used else 0):
        residual, slopes = errors(theta), _slopes(errors, theta)
        # from two deviations on a point counts less (Huber); 1e-12: one may be met exactly
        distance = np.maximum(np.abs(residual), 1e-12)
        huber = np.minimum(1.0, 2.0 * noise / distance)
        weights = shared * huber / noise**2
        weighted = weights[:, None] * slopes
        normal = slopes.T @ weighted + np.diag(1.0 / scales**2)
        pull = slopes.T @ (weights * residual) + theta / scales**2
        step = np.linalg.solve(normal, pull)
        theta = np.minimum(theta - step, np.log(most))
        spread = np.sqrt(np.diag(np.linalg.inv(normal)))
    counts = [int(np.sum(effects[key] > LEAST_EFFECT)) for key in used]
    fitted = zip(map(priors.__getitem__, used), np.exp(theta), spread, counts, strict=True)
    return Calibration(
        base=base,
        figures=tuple(
            Figure(was.key, was.value * float(factor), float(deviation), was.basis, num, was.value)
            for was, factor, deviation, num in fitted
        ),
        own=tuple(_own_errors(points, errors(np.zeros(len(used))), errors(theta))),
    )


def _errors(
    base: Base, points: Sequence[Point], figures: Mapping[str, Figure]
) -> Callable[[Array], Array]:
    """Predicted over measured of every point by factors of figures, both in logarithms."""

    def errors(theta: Array) -> Array:
        factors = dict(zip(figures, np.exp(theta), strict=True))
        values = {key: float(factors[key] * each.value) for key, each in figures.items()}
        machine = with_values(base, values)
        return np.log([point.predict(machine) / point.measured for point in points])

    return errors


def _slopes(errors: Callable[[Array], Array], theta: Array) -> Array:
    """Return the derivatives of the errors by each figure, in logarithms."""
    here = errors(theta)
    # downwards: a fraction may stand at 1 already
    slopes = [(here - errors(theta - axis)) / STEP for axis in STEP * np.eye(len(theta))]
    return np.stack(slopes, axis=1)


def _own_errors(points: Sequence[Point], before: Array, after: Array) -> Iterator[OwnErrors]:
    """The model's error on each file, by kind; ``before``, ``after``: logarithms by point."""
    rows: dict[tuple[str, str], list[int]] = {}
    for at, point in enumerate(points):
        rows.setdefault((point.place.path, point.kind), []).append(at)
    for (path, kind), mine in rows.items():
        errors = [np.abs(np.expm1(each[mine])) for each in (before, after)]
        first, last = (float(np.mean(each)) for each in errors)
        yield OwnErrors(path=path, kind=kind, num_points=len(mine), before=first, after=last)


def cluster_text(made: Calibration, command: str, day: date, folder: Path) -> str:
    """The base's cluster file, with the fitted figures among its overrides.

    Each has its spread, its points and the day. ``folder`` is where the file will lie: files that
    it names are found from there.
    """
    files = named_files(made.base.raw)
    near = {key: os.path.relpath(files[key], folder) for key in files}
    rest = {**made.base.raw, **near}
    fitted = {each.key for each in made.figures}
    given = rest.pop("overrides", {})
    overrides = [(key, f"{given[key]!r}", "") for key in given if key not in fitted]
    for each in made.figures:
        spread = f"+- {each.value * each.deviation:.2g}, {plural(each.num_points, 'point')}"
        comment = f"{spread}, {day.isoformat()}; {each.basis}: {each.catalog:g}"
        overrides.append((each.key, f"{each.value:.6g}", comment))
    remarks = [
        f"  {each.path}: {each.num_points} x {each.kind}, mean error "
        f"{each.before:.1%} before, {each.after:.1%} now"
        for each in made.own
    ]
    return file_text(f"`{command}` on {day.isoformat()}", remarks, rest, overrides)
