"""A plan that breaks rules or does not fit on a cluster, and the nearest plans that fit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.answers.base import Plan, plans_of
from planner.answers.whatif import price_layout
from planner.cost.context import Context
from planner.cost.stage_model import price
from planner.search.near import SPLIT, Accepts, Near, Neighborhood, nearest
from planner.search.space.legality import LAYERS, Violation, violations
from planner.spec.strategy import POLICY_COUNT_FIELDS, SEARCHED_FIELDS, Strategy
from planner.units import format_bytes, format_stage

RECOMPUTE, MODULES, MICRO_BATCHES = "recompute", "recompute_modules", "num_micro_batches"
NOTHING_SEARCHED = Near(found=(), num_changes=0, num_configurations=0)
Value = int | str | bool | tuple[int, ...] | tuple[str, ...] | dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class MemoryDeficit:
    """A stage whose memory is not enough."""

    stage: int
    limit: str
    """``HBM`` or ``host memory``."""
    needed_bytes: float
    usable_bytes: float
    num_stages: int = 1

    @property
    def words(self) -> str:
        """Sentence on what does not fit, with numbers; stages are distinct from ZeRO's."""
        stage, missing = format_stage(self.stage, self.num_stages), self.missing_bytes
        needed, usable = format_bytes(self.needed_bytes), format_bytes(self.usable_bytes)
        held = f"needs {needed} of {self.limit}, may hold {usable}"
        return f"{stage} {held}: {format_bytes(missing)} missing"

    @property
    def missing_bytes(self) -> float:
        """Bytes by which it does not fit."""
        return self.needed_bytes - self.usable_bytes


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    """A field of the strategy that differs between the plan and its repair."""

    field: str
    before: Value
    after: Value
    counts: bool
    """False where it follows from other changes."""
    key: str = ""
    """Key that states it in a configuration file."""
    path: str = ""
    """File of the key where it is another one, which the checked file names."""
    line: int = 0
    """Line of the key; 0 if the file does not state it."""
    new_line: int = 0
    """Line of the key in the repaired file."""


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A plan that is legal and fits, and how it differs from the broken one."""

    plan: Plan
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, kw_only=True)
class RepairAnswer:
    """Problems of a plan on a cluster, and the plans nearest to it that fit."""

    context: Context
    strategy: Strategy
    violations: tuple[Violation, ...]
    deficits: tuple[MemoryDeficit, ...]  # where all but ``num_micro_batches`` is legal
    before: Plan | None  # priced here, or where it was made for; None: legal on neither
    repaired: tuple[Repaired, ...] = ()  # of those with the fewest changes, the fastest first
    near: Near = NOTHING_SEARCHED  # what was looked at for repairs, and how many changes each has
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        return not self.violations and not self.deficits

    @property
    def plan(self) -> Plan | None:
        """The plan to save: the repair, or the plan itself where nothing is wrong."""
        if self.repaired:
            return self.repaired[0].plan
        return self.before if self.is_sound else None


def repair(
    context: Context,
    strategy: Strategy,
    *,
    own: Context | None = None,
    top: int = 4,
    num_gpus: int | None = None,
    accepts: Accepts | None = None,
    **options: Any,  # noqa: ANN401 - as planner.search.near.nearest has them
) -> RepairAnswer:
    """Find the legal plans that fit with the fewest changed fields, the fastest first.

    ``own`` is what the plan was made for, to tell what it took there. With ``num_gpus`` every
    repair uses just these, and dp follows. With ``accepts`` only repairs count of which it is
    true, and they are looked for even where the plan is legal and fits.
    """
    started = time.perf_counter()
    wrong = diagnosis(context, strategy, own=own)
    if wrong.is_sound and accepts is None:
        return wrong
    is_taken = accepts or (lambda _strategy: True)
    near = nearest(context, strategy, accepts=is_taken, num_gpus=num_gpus, top=top, **options)
    space = Neighborhood(context=context, origin=strategy, num_gpus=num_gpus)
    repaired = tuple(
        Repaired(plan=plan, changes=tuple(_changes(space, plan.strategy)))
        for plan in plans_of(context, near.found)
    )
    return replace(wrong, repaired=repaired, near=near, seconds=time.perf_counter() - started)


def diagnosis(context: Context, strategy: Strategy, *, own: Context | None = None) -> RepairAnswer:
    """Return the problems of a strategy, without a search."""
    # Micro-batches follow from dp and their size, so a wrong number of them hides no deficit.
    number, rest = divmod(context.job.global_batch, strategy.dp * strategy.micro_batch)
    filled_in = strategy if rest else replace(strategy, num_micro_batches=number)
    before = price_layout(context, filled_in)
    is_legal = isinstance(before, Plan)
    if not is_legal and own is not None:
        before = price_layout(own, filled_in)
    return RepairAnswer(
        context=context,
        strategy=strategy,
        violations=tuple(violations(context, strategy)),
        deficits=tuple(memory_deficits(context, filled_in)) if is_legal else (),
        before=before if isinstance(before, Plan) else None,
    )


def memory_deficits(context: Context, strategy: Strategy) -> Iterator[MemoryDeficit]:
    """Yield the stages of a legal strategy that hold more than they may."""
    subject = price(context, strategy)
    held = subject.model.peak_bytes(*subject.split)[0].tolist()
    host = subject.model.host_bytes(*subject.split)[0].tolist()
    host_limit = float(subject.model.host_limit_bytes[0])
    kinds = (("HBM", held, subject.model.usable_bytes), ("host memory", host, host_limit))
    for limit, needed, usable in kinds:
        for stage, num_bytes in enumerate(needed):
            if num_bytes > usable:
                yield MemoryDeficit(
                    stage=stage,
                    limit=limit,
                    needed_bytes=num_bytes,
                    usable_bytes=usable,
                    num_stages=strategy.pp,
                )


def _changes(space: Neighborhood, after: Strategy) -> list[FieldChange]:
    """Fields that differ, those that count first; of the split, which is one change, one does."""
    counted = set(space.changed_fields(after))
    old, new = (_fields(strategy, space.context) for strategy in (space.origin, after))
    # Where etp is no decision of its own it follows tp.
    follows = {"etp"} - counted
    changed = [name for name in old if old[name] != new[name] and name not in follows]
    if SPLIT in counted:
        counted |= set([name for name in changed if name in (RECOMPUTE, MODULES, LAYERS)][:1])
    changes = [
        FieldChange(field=name, before=old[name], after=new[name], counts=name in counted)
        for name in changed
    ]
    return sorted(changes, key=lambda change: not change.counts)


def _fields(strategy: Strategy, context: Context) -> dict[str, Value]:
    return {
        **{name: getattr(strategy, name) for name in SEARCHED_FIELDS},
        RECOMPUTE: dict(zip(POLICY_COUNT_FIELDS, strategy.policy_counts, strict=True)),
        MODULES: strategy.recompute_modules or context.traits.recompute.selected,
        LAYERS: strategy.layers_per_stage,
        MICRO_BATCHES: strategy.num_micro_batches,
    }
