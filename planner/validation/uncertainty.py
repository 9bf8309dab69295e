"""How far memory peaks were off on published runs, by framework: what plans leave free."""

from collections.abc import Sequence

from planner.frameworks.registry import FRAMEWORKS
from planner.validation.compare import Comparison
from planner.validation.profiles import profile_of
from planner.validation.statistics import Errors, summarize

KINDS = ("reserved", "nvidia_smi")
"""What the device holds, not only what tensors take."""
STAND_IN = {"accelerate": "torchtitan"}
"""A framework without published peaks takes those of the one it shares its sharding with."""
HEADER = """# How far modelled peaks were off on published runs: 90th percentile of |error|, percent.
# Written by scripts/accuracy.py; do not edit. `planner plan` leaves as much of HBM free.
"""


def memory_errors(rows: Sequence[Comparison]) -> dict[str, Errors]:
    """Errors of reserved memory and nvidia-smi readings by framework, scored rows only."""
    by_framework: dict[str, list[float]] = {name: [] for name in FRAMEWORKS}
    for row in rows:
        if row.predicted is None or not row.record.is_scored:
            continue
        framework, _ = profile_of(row.record)
        errors = (row.memory_error(kind) for kind in KINDS)
        by_framework[framework] += [error for error in errors if error is not None]
    return {name: summarize(errors) for name, errors in by_framework.items()}


def uncertainty_text(rows: Sequence[Comparison]) -> str:
    """Return planner/frameworks/uncertainty.yaml."""
    errors = memory_errors(rows)
    lines = []
    for name in FRAMEWORKS:
        of = name if errors[name].n else STAND_IN[name]
        found = errors[of]
        assert found.p90_ape is not None
        percent = f"{100.0 * found.p90_ape:.1f}"
        lines.append(f"{name}: {{memory_percent: {percent}, runs: {found.n}, of: {of}}}\n")
    return HEADER + "".join(lines)
