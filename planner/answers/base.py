"""Plans and answers, and the time that the searches for them share."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from planner.answers.row import row_from
from planner.cost.context import Context
from planner.cost.estimate import estimates
from planner.cost.module_sets import module_sets
from planner.errors import NothingFitsError
from planner.notes import Note
from planner.query.objectives import FASTEST, Aim, Priced
from planner.search.ranking.penalties import penalties_of
from planner.search.search import FoundLayout, SearchResult
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import SCHEDULES

if TYPE_CHECKING:
    from planner.search.prove import Proof


class Deadline:
    """Shares what is left of a time limit equally over the searches still planned."""

    # Seconds after which a search beside the plans asked for ends with what it has. They decide
    # what is found on a slow machine.
    PLAN_S: ClassVar[float] = 2.0  # the best plan after one change
    CONFLICT_S: ClassVar[float] = 10.0  # limits that no layout keeps together
    SHORTAGE_S: ClassVar[float] = 5.0  # the layout that lacks least memory
    CHANGES_S: ClassVar[float] = 20.0  # all changes after which something would fit
    LEAST_S: ClassVar[float] = 0.01  # of a share: a search that comes late still ends by itself

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self.ends_s = None if limit_s is None else time.monotonic() + limit_s
        self.num_left = 1  # searches still to come

    def within(self, seconds: float) -> "Deadline":
        """A deadline of its own after so many seconds, no later than this one."""
        return Deadline(min(seconds, self.left_s()))

    @property
    def is_over(self) -> bool:
        """True once the time is up."""
        return self.ends_s is not None and time.monotonic() > self.ends_s

    def left_s(self) -> float:
        """Seconds left; infinite without a limit."""
        if self.ends_s is None:
            return float("inf")
        return max(self.ends_s - time.monotonic(), self.LEAST_S)

    def share_s(self) -> float | None:
        """Seconds the next search may take; None without a limit."""
        if self.ends_s is None:
            return None
        share_s = self.left_s() / max(self.num_left, 1)
        self.num_left -= 1
        return max(share_s, self.LEAST_S)

    def nothing_found(self) -> NothingFitsError:
        """Return the error to raise if no search found anything before the time was over."""
        return NothingFitsError(
            f"no plan found within --time-limit {self.limit_s or 0:g}; "
            "that does not say that none fits"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Priced):
    """One ranked plan: where it runs, how it is parallelized, what that costs."""

    is_optimal: bool
    weighed_s: float | None = None  # its time with the penalties of what it uses, of a search

    def __repr__(self) -> str:
        """Return its GPUs, degrees and time; contexts fill screens."""
        time_s = self.estimate.iter_time_s
        return (
            f"Plan({self.framework}, {self.num_gpus} GPUs, {self.strategy.degrees}, {time_s:.3g} s)"
        )

    @property
    def framework(self) -> str:
        """Name of the framework."""
        return self.context.traits.name

    @property
    def num_gpus(self) -> int:
        """GPUs it runs on."""
        return self.strategy.num_gpus

    @property
    def ranked_s(self) -> float:
        """Time it is ranked by: its weighed time if a search found it, else its iteration time."""
        return self.estimate.iter_time_s if self.weighed_s is None else self.weighed_s

    @property
    def offloads(self) -> bool:
        """States or activations are moved to the host."""
        return self.strategy.offload != "none" or self.strategy.layers_under["offloaded"] > 0

    @property
    def sacrifices(self) -> tuple[bool, int, bool]:
        """Offload, degrees beside data parallelism, layers recomputed whole; the worst first."""
        layout = self.strategy
        return self.offloads, layout.tp * layout.pp * layout.cp, layout.layers_under["full"] > 0

    def penalties(self) -> dict[str, float]:
        """Return the penalty of each mechanism it uses: the factor of time to make up for."""
        return penalties_of(self.context, self.strategy)

    @property
    def num_nodes(self) -> int:
        """Nodes that hold it; part of a node counts as one."""
        return math.ceil(self.num_gpus / self.context.cluster.node.num_accelerators)


@dataclass(frozen=True, kw_only=True)
class Found:
    """Result of every search of a question, one per framework."""

    plans: tuple[Plan, ...]  # best first, as the searches rank them
    searches: tuple[SearchResult, ...]
    frontier: tuple[Plan, ...] = ()  # the fastest of every number of GPUs, where it was asked for
    ladder: tuple[Plan, ...] = ()  # the best on at most a half, a quarter, ... of its GPUs
    fastest_of_each: tuple[Plan, ...] = ()  # of each framework, before ties are broken

    @property
    def plan(self) -> Plan | None:
        """The best plan."""
        return self.plans[0] if self.plans else None

    @property
    def is_complete(self) -> bool:
        """True if no search ran into its time limit."""
        return all(result.is_complete for result in self.searches)


@dataclass(frozen=True, kw_only=True)
class Answer(Found):
    """Everything a report needs: the best plans, the frontiers, search figures.

    All plans keep the limits, no two have one layout; of several frameworks the best of each come
    first. The frontier is what nothing dominates in time and GPUs, ascending in GPUs.
    """

    contexts: tuple[Context, ...]
    pareto: tuple[Plan, ...]  # not dominated in ``aim.pareto``, whether limits are kept or not
    notes: tuple[Note, ...] = ()
    aim: Aim = FASTEST
    narrowing: Narrowing = EVERYTHING
    fastest: Plan | None = None  # before ties are broken, where the first plan is slower
    headroom_gib: int | None = None  # where that was the aim: what every plan leaves
    proof: "Proof | None" = None  # of the layouts shown, by CP-SAT, where it was asked for

    @property
    def proved_optimal(self) -> bool:
        """True when every plan shown was proved best under the model."""
        return all(result.proved_optimal for result in self.searches)

    @property
    def gap(self) -> float:
        """Share of its time by which the best plan may be off the optimum at most."""
        gaps = [result.gap for result in self.searches]
        if self.plans:
            best_s = self.plans[0].estimate.iter_time_s
            empty = [r for r in self.searches if not (r.plans or r.is_complete)]
            gaps += [max(0.0, 1.0 - result.bound_s / best_s) for result in empty]
        return max(gaps, default=0.0)

    @property
    def beside_s(self) -> float | None:
        """Seconds for each search beside the plans, a second; no limit where none struck."""
        return None if self.is_complete else 1.0

    @property
    def seconds(self) -> float:
        """Search time over all frameworks."""
        return sum(result.seconds for result in self.searches)

    def dropped(self) -> dict[str, int]:
        """Branches dropped by each rule, over all frameworks, most first."""
        total = Counter[str]()
        for result in self.searches:
            total.update(result.dropped)
        return dict(total.most_common())


def plans_of(
    context: Context, found: Sequence[FoundLayout], known: Plan | None = None
) -> list[Plan]:
    """Return the layouts a search found, as plans; a ``known`` one is not priced again."""
    made = {known.strategy: known.estimate} if known and known.context == context else {}
    new = [one.strategy for one in found if one.strategy not in made]
    made |= zip(new, estimates(context, new) if new else (), strict=True)
    return [row_from(Plan, one, context=context, estimate=made[one.strategy]) for one in found]


def search_context(plan: Plan) -> Context:
    """The plan's context with all that a search may choose; plan files do not say what was left."""
    context, support = plan.context, plan.context.traits.support
    return replace(
        context,
        placements=support.placements,
        schedules=tuple(name for name in SCHEDULES if name in support.schedules),
        module_sets=module_sets(context),
        ranking="simplicity",
    )
