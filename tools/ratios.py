"""Errors of time ratios between layouts: published pairs that differ in little.

Two plans for one question share most of what the model gets wrong, so their ratio is better known
than either time. Pairs are runs of one source with the same model, GPUs, batch and precision; what
they differ in is the kind of the pair. Groups count the same however many pairs they hold.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner.answers.evidence import KINDS, MIXED
from planner.spec.strategy import KINDS_OF_DIFFERENCE, STRATEGY_FIELDS
from planner.units import Array
from tools.validation.compare import Comparison
from tools.validation.records import Parallel
from tools.validation.summary import group_key, weighted_quantile

_NAMES = {"sp": "sequence_parallel", "zero": "zero_stage"}
"""What fields of a record's layout are called in a strategy, where it is not the same."""
_DEGREES = {name for name, each in STRATEGY_FIELDS.items() if not each.words} - {"etp"}
"""Fields that are 1 where a record does not state them; etp is what the framework takes."""
_FIELD_KINDS = {
    name: KINDS[field]
    for name in Parallel.model_fields
    if (field := _NAMES.get(name, name)) in KINDS
}
FIELD_KINDS = dict(
    sorted(_FIELD_KINDS.items(), key=lambda item: KINDS_OF_DIFFERENCE.index(item[1]))
)
"""What a difference in a field of a record's layout is called, in the order of pairs' kinds."""
RUNTIME = "runtime"
"""Differences of CUDA graphs and dispatcher; runs that differ in overlaps alone are averaged."""
MIN_GROUPS = 3
COVERED = 0.8
"""Share of pairs inside the interval stated."""
_RECOMPUTE_ORDER = ("none", "selective", "full")
Layout = tuple[float | str, ...]


@dataclass(frozen=True, kw_only=True)
class RatioPair:
    """Two layouts of one group."""

    kind: str
    group: tuple[object, ...]
    runs: tuple[str, str]
    """First the one with more: ids of records."""
    log_error: float
    """``ln(predicted ratio) - ln(measured ratio)`` of more over less: below 0 flatters more."""


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """What the pairs of one kind say; fractions, groups weighted equally."""

    kind: str
    num_pairs: int
    num_groups: int
    num_runs: int
    median: float
    """Of |log error|."""
    covered: float
    """What |log error| is below in COVERED of the pairs, whichever plan is the one with more."""
    low: float
    high: float
    """Between them the middle 80 % of signed errors."""
    bias: float
    """Median of signed errors."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How measured over predicted time moves with one degree, the others held."""

    degree: str
    num_groups: int
    num_runs: int
    """In groups where the degree varies."""
    per_doubling: float
    """Above 0: runs with more of it are slower than the model says."""
    standard_error: float

    @property
    def shrunk(self) -> float:
        """``b · b² / (b² + s²)``: what to count on."""
        square = self.per_doubling**2
        total = square + self.standard_error**2
        return self.per_doubling * square / total if total else 0.0


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Runs of one layout in one group: their mean times."""

    record_id: str
    parallel: Parallel
    layout: Layout
    predicted_s: float
    measured_s: float

    @property
    def log_ratio(self) -> float:
        """``ln(measured / predicted)``."""
        return math.log(self.measured_s / self.predicted_s)


Groups = dict[tuple[object, ...], list[_Runs]]


def _sortable(name: str, value: object) -> float | str:
    if name == "recompute":
        return float(_RECOMPUTE_ORDER.index(str(value)))
    if isinstance(value, bool | int):
        return float(value)
    return "" if value is None else str(value)


def layout_of(row: Comparison) -> Layout:
    """Values of FIELD_KINDS of a record, its graphs and dispatcher, comparable within a field.

    Degrees that are not stated are 1.
    """
    parallel, runtime = row.record.parallel, row.record.runtime
    values = [
        _sortable(name, getattr(parallel, name) or (1 if name in _DEGREES else None))
        for name in FIELD_KINDS
    ]
    return (*values, repr((runtime.cuda_graph, runtime.dispatcher)))


def layout_groups(rows: Iterable[Comparison]) -> Groups:
    """Layouts by group; runs of one layout are averaged, groups of one layout left out."""
    found: dict[tuple[object, ...], dict[Layout, list[Comparison]]] = {}
    for row in rows:
        if row.in_headline and row.time_error is not None:
            key = (*group_key(row), row.record.model.layers, row.record.framework)
            found.setdefault(key, {}).setdefault(layout_of(row), []).append(row)
    return {
        key: [_runs(layout, alike) for layout, alike in layouts.items()]
        for key, layouts in found.items()
        if len(layouts) > 1
    }


def _runs(layout: Layout, rows: Sequence[Comparison]) -> _Runs:
    predicted = [row.predicted.iter_time_s for row in rows if row.predicted]
    measured = [row.measured.iter_time_s for row in rows]
    return _Runs(
        record_id=rows[0].record.id,
        parallel=rows[0].record.parallel,
        layout=layout,
        predicted_s=float(np.mean([value for value in predicted if value is not None])),
        measured_s=float(np.mean([value for value in measured if value is not None])),
    )


def kind_of(one: Layout, other: Layout) -> str:
    """Names of what differs, in the order of FIELD_KINDS."""
    names = [*FIELD_KINDS.values(), RUNTIME]
    differing = [name for name, a, b in zip(names, one, other, strict=True) if a != b]
    return ", ".join(dict.fromkeys(differing))


def ratio_pairs(groups: Groups) -> list[RatioPair]:
    """All pairs of every group."""
    pairs = []
    for key, layouts in groups.items():
        for one, other in combinations(layouts, 2):
            more, less = (one, other) if _comes_after(one.layout, other.layout) else (other, one)
            predicted = math.log(more.predicted_s / less.predicted_s)
            measured = math.log(more.measured_s / less.measured_s)
            pairs.append(
                RatioPair(
                    kind=kind_of(one.layout, other.layout),
                    group=key,
                    runs=(more.record_id, less.record_id),
                    log_error=predicted - measured,
                )
            )
    return pairs


def _comes_after(one: Layout, other: Layout) -> bool:
    """Whether the first field that differs is larger in ``one``."""
    return next(_order(a) > _order(b) for a, b in zip(one, other, strict=True) if a != b)


def _order(value: float | str) -> tuple[float, str]:
    """A key that orders numbers and texts of one field."""
    return (0.0, value) if isinstance(value, str) else (value, "")


def ratio_errors(pairs: Sequence[RatioPair]) -> list[RatioError]:
    """Summarise the pairs by kind, the kinds with one field first; the rest is MIXED."""
    by_kind: dict[str, list[RatioPair]] = {}
    for pair in pairs:
        by_kind.setdefault(pair.kind, []).append(pair)
    kept: dict[str, list[RatioPair]] = {}
    for kind, alike in sorted(by_kind.items(), key=lambda item: (item[0].count(","), item[0])):
        is_single = "," not in kind
        has_many = len({pair.group for pair in alike}) >= MIN_GROUPS
        kept.setdefault(kind if is_single or has_many else MIXED, []).extend(alike)
    mixed = kept.pop(MIXED, [])
    return [_error(kind, alike) for kind, alike in (*kept.items(), (MIXED, mixed)) if alike]


def _error(kind: str, pairs: Sequence[RatioPair]) -> RatioError:
    groups = [pair.group for pair in pairs]
    weights = np.array([1.0 / groups.count(group) for group in groups])
    errors = np.array([pair.log_error for pair in pairs])
    tail = (1.0 - COVERED) / 2.0
    return RatioError(
        kind=kind,
        num_pairs=len(pairs),
        num_groups=len(set(groups)),
        num_runs=len({run for pair in pairs for run in pair.runs}),
        median=weighted_quantile(np.abs(errors), weights, 0.5),
        covered=weighted_quantile(np.abs(errors), weights, COVERED),
        low=weighted_quantile(errors, weights, tail),
        high=weighted_quantile(errors, weights, 1.0 - tail),
        bias=weighted_quantile(errors, weights, 0.5),
    )


def _log2(name: str) -> Callable[[Parallel], float]:
    return lambda parallel: math.log2(getattr(parallel, name) or 1)


def _is(value: str) -> Callable[[Parallel], float]:
    return lambda parallel: float(parallel.recompute == value)


DEGREES: dict[str, Callable[[Parallel], float]] = {
    "tp": _log2("tp"),
    "pp": _log2("pp"),
    "vpp": _log2("vpp"),
    "cp": _log2("cp"),
    "micro_batch": _log2("micro_batch"),
    "recompute full": _is("full"),
    "recompute selective": _is("selective"),
}
"""What the drift is measured in: doublings, and whether something is on."""


def _within(layouts: Sequence[_Runs]) -> tuple[Array, Array]:
    """Degrees and log ratios of a group about their means; all groups weigh the same."""
    degrees = np.array([[read(runs.parallel) for read in DEGREES.values()] for runs in layouts])
    ratios = np.array([runs.log_ratio for runs in layouts])
    weight = len(layouts) ** -0.5
    return weight * (degrees - degrees.mean(axis=0)), weight * (ratios - ratios.mean())


def drifts(groups: Groups) -> list[Drift]:
    """Least squares within groups; standard errors by leaving out one group at a time.

    None of a single group.
    """
    parts = [_within(layouts) for layouts in groups.values()]
    if len(parts) < 2:
        return []

    def fit(chosen: Sequence[tuple[Array, Array]]) -> Array:
        left = np.vstack([degrees for degrees, _ in chosen])
        right = np.concatenate([ratios for _, ratios in chosen])
        solved: Array = np.linalg.lstsq(left, right, rcond=None)[0]
        return solved

    slopes, number = fit(parts), len(parts)
    without = np.array([fit(parts[:i] + parts[i + 1 :]) for i in range(number)])
    errors = np.sqrt((number - 1) / number * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    varies = [np.ptp(degrees, axis=0) > 0 for degrees, _ in parts]
    return [
        Drift(
            degree=name,
            num_groups=sum(bool(column[i]) for column in varies),
            num_runs=sum(len(p[1]) for p, column in zip(parts, varies, strict=True) if column[i]),
            per_doubling=float(slopes[i]),
            standard_error=float(errors[i]),
        )
        for i, name in enumerate(DEGREES)
    ]


HEADER = """\
# How far ratios of modelled times were off between published runs of one group: same source,
# model, GPUs, batch and precision. Pairs, by what they differ in: median of |error| and what 80 %
# of |error| are below, the middle 80 % and the median of signed errors (predicted over measured,
# more over less), in %, groups weighted equally. Drift: how measured over predicted moves per
# doubling of a degree within groups, in %, its standard error over groups, and both times
# b^2 / (b^2 + s^2).
# Written by tools/accuracy.py; do not edit.
"""


def _percent(value: float) -> str:
    return f"{100.0 * math.expm1(value):.1f}"


def _pair_line(error: RatioError) -> str:
    name = f'"{error.kind}"' if "," in error.kind else error.kind
    return (
        f"  {name}: {{pairs: {error.num_pairs}, groups: {error.num_groups}, "
        f"runs: {error.num_runs}, median_percent: {_percent(error.median)}, "
        f"covered_percent: {_percent(error.covered)}, "
        f"low_percent: {_percent(error.low)}, high_percent: {_percent(error.high)}, "
        f"bias_percent: {_percent(error.bias)}}}\n"
    )


def _drift_line(drift: Drift) -> str:
    return (
        f"  {drift.degree}: {{groups: {drift.num_groups}, runs: {drift.num_runs}, "
        f"per_doubling_percent: {_percent(drift.per_doubling)}, "
        f"standard_error_percent: {_percent(drift.standard_error)}, "
        f"shrunk_percent: {_percent(drift.shrunk)}}}\n"
    )


def ratio_errors_text(rows: Iterable[Comparison]) -> str:
    """Return planner/frameworks/ratio_errors.yaml."""
    groups = layout_groups(rows)
    pairs = "".join(_pair_line(error) for error in ratio_errors(ratio_pairs(groups)))
    drift = "".join(_drift_line(one) for one in drifts(groups))
    return f"{HEADER}pairs:\n{pairs}drift:\n{drift}"
