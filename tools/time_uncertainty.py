"""How far iteration times were off on published runs, by class of runs: the range plans state."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.documents.tree import load_own
from planner.frameworks.registry import FRAMEWORKS, profile_names
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
# inside. From least to most: as far as the median of any source, too, for software that fewer than
# two sources ran. Written by tools/accuracy.py; do not edit.
"""
PROFILES_HEADER = """\
# Published runs with a time, and their sources, of every profile with the stacks over it.
# Written by tools/accuracy.py; do not edit.
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One scored run."""

    key: RunClass
    accelerator: str
    source: str
    ratio: float
    """Measured over predicted time; 1 where the difference of machines explains it."""
    software: str = ""
    """Framework and profile."""


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

    @property
    def source_ends(self) -> tuple[float, float]:
        """The range, as far as the medians of all sources."""
        medians = [statistics.median(run.ratio for run in own) for own in _by_source(self.runs)]
        return min(self.low, *medians), max(self.high, *medians)


def runs_of(rows: Iterable[Comparison]) -> list[Run]:
    """Scored runs with a time of their own."""
    return [
        Run(
            key=row.run_class,
            accelerator=to_cluster(row.record.hardware).accelerator.name,
            source=row.record.source.title,
            ratio=row.unexplained_ratio,
            software=f"{row.record.software.framework}/{row.record.software.profile}",
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

    One with fewer, of two sources or more, is as wide as the range of all kinds that were run so,
    and wider where its own runs are; the rest take that range as it is.
    """
    members: dict[RunClass, list[Run]] = defaultdict(list)
    for run in runs:
        for key in wider_regimes(run.key):
            members[key].append(run)
    found: dict[RunClass, Regime] = {}
    for key in sorted(members, key=lambda key: (sum(map(bool, key)), key)):
        own = members[key]
        num_sources = len({run.source for run in own})
        low, high = _percentiles(own)
        used = {run.accelerator for run in own}
        if key != ALL and (len(own) < MIN_RUNS or num_sources < MIN_SOURCES):
            if num_sources < 2:
                continue
            wider = next(found[each] for each in wider_regimes(key) if each in found)
            low, high = min(low, wider.low), max(high, wider.high)
            used |= {*wider.accelerators}
        found[key] = Regime(runs=tuple(own), low=low, high=high, accelerators=tuple(sorted(used)))
    return found


def ranges(found: Mapping[RunClass, Regime]) -> dict[RunClass, TimeRange]:
    """What plans are given of them, less the words."""
    return {
        key: TimeRange(low=each.low, high=each.high, accelerators=each.accelerators)
        for key, each in found.items()
    }


def _spans(runs: Iterable[Run], known: Mapping[RunClass, TimeRange]) -> dict[Run, TimeRange]:
    return {run: narrowest(known, run.key).on(run.accelerator) for run in runs}


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
    width: float
    """Median of what lies between the ends of those."""


def _share(runs: Sequence[Run], spans: Mapping[Run, TimeRange]) -> float:
    return float(np.mean([spans[run].low <= run.ratio <= spans[run].high for run in runs]))


def _by_source(runs: Sequence[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.source].append(run)
    return list(found.values())


def coverage(runs: Sequence[Run]) -> list[Covered]:
    """All runs, then those of each class, against ranges of all sources and of the others."""
    inside = _spans(runs, ranges(regimes(runs)))
    left_out: dict[Run, TimeRange] = {}
    for own in _by_source(runs):
        others = [run for run in runs if run.source != own[0].source]
        left_out |= _spans(own, ranges(regimes(others)))
    keys = [ALL, *sorted({run.key for run in runs})]
    members = {key: [run for run in runs if key in (ALL, run.key)] for key in keys}
    return [
        Covered(
            key=key,
            runs=tuple(own),
            inside=_share(own, inside),
            left_out=_share(own, left_out),
            left_out_by_source=float(np.mean([_share(each, left_out) for each in _by_source(own)])),
            width=statistics.median(left_out[run].high - left_out[run].low for run in own),
        )
        for key, own in members.items()
    ]


def _line(key: RunClass, regime: Regime) -> str:
    named = zip(("kind", "reach"), key, strict=True)
    names = "".join(f"{name}: {value}, " for name, value in named if value)
    lows, highs = zip((regime.low, regime.high), regime.source_ends, strict=True)
    low, least = (math.floor(1000.0 * (end - 1.0)) / 10.0 for end in lows)
    high, most = (math.ceil(1000.0 * (end - 1.0)) / 10.0 for end in highs)
    counts = f"runs: {len(regime.runs)}, sources: {len(regime.sources)}"
    ends = f"low_percent: {low:.1f}, high_percent: {high:.1f}, "
    ends += f"least_percent: {least:.1f}, most_percent: {most:.1f}"
    return f"- {{{names}{counts}, {ends}, accelerators: [{', '.join(regime.accelerators)}]}}\n"


def time_uncertainty_text(rows: Iterable[Comparison]) -> str:
    """Return planner/frameworks/time_uncertainty.yaml."""
    found = regimes(runs_of(rows))
    return HEADER + "".join(_line(key, regime) for key, regime in found.items())


def profile_runs_text(rows: Iterable[Comparison]) -> str:
    """Return planner/frameworks/profile_runs.yaml."""
    over = {
        f"{line['framework']}/{line['as']}": f"{line['framework']}/{line['profile']}"
        for line in load_own("planner.frameworks", "stacks.yaml")
        if "as" in line
    }
    found: dict[str, list[str]] = defaultdict(list)
    for run in runs_of(rows):
        name: str | None = run.software
        while name:
            found[name].append(run.source)
            name = over.get(name)
    names = (f"{name}/{profile}" for name in FRAMEWORKS for profile in profile_names(name))
    counts = ((name, len(found[name]), len(set(found[name]))) for name in names)
    lines = (f"{name}: {{runs: {runs}, sources: {known}}}\n" for name, runs, known in counts)
    return PROFILES_HEADER + "".join(lines)
