"""What a launcher offers: the files that start an emitted configuration, and how to start them."""

from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to start the processes of a plan on its nodes."""

    name: str
    problems: Callable[[Context, Strategy], list[str]]
    """Why the launcher cannot start such a plan; empty where it can."""
    files: Callable[[Emitted, Context, Strategy], tuple[OutputFile, ...]]
    """Pure, for a plan without problems. Raises ExpressError where the files are too large."""
    start: str
    """How to start them, a paragraph of Markdown for the README."""
