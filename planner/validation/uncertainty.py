"""How far memory peaks were off on published runs, by framework: what plans leave free."""

from collections.abc import Sequence

import numpy as np

from planner.frameworks.registry import FRAMEWORKS
from planner.validation.compare import Comparison
from planner.validation.profiles import profile_of

KINDS = ("reserved", "nvidia_smi")
"""What the device holds, not only what tensors take."""
QUANTILE = 0.8
"""Four of five published peaks were nearer."""
STAND_IN = {"accelerate": "torchtitan"}
"""A framework without published peaks takes those of the one it shares its sharding with."""
HEADER = """# How far modelled peaks were off on published runs: 80th percentile of |error| in %.
# Written by scripts/accuracy.py; do not edit. `planner plan` leaves as much of HBM free.
"""


def memory_errors(rows: Sequence[Comparison]) -> dict[str, list[float]]:
    """Errors of reserved memory and nvidia-smi readings by framework, scored rows only."""
    by_framework: dict[str, list[float]] = {name: [] for name in FRAMEWORKS}
    for row in rows:
        if row.predicted is None or not row.record.is_scored:
            continue
        framework, _ = profile_of(row.record)
        errors = (row.memory_error(kind) for kind in KINDS)
        by_framework[framework] += [error for error in errors if error is not None]
    return by_framework


def uncertainty_text(rows: Sequence[Comparison]) -> str:
    """Return planner/frameworks/uncertainty.yaml."""
    errors = memory_errors(rows)
    lines = []
    for name in FRAMEWORKS:
        of = name if errors[name] else STAND_IN[name]
        percent = f"{100.0 * np.quantile(np.abs(errors[of]), QUANTILE):.1f}"
        lines.append(f"{name}: {{memory_percent: {percent}, runs: {len(errors[of])}, of: {of}}}\n")
    return HEADER + "".join(lines)
