"""How far iteration times were off on published runs, by class of runs: the range plans state."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.spec.items import RunClass, TimeRange, narrowest, wider_regimes
from tools.validation.compare import Comparison
from tools.validation.setup import to_cluster
from tools.validation.summary import weighted_quantile

COVERED = 0.82
"""Share of a class between the two ends, the rest halved: of runs whose source is left out, which
stand for unseen ones, 80 % and more are inside in every class with enough sources."""
MIN_RUNS, MIN_SOURCES = 20, 5
"""Fewer say little of unseen runs: those of one source share its machine and its habits."""
ALL: RunClass = ("", "")
HEADER = """\
# Where published runs lay around the predicted iteration time, by class: 9th and 91st percentile of
# measured over predicted, minus one, in %, the wider of both where each source weighs the same and
# where each run does, which hold 80 % of runs of sources left out; the prediction itself always
# inside. Written by tools/accuracy.py; do not edit.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One scored run."""

    key: RunClass
    accelerator: str
    source: str
    ratio: float
    """Measured over predicted time; 1 where the difference of machines explains it."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A class of runs that has a range of its own."""

    runs: tuple[Run, ...]
    low: float
    high: float
    accelerators: tuple[str, ...]
    """Those of the runs that the ends are taken from."""

    @property
    def sources(self) -> frozenset[str]:
        """Where the runs are published."""
        return frozenset(run.source for run in self.runs)


def runs_of(rows: Iterable[Comparison]) -> list[Run]:
    """Scored runs with a time of their own."""
    return [
        Run(
            key=row.run_class,
            accelerator=to_cluster(row.record.hardware).accelerator.name,
            source=row.record.source.title,
            ratio=row.unexplained_ratio,
        )
        for row in rows
        if row.in_headline and row.run_class and row.unexplained_ratio is not None
    ]


def _percentiles(runs: Sequence[Run]) -> tuple[float, float]:
    """Ends of COVERED, taken outwards to the next run; 1 inside.

    The wider of both where each source weighs the same and where each run does: of unseen runs
    many may come from one source, as many of those seen do.
    """
    number = Counter(run.source for run in runs)
    ratios = np.array([run.ratio for run in runs])
    alike = np.array([1.0 / number[run.source] for run in runs])
    share = (1.0 + COVERED) / 2.0
    weightings = (alike, np.ones(len(runs)))
    low = min(-weighted_quantile(-ratios, weights, share) for weights in weightings)
    high = max(weighted_quantile(ratios, weights, share) for weights in weightings)
    return min(1.0, low), max(1.0, high)


def regimes(runs: Sequence[Run]) -> dict[RunClass, Regime]:
    """Classes that have a range, the broadest first: those with enough runs and sources, and all.

    One with fewer takes the range of all kinds that were run so.
    """
    members: dict[RunClass, list[Run]] = defaultdict(list)
    for run in runs:
        for key in wider_regimes(run.key):
            members[key].append(run)
    found = {}
    for key in sorted(members, key=lambda key: (sum(map(bool, key)), key)):
        own = members[key]
        is_known = len(own) >= MIN_RUNS and len({run.source for run in own}) >= MIN_SOURCES
        if key == ALL or is_known:
            low, high = _percentiles(own)
            used = tuple(sorted({run.accelerator for run in own}))
            found[key] = Regime(runs=tuple(own), low=low, high=high, accelerators=used)
    return found


def ranges(found: Mapping[RunClass, Regime]) -> dict[RunClass, TimeRange]:
    """What plans are given of them, less the words."""
    return {
        key: TimeRange(low=each.low, high=each.high, accelerators=each.accelerators)
        for key, each in found.items()
    }


def _inside(runs: Iterable[Run], known: Mapping[RunClass, TimeRange]) -> dict[Run, bool]:
    spans = {run: narrowest(known, run.key).on(run.accelerator) for run in runs}
    return {run: span.low <= run.ratio <= span.high for run, span in spans.items()}


@dataclass(frozen=True, kw_only=True)
class Covered:
    """Runs of one class, and which share of them lies in their ranges."""

    key: RunClass
    runs: tuple[Run, ...]
    inside: float
    left_out: float
    """In ranges taken from all other sources."""
    left_out_by_source: float
    """The same, as the mean over sources."""


def _share(runs: Sequence[Run], holds: Mapping[Run, bool]) -> float:
    return float(np.mean([holds[run] for run in runs]))


def _by_source(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.source].append(run)
    return list(found.values())


def coverage(runs: Sequence[Run]) -> list[Covered]:
    """All runs, then those of each class, against ranges of all sources and of the others."""
    inside = _inside(runs, ranges(regimes(runs)))
    left_out: dict[Run, bool] = {}
    for own in _by_source(runs):
        others = [run for run in runs if run.source != own[0].source]
        left_out |= _inside(own, ranges(regimes(others)))
    keys = [ALL, *sorted({run.key for run in runs})]
    members = {key: [run for run in runs if key in (ALL, run.key)] for key in keys}
    return [
        Covered(
            key=key,
            runs=tuple(own),
            inside=_share(own, inside),
            left_out=_share(own, left_out),
            left_out_by_source=float(np.mean([_share(each, left_out) for each in _by_source(own)])),
        )
        for key, own in members.items()
    ]


def _line(key: RunClass, regime: Regime) -> str:
    named = zip(("kind", "reach"), key, strict=True)
    names = "".join(f"{name}: {value}, " for name, value in named if value)
    low = math.floor(1000.0 * (regime.low - 1.0)) / 10.0
    high = math.ceil(1000.0 * (regime.high - 1.0)) / 10.0
    counts = f"runs: {len(regime.runs)}, sources: {len(regime.sources)}"
    ends = f"low_percent: {low:.1f}, high_percent: {high:.1f}"
    return f"- {{{names}{counts}, {ends}, accelerators: [{', '.join(regime.accelerators)}]}}\n"


def time_uncertainty_text(rows: Iterable[Comparison]) -> str:
    """Return planner/frameworks/time_uncertainty.yaml."""
    found = regimes(runs_of(rows))
    return HEADER + "".join(_line(key, regime) for key, regime in found.items())
