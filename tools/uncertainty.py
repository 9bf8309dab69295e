"""By how much memory peaks exceeded the model on published runs, by framework: the margin."""

from collections.abc import Sequence

import numpy as np

from planner.frameworks.registry import FRAMEWORKS
from tools.validation.compare import Comparison
from tools.validation.summary import weighted_quantile

KINDS = ("reserved", "nvidia_smi")
"""What the device holds, not only what tensors take."""
QUANTILE = 0.9
"""Nine of ten peaks of a framework were lower: the upper end of a range of 80 %."""
LEAST_QUANTILE = 0.8
"""Of all frameworks together: what no margin is below. A framework's own runs may be of one
machine, on which communicators and the device's context happen to be right."""
STAND_IN = {"accelerate": "torchtitan"}
"""A framework without published peaks takes those of the one it shares its sharding with."""
HEADER = """\
# By how much peaks of dense models exceeded the modelled ones on published runs, in %: 90th
# percentile of measured over predicted, minus one, runs of one source and model weighing as one;
# at least the 80th percentile over all frameworks. `planner plan` leaves as much of HBM free.
# Written by tools/accuracy.py; do not edit.
"""
Shortfalls = dict[tuple[str, str, str], list[float]]
"""Measured over predicted, minus one, by source, model and kind of peak."""


def shortfalls(rows: Sequence[Comparison]) -> dict[str, Shortfalls]:
    """Those of scored runs of dense models by framework.

    Mixtures are left out: their peaks depend on routing, which has a factor of its own.
    """
    by_framework: dict[str, Shortfalls] = {name: {} for name in FRAMEWORKS}
    for row in rows:
        if row.predicted is None or not row.record.is_scored or row.record.model.moe:
            continue
        found = by_framework[row.record.software.framework]
        for kind in KINDS:
            error = row.memory_error(kind)
            if error is not None:
                group = (row.record.source.title, row.record.model.name, kind)
                found.setdefault(group, []).append(1.0 / (1.0 + error) - 1.0)
    return by_framework


def quantile(groups: Sequence[Sequence[float]], share: float) -> float:
    """Of all values, each group weighing the same; at least 0."""
    values = np.concatenate([np.asarray(group) for group in groups])
    weights = np.concatenate([np.full(len(group), 1.0 / len(group)) for group in groups])
    return max(weighted_quantile(values, weights, share), 0.0)


def uncertainty_text(rows: Sequence[Comparison]) -> str:
    """Return planner/frameworks/uncertainty.yaml."""
    found = shortfalls(rows)
    least = quantile([g for groups in found.values() for g in groups.values()], LEAST_QUANTILE)
    lines = []
    for name in FRAMEWORKS:
        of = name if found[name] else STAND_IN[name]
        groups = list(found[of].values())
        percent = 100.0 * max(least, quantile(groups, QUANTILE))
        runs = sum(map(len, groups))
        lines.append(f"{name}: {{memory_percent: {percent:.1f}, runs: {runs}, of: {of}}}\n")
    return HEADER + "".join(lines)
