"""Answers how to parallelize a training job on a cluster."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import Planned as Planned
    from planner.api import Shown as Shown
    from planner.api import check as check
    from planner.api import emit as emit
    from planner.api import explain as explain
    from planner.api import memory as memory
    from planner.api import plan as plan
    from planner.api import size as size
    from planner.api import why as why

__version__ = "0.1.0"
__all__ = ["Planned", "Shown", "check", "emit", "explain", "memory", "plan", "size", "why"]


def __getattr__(name: str) -> object:
    """The functions for users, loaded when first used."""
    if name in __all__:
        from planner import api

        return getattr(api, name)
    known = (
        f"known are {', '.join(__all__)}; plans have best, save, emit, report, to_frame, to_json; "
        "other commands are of a shell: `planner --help`"
    )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {known}")
