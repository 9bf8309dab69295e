"""Context: what every estimate needs beside the strategy."""

from dataclasses import dataclass

from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits


@dataclass(frozen=True, kw_only=True)
class Context:
    """The four inputs every estimate needs, the HBM margin, and what a search may choose."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    traits: FrameworkTraits
    margin_fraction: float = 0.0
    placements: tuple[str, ...] = ()
    """Placements a search tries; empty: the framework's usual one."""
    schedules: tuple[str, ...] = ("1f1b",)
    """Pipeline schedules a search may choose from; interleaving is one of 1f1b's."""
