"""A time limit shared out over several searches."""

import time

from planner.errors import NothingFitsError

LEAST_S = 0.01
"""A share is never less, so that a search that comes late still ends by itself."""


class Clock:
    """Shares what is left of a time limit equally over the searches still planned."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.deadline_s = None if limit_s is None else time.monotonic() + limit_s
        self.num_left = 1

    def plan_for(self, num_searches: int) -> None:
        """Say how many searches are to come."""
        self.num_left = num_searches

    def left_s(self) -> float:
        """Seconds left; infinite without a limit."""
        if self.deadline_s is None:
            return float("inf")
        return max(self.deadline_s - time.monotonic(), LEAST_S)

    def share_s(self) -> float | None:
        """Seconds the next search may take; None without a limit."""
        if self.deadline_s is None:
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
