"""One measurement to make, and how products that would take too long are left out."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.calibrate.measure.timing import Timed
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Measured

LONGEST_S = {"cpu": 0.12, "cuda": 0.02, "rocm": 0.02}
"""Of one kernel: larger sizes are left out."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A row to measure; ``run`` gives None where it is left out."""

    label: str
    run: Callable[[], Measured | None]


@dataclass(kw_only=True)
class Rates:
    """How fast work of each kind went so far, to leave out what would take too long.

    The times are those that all ranks agreed on, so that all leave out the same.
    """

    longest_s: float
    per_s: dict[str, float] = field(default_factory=dict)

    def fits(self, kind: str, work: float, least: float = 0.0) -> bool:
        """Whether so much work takes no longer than it may, or nothing is known of its kind.

        ``least``: work that is tried without knowing.
        """
        rate = self.per_s.get(kind)
        return work <= least if rate is None else work / rate <= self.longest_s

    def learn(self, kind: str, work: float, found: Timed) -> None:
        """Remember the fastest."""
        self.per_s[kind] = max(self.per_s.get(kind, 0.0), work / found.time_s)


def blank(world: World, **fields: object) -> Measured:
    """A row of all ranks whose time is still to come."""
    known = {"ranks": world.size, "time_s": 1.0, "spread_s": 0.0, "repeats": 1, **fields}
    return Measured(**known)  # type: ignore[arg-type]


def filled(row: Measured, found: Timed) -> Measured:
    """The row with what was timed."""
    return replace(row, time_s=found.time_s, spread_s=found.spread_s, repeats=found.repeats)
