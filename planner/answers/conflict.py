"""Limits of a question that no layout keeps together, and the layout that lacks least memory."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from planner.answers.base import Deadline
from planner.answers.changes import UNLIMITED, most_gpus, of_size, with_memory
from planner.answers.row import Row
from planner.answers.whatif import fits
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.ledger import StageLedger, stage_ledgers
from planner.cost.stage_model import price
from planner.query.resolve import Case
from planner.search.feasible import Limited, Widened, least_over_limit
from planner.search.space.narrow import Narrowing, minimal_conflict, narrowing_of
from planner.search.space.rule import Rule
from planner.search.space.space import dimension_values
from planner.spec.strategy import LAYER_POLICY_NAMES, Strategy
from planner.units import format_bytes, plural

HBM, HOST, GPUS = "HBM", "host memory", "GPUs"
# The context without a limit of memory.
WITHOUT: Mapping[str, Callable[[Context], Context]] = {
    HBM: partial(with_memory, hbm=UNLIMITED),
    HOST: partial(with_memory, host=UNLIMITED),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one question, by name; user options are called what the user wrote."""

    case: Case
    deadline: Deadline = field(default_factory=Deadline)  # after which looking for layouts gives up

    @cached_property
    def parts(self) -> Mapping[str, Narrowing]:
        """Narrowing by each user option alone."""
        return {text: narrowing_of((text,)) for text in self.case.narrowing.limiting}

    def conflict(self) -> tuple[str, ...]:
        """A minimal set of limits that no layout keeps; SearchTimeoutError where time runs out.

        To be asked where no layout keeps them all.
        """
        return minimal_conflict((HBM, GPUS, HOST, *self.parts), self.can_hold)

    def can_hold(self, kept: Collection[str]) -> bool:
        """Return True if some layout keeps the limits named."""
        case = self.case
        if GPUS not in kept:  # a larger cluster holds the layouts of every smaller one
            case = of_size(case, most_gpus(case.context))
        for name, lift in WITHOUT.items():
            case = case if name in kept else case.with_each(lift)
        narrowing = self._kept(case.context, kept)
        return fits(replace(case, narrowing=narrowing), self.deadline) is not None

    def _kept(self, context: Context, kept: Collection[str]) -> Narrowing:
        """The narrowing of the options kept; the space holds all that the others fix and lift."""
        asked = self.case.narrowing
        domains = dimension_values(context, Narrowing(allowed=asked.allowed))
        values: dict[str, tuple[int, ...]] = {}
        rules: list[Rule] = []
        kinds = set(LAYER_POLICY_NAMES)
        for text, part in self.parts.items():
            for name, given in part.values.items():
                others = () if text in kept else domains[name]
                values[name] = tuple(sorted({*given, *others}))
            if text in kept:
                rules += part.rules
                kinds &= set(part.kinds)
        return replace(
            asked,
            values=values,
            rules=tuple(rules),
            kinds=tuple(kind for kind in LAYER_POLICY_NAMES if kind in kinds),
        )

    def in_words(self, name: str) -> str:
        """A limit with its figure."""
        context = self.case.context
        cluster, node = context.cluster, context.cluster.node
        if name == HBM:
            margin = context.margin_fraction
            note = f" ({format_bytes(cluster.accelerator.hbm_bytes)} less {margin:.1%} margin)"
            return f"{format_bytes(context.usable_bytes)} of HBM per GPU{note * bool(margin)}"
        if name == HOST:
            if not node.host_memory_bytes:
                return "host memory, which is not known of this node"
            return f"{format_bytes(node.host_memory_bytes)} of host memory per node"
        return plural(cluster.num_accelerators, "GPU") if name == GPUS else name


class MissingMemory(Row):
    """The legal layout nearest to fitting, and what it lacks."""

    strategy: Strategy
    limit: str
    """HBM or host memory."""
    missing_bytes: float
    """Per GPU on that stage."""
    is_least: bool
    """No layout lacks less, to one part in fifty."""
    ledger: StageLedger
    """Ledger of the fullest stage."""


def missing_memory(
    context: Context, narrowing: Narrowing, deadline: Deadline | None = None
) -> MissingMemory | None:
    """The nearest layout, in HBM or else in host memory; None where no layout is legal."""
    ways: dict[str, tuple[Widened, Limited]] = {
        HBM: (
            lambda factor: with_memory(context, hbm=factor),
            # what is more, overheads take less
            lambda model, factor: replace(
                model, overhead_bytes=model.overhead_bytes - (factor - 1.0) * model.usable_bytes
            ),
        ),
        HOST: (
            lambda factor: with_memory(context, host=factor),
            lambda model, factor: replace(model, host_limit_bytes=factor * model.host_limit_bytes),
        ),
    }
    ends_s = deadline.ends_s if deadline else None
    for limit, (widened, limited) in ways.items():
        found = least_over_limit(narrowing, widened, limited, deadline=ends_s)
        if found is None:
            continue
        fit, is_least = found
        strategy = fit.strategy
        memory = estimate(context, strategy).memory
        missing = {
            HBM: memory.peak_bytes - memory.usable_bytes,
            HOST: memory.host_bytes - memory.host_limit_bytes,
        }
        return MissingMemory(
            strategy=strategy,
            limit=limit,
            missing_bytes=missing[limit],
            is_least=is_least,
            ledger=stage_ledgers(price(context, strategy))[memory.stage],
        )
    return None
