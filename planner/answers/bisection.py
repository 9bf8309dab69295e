"""Bisections: the least count, and the ratio, from which on a test says otherwise."""

import math
from collections.abc import Callable, Iterable

from planner.search.feasible import SearchTimeoutError


def smallest(low: int, high: int, holds: Callable[[int], bool]) -> tuple[int, int]:
    """The last count at which a test does not hold, and the next one, from which on it does.

    It does not at ``low`` and does at ``high``. Counts between the two are left where a test ran
    out of time.
    """
    try:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
    except SearchTimeoutError:
        pass
    return low, high


def crossing(
    near: float,
    far: float,
    holds: Callable[[float], bool],
    *,
    ratio: float,
    possible: Callable[[float], float] = lambda value: value,
    guesses: Iterable[float] = (),
) -> tuple[float, float]:
    """Values around where a test that holds at ``near`` stops to hold, not at ``far`` any more.

    They differ by at most ``ratio``, or have no ``possible`` value in between. ``guesses`` are
    tried first, the last one in front.
    """
    waiting = list(guesses)
    while max(far / near, near / far) > ratio:
        is_guess = bool(waiting)
        middle = possible(waiting.pop() if is_guess else math.sqrt(far * near))
        if not min(near, far) < middle < max(near, far):
            if is_guess:
                continue
            break
        near, far = (middle, far) if holds(middle) else (near, middle)
    return near, far
