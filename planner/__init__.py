"""Answers how to parallelize a training job on a cluster."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import Planned as Planned
    from planner.api import plan as plan

__version__ = "0.1.0"
__all__ = ["Planned", "__version__", "plan"]


def __getattr__(name: str) -> object:
    """The functions for users, loaded when first used."""
    if name in ("Planned", "plan"):
        from planner import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
