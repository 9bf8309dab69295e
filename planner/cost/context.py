"""Context: what every estimate needs beside the strategy."""

from dataclasses import dataclass

from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits


@dataclass(frozen=True, kw_only=True)
class Context:
    """The four inputs every estimate needs, and the HBM margin."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    traits: FrameworkTraits
    margin_fraction: float = 0.0
    placements: tuple[str, ...] = ()
    """Placements a search tries; empty: the framework's usual one."""
