"""Context: what every estimate needs beside the strategy."""

from dataclasses import dataclass, replace

from planner.spec.cluster import ClusterSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.precision import under_precision
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
    module_sets: tuple[tuple[str, ...], ...] = ()
    """What selective recomputation may repeat in a search; empty: what the traits select."""

    weighs_evidence: bool = False
    """A search weighs time by what is known of the mechanisms that a plan relies on."""

    def __post_init__(self) -> None:
        """Traits are those under the job's precision."""
        object.__setattr__(self, "traits", under_precision(self.traits, self.job.precision))

    @property
    def usable_bytes(self) -> float:
        """HBM the driver offers, less the margin."""
        return self.cluster.accelerator.hbm_bytes * (1.0 - self.margin_fraction)


def with_modules(context: Context, modules: tuple[str, ...] | None) -> Context:
    """The context in which selective recomputation repeats ``modules``; None: the traits' own."""
    traits = context.traits
    if modules is None or modules == traits.recompute.selected:
        return context
    recompute = replace(traits.recompute, selected=modules)
    return replace(context, traits=replace(traits, recompute=recompute))
