"""What no plan decides: the same questions for every format, each with its own keys."""

from collections.abc import Mapping
from functools import cache

from planner.documents.tree import load_own


@cache
def left_open(name: str) -> Mapping[str, str]:
    """What is left to the user of a format, and the keys that say it."""
    by_format: dict[str, dict[str, str]] = load_own(__package__, "left_open.yaml")
    return by_format.get(name, {})
