"""By how little nothing fits: the layout that does with the least memory more."""

from dataclasses import dataclass, replace
from functools import partial

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.ledger import StageLedger, stage_ledgers
from planner.cost.stage import StageModel
from planner.cost.subject import subject_of
from planner.plans.limits import HBM, HOST, with_host_factor, with_usable
from planner.search.explaining.feasible import Fit
from planner.search.explaining.nearest import Limited, Nearest, Widened, nearest
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """The legal layout nearest to fitting, and what it lacks."""

    context: Context
    strategy: Strategy
    estimate: Estimate
    limit: str
    """HBM or host memory."""
    stage: int
    missing_bytes: float
    """Per GPU on that stage."""
    is_least: bool
    """No layout lacks less, to one part in fifty."""

    @property
    def ledger(self) -> StageLedger:
        """What fills that stage."""
        return stage_ledgers(subject_of(self.context, self.strategy))[self.stage]


def _with_hbm(context: Context, factor: float) -> Context:
    return with_usable(context, factor * context.usable_bytes)


def _limited_hbm(model: StageModel, factor: Array) -> StageModel:
    """More usable bytes, row by row: what is more, overheads take less."""
    more = (factor - 1.0) * model.usable_bytes
    return replace(model, overhead_bytes=model.overhead_bytes - more)


def _limited_host(model: StageModel, factor: Array) -> StageModel:
    return replace(model, host_limit_bytes=factor * model.host_limit_bytes)


def shortfall(
    context: Context, narrowing: Narrowing, *, deadline: float | None = None
) -> Shortfall | None:
    """The nearest layout; None where no layout is legal.

    In HBM with host memory as it is; where no HBM would be enough, in host memory.
    """
    ways: dict[str, tuple[Widened, Limited]] = {
        HBM: (partial(_with_hbm, context), _limited_hbm),
        HOST: (partial(with_host_factor, context), _limited_host),
    }
    for limit, (widened, limited) in ways.items():
        found = nearest(narrowing, widened, limited, deadline=deadline)
        if found is not None:
            return _lack(context, found, limit)
    return None


def _lack(context: Context, found: Nearest, limit: str) -> Shortfall:
    fit: Fit = found.fit
    made = estimate(context, fit.strategy)
    memory = made.memory
    missing = memory.peak_bytes - memory.usable_bytes
    if limit == HOST:
        missing = memory.host_bytes - memory.host_limit_bytes
    return Shortfall(
        context=context,
        strategy=fit.strategy,
        estimate=made,
        limit=limit,
        stage=memory.peak_stage,
        missing_bytes=missing,
        is_least=found.is_least,
    )
