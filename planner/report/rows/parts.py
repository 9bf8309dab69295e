"""Rows that documents of several kinds share."""

from planner.report.rows.base import Row


class CollectiveCostRow(Row):
    """A collective cost, in any document."""

    time_s: float
    rounds: float
    """Messages one after another."""
    sent_bytes: float
    """By one rank."""
