"""What a run took: its steps in seconds, first ones left out, with their spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from planner.logs.record import TIMES, Log, Sizes, Unit

SLOW_FACTOR = 1.2
"""A step of so many medians is slow: at the start it warms up, later it is a straggler."""
MOST_LEFT_OUT = 0.5
"""Of all steps; a run that never settles is taken as it is."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds per iteration of a log."""

    median_s: float
    low_s: float
    """The tenth of the steps that are fastest lie below."""
    high_s: float
    """The tenth that are slowest lie above."""
    mean_s: float
    steps_s: tuple[float, ...]
    """Those that count, in the order of the run."""
    left_out_s: tuple[float, ...]
    """The first ones, which do not."""

    @property
    def spread(self) -> float:
        """``(high - low) / median``."""
        return (self.high_s - self.low_s) / self.median_s


def seconds(value: float, unit: Unit, sizes: Sizes) -> float | None:
    """Seconds of a step as it is printed; None where a rate needs a size that is not known.

    ``batch / rate`` of sequences per second, ``batch · seq_len / (rate · GPUs)`` of tokens per
    second and GPU, ``1 / rate`` of iterations per second.
    """
    if unit in TIMES:
        return value * TIMES[unit]
    if unit == "it/s":
        return 1.0 / value
    if sizes.global_batch is None:
        return None
    if unit == "samples/s":
        return sizes.global_batch / value
    if sizes.seq_len is None or sizes.num_gpus is None:
        return None
    return sizes.global_batch * sizes.seq_len / (value * sizes.num_gpus)


def measured(log: Log, sizes: Sizes) -> Measured | None:
    """The steps of a log; None where sizes that its unit needs are not known."""
    all_s = [seconds(step.value, log.unit, sizes) for step in log.steps]
    known = [one for one in all_s if one is not None]
    if not known:
        return None
    first = _warm_up(known, is_start=_starts(log))
    kept = known[first:]
    low, high = np.percentile(kept, [10.0, 90.0])
    return Measured(
        median_s=median(kept),
        low_s=float(low),
        high_s=float(high),
        mean_s=sum(kept) / len(kept),
        steps_s=tuple(kept),
        left_out_s=tuple(known[:first]),
    )


def _starts(log: Log) -> bool:
    """Whether the first step printed is the run's first, or the mean of its first ones."""
    if len(log.steps) < 2:
        return False
    first, second = log.steps[0].number, log.steps[1].number
    return first <= second - first


def _warm_up(steps_s: Sequence[float], *, is_start: bool) -> int:
    """How many steps to leave out: the first of a run, and those after it that are slow."""
    if not is_start:
        return 0
    usual = median(steps_s[1:])
    most = max(1, int(MOST_LEFT_OUT * len(steps_s)))
    count = 1
    while count < most and steps_s[count] > SLOW_FACTOR * usual:
        count += 1
    return count
