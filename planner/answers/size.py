"""Sizing: the smallest cluster of a node that does a job in time and within a budget."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.changes import NOTHING_OFFLOADED, narrowed
from planner.answers.plan import merged
from planner.answers.row import Row
from planner.answers.rows import InputsRow, NearestRow
from planner.answers.scale import fastest_on_all
from planner.answers.whatif import best
from planner.query.objectives import JobLimits
from planner.query.resolve import Case
from planner.search.search import Progress, SearchResult, no_progress
from planner.spec.cluster import ClusterSpec

IN_GPUS_AND_TIME = ("iteration_s", "gpus")  # what none beats in these is a size worth a look
ClusterOf = Callable[[int], ClusterSpec]  # the cluster of so many GPUs of the node that is sized


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The smallest size that keeps the limits, and every useful size up to the largest."""

    case: Case  # on the largest cluster
    limits: JobLimits
    sizes: tuple[Plan, ...]  # ascending in GPUs, each faster than all smaller ones
    chosen: Plan | None  # in a cluster of its own; None where no size keeps the limits
    nearest: tuple[Plan, ...] = ()  # ``nearest_sizes``, where none is chosen
    enough: Plan | None = None  # where none is chosen: the smallest beyond the largest cluster
    resident: Plan | None = None  # on the fewest GPUs with nothing offloaded
    searches: tuple[SearchResult, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True when every time was proved best under the model."""
        sizes = [*self.sizes, self.chosen] if self.chosen else self.sizes
        is_proved = all(size.is_optimal for size in sizes)
        return is_proved and all(each.is_complete for each in self.searches)

    @property
    def seconds(self) -> float:
        """Search time, that in clusters of their own left out."""
        return sum(result.seconds for result in self.searches)


def nearest_sizes(sizes: Sequence[Plan], limits: JobLimits) -> tuple[Plan, ...]:
    """Return the sizes that give up least of the limits, of sizes none of which meets all.

    The fastest within the budget, and the cheapest of those in time; where none is either, the
    fastest and the cheapest of all.
    """
    missed = [(size, limits.missed_by(size)) for size in sizes]
    affordable = [size for size, what in missed if "budget" not in what]
    in_time = [size for size, what in missed if what == ("budget",)]
    if not affordable and not in_time:
        affordable = in_time = list(sizes)
    fastest = min(affordable, key=lambda size: size.estimate.iter_time_s, default=None)
    cheapest = min(in_time, key=lambda size: size.cost_usd() or 0.0, default=None)
    nearest = {size.num_gpus: size for size in (fastest, cheapest) if size}
    return tuple(nearest.values())


def on_cluster(case: Case, cluster: ClusterSpec) -> Case:
    """The question on another cluster."""
    return case.with_each(lambda context: replace(context, cluster=cluster))


@dataclass(frozen=True, kw_only=True)
class Sizer:
    """Inputs of a sizing besides the question."""

    limits: JobLimits
    cluster_of: ClusterOf
    deadline: Deadline
    progress: Progress = no_progress

    def searched(self, case: Case) -> tuple[tuple[Plan, ...], tuple[SearchResult, ...]]:
        """The useful sizes up to the question's cluster, over all frameworks."""
        self.deadline.num_left = len(case.contexts) + 1
        found = best(case, self.deadline, with_frontier=True, progress=self.progress)
        return merged([*found.frontier, *found.plans], IN_GPUS_AND_TIME), found.searches

    def own_size(self, case: Case, num_gpus: int) -> Plan | None:
        """The fastest plan on so many GPUs, in a cluster of just these."""
        self.deadline.num_left = 2 * len(case.contexts)
        return fastest_on_all(on_cluster(case, self.cluster_of(num_gpus)), self.deadline).plan

    def smallest(self, case: Case, sizes: Sequence[Plan]) -> Plan | None:
        """The smallest of ``sizes`` that keeps the limits in a cluster of its own.

        The network of a small cluster may differ from the same part of a large one (slices of a
        torus). So what keeps the limits in the large one (else the nearest) is searched in its own,
        ascending until one keeps them, then descending while they are kept.
        """

        def own(row: int) -> Plan | None:
            plan = self.own_size(case, sizes[row].num_gpus)
            return None if plan is None or self.limits.missed_by(plan) else plan

        meeting = [size for size in sizes if not self.limits.missed_by(size)]
        tried = {size.num_gpus for size in meeting or nearest_sizes(sizes, self.limits)}
        for row, size in enumerate(sizes):
            chosen = own(row) if size.num_gpus in tried else None
            if chosen is None:
                continue
            while row and (smaller := own(row - 1)):
                chosen, row = smaller, row - 1
            return chosen
        return None

    def sizing(self, case: Case, larger: ClusterSpec | None = None) -> Sizing:
        """Find the smallest cluster that keeps the limits; the question's is the largest.

        One search over it gives the fastest plan of every number of GPUs, at one global batch.
        Where no size keeps the limits, one in a ``larger`` cluster is looked for.
        """
        sizes, searches = self.searched(case)
        chosen = self.smallest(case, sizes)
        found = Sizing(
            case=case,
            limits=self.limits,
            sizes=sizes,
            chosen=chosen,
            searches=searches,
        )
        if chosen is not None or not sizes:
            return found
        near = nearest_sizes(sizes, self.limits)
        nearest = [self.own_size(case, size.num_gpus) or size for size in near]
        enough = None
        if larger and larger.num_accelerators > case.context.cluster.num_accelerators:
            wider = on_cluster(case, larger)
            beyond, _ = self.searched(wider)
            enough = self.smallest(wider, beyond)
        return replace(found, nearest=tuple(nearest), enough=enough)

    def fewest(self, case: Case, clusters: Callable[[], Iterable[ClusterSpec]]) -> Sizing:
        """The sizing on the first of growing clusters with room beyond the smallest, else the last.

        Where its plan offloads, with the fewest GPUs that need not.
        """
        found = self._on_growing(case, clusters())
        inside = narrowed(case, NOTHING_OFFLOADED)
        if found.chosen is None or inside is None or not found.chosen.offloads:
            return found
        return replace(found, resident=self._on_growing(inside, clusters()).chosen)

    def _on_growing(self, case: Case, clusters: Iterable[ClusterSpec]) -> Sizing:
        found = None
        for cluster in clusters:
            found = self.sizing(on_cluster(case, cluster))
            sizes = found.sizes
            # So that sizes up to four times the fewest GPUs are shown.
            if sizes and sizes[0].num_gpus * 4 <= cluster.num_accelerators:
                break
        assert found is not None
        return found


def unmet(result: Answer) -> Sizing:
    """The sizes of an answer none of whose plans keeps the limits, the nearest among them."""
    limits, sizes = result.aim.limits, merged(result.frontier, IN_GPUS_AND_TIME)
    return Sizing(
        case=Case(contexts=result.contexts, narrowing=result.narrowing),
        limits=limits,
        sizes=sizes,
        chosen=None,
        nearest=nearest_sizes(sizes, limits),
        searches=result.searches,
    )


class SizeRow(NearestRow):
    """The fastest plan on a number of GPUs."""

    nodes: int
    total_s: float
    """Seconds of the job, or of 1000 iterations where its tokens are not known."""


class SizeDocument(Row):
    """The fewest GPUs that do a job within limits, or just hold it, and the sizes around them."""

    inputs: InputsRow
    """Inputs on the largest cluster considered."""
    limits: JobLimits
    includes: dict[str, str]
    """Items that cost and energy count."""
    usd_per_node_hour: float | None
    price_source: str
    power_w_per_gpu: float | None
    chosen: SizeRow | None
    sizes: list[SizeRow]
    """Sizes considered around the chosen one."""
    nearest: list[SizeRow]
    enough: SizeRow | None
    """The fewest that would keep them, beyond the largest cluster."""
    resident: SizeRow | None
    """Fewest GPUs that offload nothing, if the chosen size offloads."""
    seconds: float
    proved_optimal: bool
    """No time limit struck."""
