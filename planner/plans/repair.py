"""A plan that is illegal or too big for a cluster, and the smallest edits that mend it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate, estimates
from planner.cost.module_sets import module_sets
from planner.cost.stage import stage_host_bytes, stage_peak_bytes
from planner.cost.subject import subject_of
from planner.errors import InputError
from planner.plans.plan import Plan
from planner.plans.plan_file import PlanFile, read_plan
from planner.search.edits import Edit
from planner.search.ranking.rank import Ranked
from planner.search.repair import Accepts, Progress, repairs
from planner.search.search import to_strategy
from planner.search.space.legality import LAYERS, Violation, violations
from planner.spec.strategy import COUNTS, DECIDED, Strategy
from planner.units import format_bytes, format_stage

RECOMPUTE, MODULES = "recompute", "recompute_modules"
Value = int | str | bool | tuple[int, ...] | tuple[str, ...] | dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """A stage whose memory is not enough."""

    stage: int
    limit: str
    """``HBM`` or ``host memory``."""
    needed_bytes: float
    usable_bytes: float
    num_stages: int = 1
    """Of the pipeline."""

    @property
    def words(self) -> str:
        """What does not fit, with numbers; stages are told from those of ZeRO."""
        return (
            f"{format_stage(self.stage, self.num_stages)} needs "
            f"{format_bytes(self.needed_bytes)} of {self.limit}, "
            f"may hold {format_bytes(self.usable_bytes)}: "
            f"{format_bytes(self.missing_bytes)} missing"
        )

    @property
    def missing_bytes(self) -> float:
        """By how much."""
        return self.needed_bytes - self.usable_bytes


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that differs between the plan and its repair."""

    decision: str
    before: Value
    after: Value
    counts: bool
    """False where it follows from other decisions."""


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A plan that is legal and fits, and how it differs from the broken one."""

    strategy: Strategy
    estimate: Estimate
    changes: tuple[Change, ...]
    is_optimal: bool


@dataclass(frozen=True, kw_only=True)
class RepairAnswer:
    """What is wrong with a plan on a cluster, and what mends it."""

    context: Context
    strategy: Strategy
    violations: tuple[Violation, ...]
    shortages: tuple[Shortage, ...]
    """Where the plan is legal but for ``num_micro_batches``, which follows."""
    before: Estimate | None
    """None where the plan is legal neither here nor on its own cluster."""
    before_cluster: str | None
    """What ``before`` is estimated on."""
    repaired: tuple[Repaired, ...]
    """The smallest edit, then others with as few changes; empty where there is none, or where
    nothing is wrong."""
    num_changes: int
    """Of each repair; without one, the most decisions that were changed in vain."""
    num_strategies: int
    num_solved: int
    seconds: float
    is_complete: bool = True
    """No time limit struck."""

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        return not self.violations and not self.shortages


def read_for_repair(
    path: Path, cluster: str | None, margin_fraction: float | None
) -> tuple[Context, Strategy, PlanFile]:
    """Read a plan for another cluster, and with another margin where one is given."""
    context, strategy, file = read_plan(path, cluster=cluster)
    if margin_fraction is None:
        return context, strategy, file
    traits = replace(context.traits, memory_uncertainty_fraction=margin_fraction)
    return replace(context, traits=traits, margin_fraction=margin_fraction), strategy, file


def repair(
    context: Context,
    strategy: Strategy,
    *,
    own: Context | None = None,
    top: int = 4,
    num_gpus: int | None = None,
    accepts: Accepts | None = None,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> RepairAnswer:
    """Find the edits with the fewest changed decisions, the fastest first.

    ``own`` is what the plan was made for, to tell what it took there. With ``num_gpus`` every edit
    uses just these, and dp follows. With ``accepts`` only edits count of which it is true, and they
    are looked for even where the plan is legal and fits.
    """
    started = time.perf_counter()
    wrong = diagnosis(context, strategy, own=own)
    if wrong.is_sound and accepts is None:
        return replace(wrong, seconds=time.perf_counter() - started)
    found = repairs(
        replace(context, module_sets=module_sets(context)),
        strategy,
        top=top,
        num_gpus=num_gpus,
        accepts=accepts or (lambda _edit: True),
        time_limit_s=time_limit_s,
        progress=progress,
    )
    return replace(
        wrong,
        is_complete=found.is_complete,
        repaired=tuple(_repaired(context, strategy, found.edits, dp_counts=num_gpus is None)),
        num_changes=found.num_changes,
        num_strategies=found.num_strategies,
        num_solved=found.num_solved,
        seconds=time.perf_counter() - started,
    )


def diagnosis(context: Context, strategy: Strategy, *, own: Context | None = None) -> RepairAnswer:
    """What is wrong with a strategy; nothing is searched."""
    broken = tuple(violations(context, strategy))
    filled_in = _filled_in(context, strategy)
    is_legal = not any(violations(context, filled_in))
    lacking = tuple(shortages(context, filled_in)) if is_legal else ()
    before, where = _before(context, filled_in, own, is_legal=is_legal)
    return RepairAnswer(
        context=context,
        strategy=strategy,
        violations=broken,
        shortages=lacking,
        before=before,
        before_cluster=where,
        repaired=(),
        num_changes=0,
        num_strategies=0,
        num_solved=0,
        seconds=0.0,
    )


def own_context(path: Path) -> Context | None:
    """What a plan was made for; None where that cannot be read any more."""
    try:
        return read_plan(path)[0]
    except InputError:
        return None


def _filled_in(context: Context, strategy: Strategy) -> Strategy:
    """The strategy with the micro-batches that follow from its other numbers, where whole."""
    number, rest = divmod(context.job.global_batch, strategy.dp * strategy.micro_batch)
    return strategy if rest else replace(strategy, num_micro_batches=number)


def _before(
    context: Context, strategy: Strategy, own: Context | None, *, is_legal: bool
) -> tuple[Estimate | None, str | None]:
    """The plan's estimate here, or else where it was made for."""
    if is_legal:
        return estimate(context, strategy), context.cluster.name
    if own is None or any(violations(own, strategy)):
        return None, None
    return estimate(own, strategy), own.cluster.name


def shortages(context: Context, strategy: Strategy) -> Iterator[Shortage]:
    """Yield the stages of a legal strategy that hold more than they may."""
    subject = subject_of(context, strategy)
    held = stage_peak_bytes(subject.model, *subject.split)[0].tolist()
    host = stage_host_bytes(subject.model, *subject.split)[0].tolist()
    host_limit = float(subject.model.host_limit_bytes[0])
    kinds = (("HBM", held, subject.model.usable_bytes), ("host memory", host, host_limit))
    for limit, needed, usable in kinds:
        for stage, num_bytes in enumerate(needed):
            if num_bytes > usable:
                yield Shortage(
                    stage=stage,
                    limit=limit,
                    needed_bytes=num_bytes,
                    usable_bytes=usable,
                    num_stages=strategy.pp,
                )


def _repaired(
    context: Context, strategy: Strategy, edits: tuple[Edit, ...], *, dp_counts: bool
) -> Iterator[Repaired]:
    made = [repaired_strategy(strategy, edit) for edit in edits]
    for edit, after, its_estimate in zip(edits, made, estimates(context, made), strict=True):
        yield Repaired(
            strategy=after,
            estimate=its_estimate,
            changes=tuple(_changes(context, strategy, after, edit, dp_counts=dp_counts)),
            is_optimal=edit.split.is_optimal,
        )


def repaired_strategy(strategy: Strategy, edit: Edit) -> Strategy:
    """The plan with an edit applied."""
    made = to_strategy(edit.columns, Ranked(row=0, split=edit.split))
    if edit.split.modules is not None:
        return made
    return replace(made, recompute_modules=strategy.recompute_modules)


def _policies(strategy: Strategy) -> dict[str, tuple[int, ...]]:
    return dict(zip(COUNTS, strategy.policy_counts, strict=True))


def _modules(context: Context, strategy: Strategy) -> tuple[str, ...]:
    return strategy.recompute_modules or context.traits.recompute.selected


def _follow(context: Context, *strategies: Strategy) -> bool:
    """Whether etp is what tp and ep bring with them in all of them."""
    usual = context.traits.support.usual_etp
    return all(each.etp == usual(each.tp, each.ep) for each in strategies)


def _changes(
    context: Context, before: Strategy, after: Strategy, edit: Edit, *, dp_counts: bool
) -> Iterator[Change]:
    """Decisions first, then what follows from them."""
    freedom = edit.freedom
    every: list[tuple[str, Value, Value, bool]] = [
        (name, getattr(before, name), getattr(after, name), name != "dp" or dp_counts)
        for name in DECIDED
        if name != "etp" or not _follow(context, before, after)
    ]
    every += [
        (LAYERS, before.layers_per_stage, after.layers_per_stage, freedom.layers),
        (RECOMPUTE, _policies(before), _policies(after), freedom.policies),
        (MODULES, _modules(context, before), _modules(context, after), freedom.modules),
    ]
    name = "num_micro_batches"
    every.append((name, before.num_micro_batches, after.num_micro_batches, False))
    changed = [
        Change(decision=name, before=old, after=new, counts=counts)
        for name, old, new, counts in every
        if old != new
    ]
    yield from sorted(changed, key=lambda change: not change.counts)


def repaired_plan(answer: RepairAnswer) -> Plan | None:
    """The plan to save: the repair, or the plan itself where nothing is wrong."""
    if answer.repaired:
        best = answer.repaired[0]
        return Plan(
            context=answer.context,
            strategy=best.strategy,
            estimate=best.estimate,
            is_optimal=best.is_optimal,
        )
    if not answer.is_sound or answer.before is None:
        return None
    return Plan(
        context=answer.context,
        strategy=answer.strategy,
        estimate=answer.before,
        is_optimal=False,
    )
