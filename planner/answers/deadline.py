"""A time limit shared out over several searches."""

import time
from typing import ClassVar

from planner.errors import NothingFitsError

LEAST_S = 0.01  # of a share, so that a search that comes late still ends by itself


class Deadline:
    """Shares what is left of a time limit equally over the searches still planned."""

    # Seconds after which a search beside the plans asked for ends with what it has. They decide
    # what is found on a slow machine.
    PLAN_S: ClassVar[float] = 2.0  # the best plan after one change
    PAIRS_S: ClassVar[float] = 6.0  # pairs of changes, where none alone is enough
    FEWEST_S: ClassVar[float] = 6.0  # the fewest nodes that fit
    CONFLICT_S: ClassVar[float] = 10.0  # limits that no layout keeps together
    SHORTAGE_S: ClassVar[float] = 5.0  # the layout that lacks least memory
    CHANGES_S: ClassVar[float] = 20.0  # all changes after which something would fit

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self.ends_s = None if limit_s is None else time.monotonic() + limit_s
        self.num_left = 1

    def within(self, seconds: float) -> "Deadline":
        """A deadline of its own after so many seconds, no later than this one."""
        return Deadline(min(seconds, self.left_s()))

    def plan_for(self, num_searches: int) -> None:
        """Say how many searches are to come."""
        self.num_left = num_searches

    @property
    def is_over(self) -> bool:
        """The time is up."""
        return self.ends_s is not None and time.monotonic() > self.ends_s

    def left_s(self) -> float:
        """Seconds left; infinite without a limit."""
        if self.ends_s is None:
            return float("inf")
        return max(self.ends_s - time.monotonic(), LEAST_S)

    def share_s(self) -> float | None:
        """Seconds the next search may take; None without a limit."""
        if self.ends_s is None:
            return None
        share_s = self.left_s() / max(self.num_left, 1)
        self.num_left -= 1
        return max(share_s, LEAST_S)

    def nothing_found(self) -> NothingFitsError:
        """What to raise where no search found anything before the time was over."""
        return NothingFitsError(
            f"no plan found within --time-limit {self.limit_s or 0:g}; "
            "that does not say that none fits"
        )
