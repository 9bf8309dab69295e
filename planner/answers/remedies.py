"""Remedies when nothing fits: the nearest change of every kind, with its plan and time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from planner.answers.base import Deadline, Plan
from planner.answers.changes import Kind, argument_of, kinds, most_gpus, of_size
from planner.answers.variants import is_spared, useful_switches
from planner.answers.whatif import Change, Scale, best_within, least, unproved
from planner.query.resolve import Case
from planner.search.feasible import SearchTimeoutError, smallest_feasible


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change that lets something fit, and the best plan then."""

    change: Change
    plan: Plan
    time_factor: float | None  # of seconds per token and GPU without limits of memory


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """Looks for the nearest change of every kind after which something fits."""

    asked: Case  # all frameworks asked; the question of the first one is changed
    deadline: Deadline
    unconstrained: Plan | None

    @property
    def case(self) -> Case:
        """The question that is changed."""
        return self.asked.of(self.asked.context)

    def found(self) -> list[Remedy]:
        """The smallest change of each kind after which something fits, cheapest first, or pairs."""
        every = kinds(self.asked)
        larger = self.more_gpus()
        single: list[Remedy] = []
        for kind in every:
            single += self.least(kind(self.case))
        found = single or self.pairs(every)
        if larger is not None:
            is_of_node = larger.plan.context.cluster.num_accelerators <= self._per_node
            found.insert(0 if is_of_node else len(found), larger)
        return list(map(self._of_framework, found))

    def _of_framework(self, one: Remedy) -> Remedy:
        """The change, with the framework it is for where several were asked."""
        change = one.change
        options = ("--framework", self.case.context.traits.name)
        if len(self.asked.contexts) == 1 or "--framework" in change.options:
            return one
        words = f"{change.words} {' '.join(options)}"
        return replace(one, change=replace(change, words=words, options=change.options + options))

    def remedy(self, change: Change, plan: Plan) -> Remedy:
        """Return the remedy of a change, with its cost, and with switches where a plan has them."""
        asked = change
        for switch in useful_switches(plan, asked.case):
            other = best_within(switch.case, self.deadline)
            if other and is_spared(other, plan):
                change, plan = asked.then(switch), other
        ideal, rate = self.unconstrained, plan.estimate.tokens_per_s_per_gpu
        return Remedy(
            change=change,
            plan=plan,
            time_factor=None if ideal is None else ideal.estimate.tokens_per_s_per_gpu / rate,
        )

    def least(self, changes: Iterator[Change] | Scale) -> list[Remedy]:
        """The smallest change of one kind after which something fits; none where none does."""
        try:
            change = least(changes, self.deadline)
        except SearchTimeoutError:
            return []
        plan = change and best_within(change.case, self.deadline)
        return [self.remedy(change, plan)] if change and plan else []

    def pairs(self, every: Sequence[Kind]) -> list[Remedy]:
        """Two changes at once, where none alone is enough."""
        pairs = (one for pair in combinations(every, 2) for one in self.both(*pair))
        # Enough to choose from.
        return list(islice(pairs, 3))

    def both(self, first: Kind, second: Kind) -> list[Remedy]:
        """Changes of two kinds; the second one first where only it makes room for the other."""
        if next(_listed(first(self.case)), None) is None:
            first, second = second, first
        for one in _listed(first(self.case)):
            for found in self.least(second(one.case)):
                return [replace(found, change=one.then(found.change))]
        return []

    def more_gpus(self) -> Remedy | None:
        """The fewest GPUs that fit: of the node where a part of one was asked for, else more nodes.

        No assumption that more nodes fit more: the space of a cluster holds the layouts of every
        smaller one, so the smallest layout that fits is looked for among all of them.
        """
        context = self.case.context
        own, per_node = context.cluster.num_accelerators, self._per_node
        of_node = (per_node,) if context.cluster.node.whole else ()
        for largest in (*of_node, most_gpus(context)):
            try:
                grown = of_size(self.case, largest)
                found = smallest_feasible(
                    grown.context, grown.narrowing, deadline=self.deadline.ends_s
                )
            except SearchTimeoutError:
                break
            if found is None:
                continue
            fit, is_smallest = found
            step = 1 if largest == per_node else per_node
            least = max(-(-fit.strategy.num_gpus // step), own // step + 1) * step
            # A part of a node has its share of host memory only, so the layout may not fit there.
            for num_gpus in (least, largest) if step == 1 else (least,):
                case = of_size(self.case, num_gpus)
                plan = best_within(case, self.deadline)
                if plan is not None or num_gpus == largest or step > 1:
                    plan = plan or unproved(case.context, fit.strategy)
                    return self._on(case, plan, is_smallest=is_smallest)
        return None

    @property
    def _per_node(self) -> int:
        node = self.case.context.cluster.node
        return (node.whole or node).num_accelerators

    def _on(self, larger: Case, plan: Plan, *, is_smallest: bool) -> Remedy:
        grown = larger.context.cluster
        cluster = argument_of(grown)
        more = grown.num_accelerators - self.case.context.cluster.num_accelerators
        words = f"{'' if is_smallest else 'at most '}{more:,} more GPU{'s' * (more > 1)}"
        if grown.num_accelerators <= self._per_node:
            words += " of the node"
        change = Change(
            words=f"{words} ({cluster or f'{grown.num_nodes} x {grown.node.name}'})",
            case=larger,
            options=("--global-batch", str(larger.context.job.global_batch)),
            cluster=cluster,
        )
        return self.remedy(change, plan)


def _listed(changes: Iterator[Change] | Scale) -> Iterator[Change]:
    """All changes of a kind; of a scale its halves: few enough to pair."""
    if not isinstance(changes, Scale):
        yield from changes
        return
    for part in (changes.num_steps // 4, changes.num_steps // 2, changes.num_steps):
        if part:
            yield changes.at(part)
