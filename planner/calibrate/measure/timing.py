"""Times an action many times: by events on a GPU, by the clock elsewhere."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from planner.calibrate.measure.world import World

Action = Callable[[], object]
LEAST_S = 1e-3
"""Of one repeat: shorter actions are done several times in it, and shared out."""
BUDGET_S = 0.25
"""Of the repeats of one action together."""
REPEATS = (5, 25)
"""Fewest and most."""
MOST_INNER = 1000


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The median and spread of the repeats of all ranks."""

    time_s: float
    spread_s: float
    repeats: int


def timed(action: Action, world: World) -> Timed:
    """Seconds of an action that all ranks do at once, each for itself.

    Of each rank as many repeats as fit in BUDGET_S, after two that are not counted.
    """
    world.barrier()
    own = _repeats(action, world)
    return summary([value for each in world.gathered(own) for value in each])


def timed_together(action: Action, world: World) -> Timed:
    """Seconds of an action that ranks need each other for: of each repeat the slowest rank."""
    world.barrier()
    own = _repeats(action, world)
    return summary([max(each) for each in zip(*world.gathered(own), strict=True)])


def summary(seconds: Sequence[float]) -> Timed:
    """Median and spread of repeats."""
    low, median, high = np.percentile(seconds, [25, 50, 75])
    return Timed(time_s=float(median), spread_s=float(high - low) / 2, repeats=len(seconds))


def _repeats(action: Action, world: World) -> list[float]:
    """Seconds of each repeat; as many on every rank, by the second trial of the slowest."""
    _once(action, world, 1)
    first = max(*world.gathered(_once(action, world, 1)), 1e-9)
    inner = int(min(max(LEAST_S / first, 1.0), MOST_INNER))
    fit = int(BUDGET_S / (inner * first))
    repeats = min(max(fit, REPEATS[0]), REPEATS[1])
    return [_once(action, world, inner) / inner for _ in range(repeats)]


def _once(action: Action, world: World, inner: int) -> float:
    if not world.device.is_gpu:
        start = time.perf_counter()
        for _ in range(inner):
            action()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    world.device.synchronise()
    begin.record()
    for _ in range(inner):
        action()
    end.record()
    world.device.synchronise()
    return float(begin.elapsed_time(end)) * 1e-3


def launch_s(action: Action, world: World, count: int = 200) -> float:
    """Seconds the host takes to launch a small kernel: the device's own work is not waited for."""
    action()
    world.device.synchronise()
    start = time.perf_counter()
    for _ in range(count):
        action()
    seconds = time.perf_counter() - start
    world.device.synchronise()
    return seconds / count
