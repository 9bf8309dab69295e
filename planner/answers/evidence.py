"""Published runs near a plan, and how well the ratio of two plans' times is known."""

import csv
import io
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from pydantic import TypeAdapter

from planner.answers.row import Row, row_from, row_of
from planner.cost.context import Context
from planner.frameworks.registry import ratio_figures
from planner.layers.parameters import count_active_parameters, count_parameters
from planner.spec.strategy import FIELDS, KINDS_OF_DIFFERENCE, MODEL_PARALLEL_DEGREES, Strategy
from planner.units import Array, Mask

MAX_RUNS = 3
NEAR_OCTAVES = 6.0  # runs farther away say nothing about a plan
_DEGREES = (*MODEL_PARALLEL_DEGREES, "ep")
# What a factor of two counts.
OCTAVE_WEIGHTS = dict.fromkeys(("params", "active_params", "gpus", *_DEGREES), 0.5)
# What another name counts: dense or mixture, framework, precision, generation.
OTHER_OCTAVES = {"kind": 4.0, "framework": 2.0, "precision": 1.0, "profile": 0.5}


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One row of evidence.csv: a run as it was configured, predicted and measured."""

    id: str
    model: str
    kind: str
    params: int
    active_params: int
    accelerator: str
    vendor: str
    architecture: str
    gpus: int
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero_stage: int
    precision: str
    framework: str
    profile: str
    predicted_s: float
    measured_s: float
    memory_error: float | None = None  # predicted over measured peak, minus one, where published
    source: str
    where: str

    @property
    def time_error(self) -> float:
        """Predicted over measured iteration time, minus one."""
        return self.predicted_s / self.measured_s - 1.0


@row_of({"octaves": float}, derived=("time_error",))
class NearbyRun(PublishedRun):
    """A published run and its distance from a plan, in octaves."""


class Evidence(Row):
    """Published runs that are like a plan."""

    runs: tuple[NearbyRun, ...]
    """Nearest first."""
    note: str = ""
    """Remark if no run is on the same accelerator or none is near; else empty."""

    def line(self, context: Context) -> str:
        """The nearest published runs and how far predictions were off there, in one line."""
        parts = [self.note] if self.note else []
        runs = []
        for run in self.runs:
            degrees = {name: getattr(run, name) for name in ("tp", "pp", "dp", "cp", "ep")}
            layout = [
                f"{name}{degree}"
                for name, degree in degrees.items()
                if degree > 1 or name not in ("cp", "ep")
            ]
            others = {run.framework: context.traits.name, run.precision: context.job.precision}
            named = [name for name, own in others.items() if name != own]
            what = ", ".join(
                (run.model, f"{run.gpus:,} {run.accelerator}", " ".join(layout), *named)
            )
            memory = (
                "" if run.memory_error is None else f", memory {100.0 * run.memory_error:+.1f} %"
            )
            runs.append(f"{what}: time {100.0 * run.time_error:+.1f} %{memory}")
        if runs:
            parts.append(f"nearest published runs, predicted over measured: {'; '.join(runs)}")
        return f"evidence: {'; '.join(parts)}"


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """All rows of evidence.csv."""
    path = resources.files("planner.frameworks").joinpath("evidence.csv")
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    stated = [{name: text for name, text in row.items() if text} for row in rows]
    return TypeAdapter(tuple[PublishedRun, ...]).validate_python(stated)


@cache
def _column(name: str) -> Array:
    # 1 for a degree of which no run was published.
    return np.array([getattr(run, name, 1) for run in published_runs()])


def distances(context: Context, strategy: Strategy) -> Array:
    """Octaves between a plan and every published run.

    ``Σ_i w_i |log2(plan_i / run_i)| + Σ_j p_j [plan_j ≠ run_j]`` with OCTAVE_WEIGHTS w over
    sizes and degrees, and OTHER_OCTAVES p over names. Hardware is not among them: it decides
    which runs are looked at.
    """
    plan = {
        "params": count_parameters(context.model),
        "active_params": count_active_parameters(context.model),
        "gpus": strategy.num_gpus,
        **{name: getattr(strategy, name) for name in _DEGREES},
        "kind": context.model.kind,
        "framework": context.traits.name,
        "precision": context.job.precision,
        "profile": context.traits.profile,
    }
    sizes = [
        weight * np.abs(np.log2(plan[name] / _column(name)))
        for name, weight in OCTAVE_WEIGHTS.items()
    ]
    names = [octaves * (_column(name) != plan[name]) for name, octaves in OTHER_OCTAVES.items()]
    total: Array = np.sum([*sizes, *names], axis=0)
    return total


def _nearest(among: Mask, octaves: Array) -> tuple[NearbyRun, ...]:
    """Return at most MAX_RUNS runs of different layouts, none farther than NEAR_OCTAVES."""
    kept: dict[tuple[object, ...], NearbyRun] = {}
    # Two runs that share these would say the same twice.
    names = ("source", "model", "accelerator", "gpus", "framework", *_DEGREES)
    for index in np.argsort(octaves, kind="stable").tolist():
        if among[index] and octaves[index] <= NEAR_OCTAVES and len(kept) < MAX_RUNS:
            run = published_runs()[index]
            shared = tuple(getattr(run, name, 1) for name in names)
            kept.setdefault(shared, row_from(NearbyRun, run, octaves=float(octaves[index])))
    return tuple(kept.values())


def evidence(context: Context, strategy: Strategy) -> Evidence:
    """The nearest published runs on this accelerator, else on its vendor's generation."""
    accelerator, octaves = context.cluster.accelerator, distances(context, strategy)
    same = _column("accelerator") == accelerator.name
    if runs := _nearest(same, octaves):
        return Evidence(runs=runs)
    kin = (_column("vendor") == accelerator.vendor) & bool(accelerator.architecture)
    kin &= (_column("architecture") == accelerator.architecture) & ~same
    runs = _nearest(kin, octaves)
    near = " is near" if same.any() else ""
    instead = f"; {accelerator.architecture} instead" if runs else ""
    return Evidence(runs=runs, note=f"no published run on {accelerator.name}{near}{instead}")


# What a difference in a field of a strategy is called, in the order of pairs' kinds.
KINDS = dict(
    sorted(
        {
            "recompute": "recomputation",
            **{name: decision.kind for name, decision in FIELDS.items() if decision.kind},
        }.items(),
        key=lambda item: KINDS_OF_DIFFERENCE.index(item[1]),
    )
)
MIXED = "mixed"  # pairs that differ in several ways, or in one of which too few runs were published


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """Error of the model on time ratios of published pairs with the same kind of difference."""

    kind: str
    num_pairs: int
    typical: float
    """Median, as a fraction."""
    widest: float
    """Eight of ten pairs were off by less either way; a fraction."""

    def may_tie(self, ratio: float) -> bool:
        """Return True if two times in this ratio are closer than the typical error."""
        return abs(math.log(ratio)) <= math.log1p(self.typical)

    def may_reverse(self, ratio: float) -> bool:
        """Return True if eight of ten pairs leave open which of the two is faster."""
        return abs(math.log(ratio)) <= math.log1p(self.widest)


def kinds_of_difference(first: Strategy, second: Strategy) -> tuple[str, ...]:
    """Return the kinds of difference between two layouts, each once."""
    kinds = dict.fromkeys(
        kind for name, kind in KINDS.items() if getattr(first, name) != getattr(second, name)
    )
    # Kinds without pairs of their own count only where nothing else differs.
    minor = ("virtual stages", "schedule", "placement", "layers per stage")
    return tuple(kind for kind in kinds if kind not in minor) or tuple(kinds)


def ratio_error(kinds: Collection[str]) -> RatioError:
    """The error of pairs that differ in these kinds, or of mixed ones where they are unknown.

    The two directions of a pair are taken together: which plan is the one with more of something
    is no matter here. Source: planner/frameworks/ratio_errors.yaml.
    """
    figures, name = ratio_figures(), ", ".join(kinds)
    kind = name if name in figures else MIXED
    found = figures[kind]
    return RatioError(
        kind=kind,
        num_pairs=int(found["pairs"]),
        typical=found["median_percent"] / 100.0,
        widest=found["covered_percent"] / 100.0,
    )
