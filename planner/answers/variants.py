"""Variants of a plan: of its layout, with layers under different policies, without offload."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.changes import (
    NOTHING_OFFLOADED,
    changed,
    narrowed,
    smaller_optimizers,
    switches,
)
from planner.answers.layout import differences
from planner.answers.whatif import Case, Change, best
from planner.cost.context import with_modules
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.narrow import Narrowing
from planner.search.space.vocabulary import DIMENSIONS, MIXED_LAYERS

SEARCHED = 12  # variants of a layout that are looked at
MOST_MIXED = 256
"""Layers of a model of which mixed policies are looked at: the choices grow with the cube."""
FOLLOWING = ("layers per stage",)
"""What differs as a consequence, and is no decision of its own."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of a plan: what is changed, and what that gains under the model."""

    plan: Plan
    words: str
    num_changed: int
    """Decisions that differ."""
    time_change: float
    """Its time over that of the plan, minus one."""


def variants(
    plan: Plan, narrowing: Narrowing, *, limit_s: float | None = None
) -> tuple[Variant, ...]:
    """The fastest variants of a plan's layout under the model, the plan itself left out."""
    fixed = {name: (int(getattr(plan.strategy, name)),) for name in LAYOUT}
    within = replace(narrowing, values={**narrowing.values, **fixed})
    case = Case(contexts=(plan.context,), narrowing=within)
    found = best(case, Deadline(limit_s), top=SEARCHED, penalised=False).plans
    return tuple(_variant(plan, other) for other in found if other.strategy != plan.strategy)


def mixed_policy_gain(
    plan: Plan, narrowing: Narrowing, *, limit_s: float | None = None
) -> Variant | None:
    """What layers under different policies would gain; None where nothing, or where they may be.

    All else stays as the plan has it, what selective layers repeat too. The gain is that over the
    fastest policy that can be said, be it the plan's or not.
    """
    is_said = plan.context.traits.support.policy_scope == "layers"
    is_deep = plan.context.model.num_blocks > MOST_MIXED
    if MIXED_LAYERS in narrowing.allowed or is_said or is_deep:
        return None
    columns = plan.strategy.columns()
    own = {name: (int(getattr(columns, name)[0]),) for name in DIMENSIONS}
    within = replace(narrowing, values={**narrowing.values, **own})
    context = with_modules(plan.context, plan.strategy.recompute_modules)
    case = Case(contexts=(replace(context, module_sets=()),), narrowing=within)
    allowing = replace(within, allowed=frozenset({MIXED_LAYERS}))
    mixed = best(replace(case, narrowing=allowing), Deadline(limit_s), penalised=False).plan
    if mixed is None or not mixed.strategy.mixes_policies:
        return None
    said = best(case, Deadline(limit_s), penalised=False).plans
    gain = _variant(min((plan, *said), key=lambda one: one.estimate.iter_time_s), mixed)
    return gain if gain.time_change < 0.0 else None


def _variant(plan: Plan, other: Plan) -> Variant:
    differing = differences(plan.strategy, other.strategy)
    decided = {name: now for name, (_, now) in differing.items() if name not in FOLLOWING}
    words = [f"{name} {now.replace(', ', '+')}" for name, now in decided.items()]
    return _variant_of(plan, other, words or ["other stages"])


def _variant_of(plan: Plan, other: Plan, words: Sequence[str]) -> Variant:
    change = other.estimate.iter_time_s / plan.estimate.iter_time_s - 1.0
    return Variant(plan=other, words=", ".join(words), num_changed=len(words), time_change=change)


def _on_device(case: Case) -> Iterator[Change]:
    """Switches, then optimizers, then both together."""
    yield from switches(case)
    yield from smaller_optimizers(case)
    for switch in switches(case):
        for smaller in smaller_optimizers(switch.case):
            options = (*switch.options, *smaller.options)
            yield changed(smaller.case, smaller.case.context, *options)


def resident_variant(answer: Answer) -> Variant | None:
    """The first switch or optimizer under which a plan without offload is no slower.

    None where the first plan offloads nothing, offload was asked for, or no change helps.
    """
    first = answer.plans[0]
    if first.strategy.offload == "none" or answer.aim.objective != "iteration_s":
        return None
    case = narrowed(Case(contexts=(first.context,), narrowing=answer.narrowing), NOTHING_OFFLOADED)
    for change in _on_device(case) if case else ():
        plan = best(change.case, Deadline(answer.beside_s or Deadline.PLAN_S)).plan
        if plan is not None and plan.ranked_s <= first.ranked_s:
            return _variant_of(first, plan, [change.words])
    return None
