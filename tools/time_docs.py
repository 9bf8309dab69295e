"""The formulas of docs/time.md: docstrings of every function that prices time."""

from planner.report.terms import TERMS
from tools.formulas import docstrings


def time_formulas() -> str:
    """Docstring of every function behind an item of time, once, in the order of the items."""
    return docstrings(
        function
        for term in TERMS
        if term.prefix.partition(".")[0] == "time"
        for function in term.functions
        if not function.__module__.startswith("planner.collectives")
    )
