"""The formulas of docs/time.md: docstrings of every function that prices time."""

from planner.cost.estimate import ITEMS
from tools.formulas import docstrings


def time_formulas() -> str:
    """Docstring of every function behind an item of time, once, in the order of the items."""
    return docstrings(
        function
        for item in ITEMS
        if item.address.partition(".")[0] == "time"
        for function in item.functions
        if not function.__module__.startswith("planner.collectives")
    )
