"""Deals layers out to stages exactly, by a sweep over the slowest stage and the longest tail.

For stages no slower than T and tails no longer than τ the least total time follows by dynamic
programming. T runs up from the least that holds all layers, τ likewise, until a bound with the
least total of all passes the best split found. Mostly the first pair is the answer.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from planner.search.stages.stage_table import StageTable
from planner.units import Array, Mask

# Dynamic programmes in one sweep, some seconds; what is open then is not proved. The questions of
# the documentation need 48 at most, nearly all of them one.
MOST_PROGRAMMES = 4096


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Conversion of stage times and tails into the part of an iteration that splits decide."""

    num_micro_batches: float
    vpp: float
    filled_s: float

    def seconds(self, slowest_s: float, total_s: float, tail_s: float) -> float:
        """Makespan of planner.cost.pipeline and the longest tail."""
        bubble = max(total_s - slowest_s - self.filled_s, 0.0)
        return self.num_micro_batches * slowest_s + bubble / self.vpp + tail_s


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A split as columns of the table, and whether no other one is faster."""

    columns: Array | None  # None where time was over before any was seen
    seconds: float
    is_optimal: bool


def partition_layers(
    table: StageTable,
    num_layers: int,
    pipeline: Pipeline,
    least_work_s: float,
    limit_s: float,
    deadline: float = np.inf,
) -> Partition | None:
    """The best split; None where stages cannot hold the layers, or none is within the limit.

    ``least_work_s`` is a bound on the sum of stage times. After ``deadline``, of time.monotonic(),
    the best split seen is given.
    """
    possible = np.isfinite(table.seconds)
    slowest_s = _ascending(table, num_layers, table.seconds, possible)
    tails_s = _ascending(table, num_layers, table.tail_s, possible)
    if not len(slowest_s) or not len(tails_s):
        return None
    if pipeline.seconds(slowest_s[0], least_work_s, tails_s[0]) > limit_s:
        return None
    return _swept(table, num_layers, pipeline, slowest_s, tails_s[0], least_work_s, deadline)


def _swept(
    table: StageTable,
    num_layers: int,
    pipeline: Pipeline,
    slowest_s: Array,
    least_tail_s: float,
    least_s: float,
    deadline: float,
) -> Partition | None:
    """Run up the slowest stage and the longest tail, keeping the best split."""
    programme, possible = PartitionDP(table, num_layers), np.isfinite(table.seconds)
    best: Partition | None = None
    is_exact, tried = False, 0

    def is_beaten(slowest: float, tail: float) -> bool:
        return best is not None and pipeline.seconds(slowest, least_s, tail) >= best.seconds

    for slowest in slowest_s.tolist():
        if best and not is_exact and not is_beaten(slowest, least_tail_s):
            least_s, is_exact = programme.least_total(possible)[0], True
        if is_beaten(slowest, least_tail_s):
            break
        fast = possible & (table.seconds <= slowest)
        for tail in _ascending(table, num_layers, table.tail_s, fast).tolist():
            if is_beaten(slowest, tail):
                break
            if (best and tried >= MOST_PROGRAMMES) or (tried and time.monotonic() > deadline):
                return best or Partition(
                    columns=None,
                    seconds=np.inf,
                    is_optimal=False,
                )
            tried += 1
            total_s, columns = programme.least_total(fast & (table.tail_s <= tail))
            seconds = pipeline.seconds(slowest, total_s, tail)
            if columns is not None and (best is None or seconds < best.seconds):
                best = Partition(
                    columns=columns,
                    seconds=seconds,
                    is_optimal=False,
                )
            # 1e-12: relative rounding of sums of stage times.
            if total_s <= least_s * (1.0 + 1e-12):
                break
    # Every other pair of limits was tried or is too slow.
    return best and replace(best, is_optimal=True)


def _ascending(table: StageTable, num_layers: int, by: Array, possible: Mask) -> Array:
    """Distinct values from the least that, as a limit on ``by``, lets stages hold all layers."""
    values = np.where(possible, by, np.inf)
    candidates = np.unique(values[possible])
    most = np.where(possible, table.layers, 0.0)
    fewest = np.where(possible, table.layers, np.inf)
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        allowed = values <= candidates[middle]
        can_hold = (most * allowed).max(axis=1).sum() >= num_layers
        holds = can_hold and allowed.any(axis=1).all()
        if holds:
            holds = np.where(allowed, fewest, np.inf).min(axis=1).sum() <= num_layers
        low, high = (low, middle) if holds else (middle + 1, high)
    return candidates[low:]


class PartitionDP:
    """Least sum of stage times over allowed cells of a table, by dynamic programming.

    After stage i, the least time in which stages 0 to i hold n layers, for every n.
    """

    def __init__(self, table: StageTable, num_layers: int) -> None:
        self.table, self.num_layers = table, num_layers
        numbers = table.layers.astype(int)
        before = np.arange(num_layers + 1)[None, :] - numbers[:, None]
        self.before = np.where(before < 0, num_layers + 1, before)
        """Layers before a stage that takes as many as its column says; a place beyond the last
        stands for fewer than none."""
        self.numbers = numbers

    def least_total(self, allowed: Mask) -> tuple[float, Array | None]:
        """The least sum, infinite where there is none, and the column of each stage."""
        last = self.num_layers
        best = np.full(last + 2, np.inf)
        best[0] = 0.0
        seconds = np.where(allowed, self.table.seconds, np.inf)
        choices = []
        for stage in range(len(seconds)):
            reached = best[self.before] + seconds[stage][:, None]
            choices.append(reached.argmin(axis=0))
            best[: last + 1] = reached.min(axis=0)
        if not np.isfinite(best[last]):
            return np.inf, None
        columns, left = np.zeros(len(seconds), dtype=int), last
        for stage in reversed(range(len(seconds))):
            columns[stage] = choices[stage][left]
            left -= int(self.numbers[columns[stage]])
        return float(best[last]), columns
