"""Knobs of one layout: plans with its degrees and ZeRO stage, and what each gains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.cost.context import Context, with_modules
from planner.cost.estimate import estimates
from planner.plans.plan import Plan
from planner.search.ranking.candidates import LAYOUT
from planner.search.search import search
from planner.search.space.narrow import Narrowing
from planner.search.space.vocabulary import DIMENSIONS, MIXED_LAYERS
from planner.spec.strategy import MOVED, Strategy

SEARCHED = 12
"""Variants that are looked at."""
MOST_MIXED = 256
"""Layers of a model of which mixed policies are looked at: the choices grow with the cube."""
KNOBS = (
    ("micro_batch", "micro-batch {}"),
    ("vpp", "vpp {}"),
    ("schedule", "{}"),
    ("dp_replicate", "{} replicas of shards"),
    ("placement", "placed {}"),
)
"""Decisions that the degrees leave open, in words."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A variant of a plan: what is turned, and what that gains under the model."""

    plan: Plan
    words: str
    num_turned: int
    """Decisions that differ."""
    time_change: float
    """Its time over that of the plan, minus one."""


def _within(narrowing: Narrowing, plan: Plan) -> Narrowing:
    """The part of a space that holds the plan's layout."""
    fixed = {name: (int(getattr(plan.strategy, name)),) for name in LAYOUT}
    return replace(narrowing, values={**narrowing.values, **fixed})


def _searched(plan: Plan, narrowing: Narrowing, top: int, limit_s: float | None) -> list[Plan]:
    """The fastest plans of a part of the space under the model, no mechanism weighed."""
    context = replace(plan.context, weighs_evidence=False)
    found = search(
        context, top=top, narrowing=narrowing, with_frontier=False, time_limit_s=limit_s
    ).plans
    made = estimates(context, [one.strategy for one in found]) if found else []
    return [
        Plan(context=plan.context, strategy=one.strategy, estimate=each, is_optimal=one.is_optimal)
        for one, each in zip(found, made, strict=True)
    ]


def variants(
    plan: Plan, narrowing: Narrowing, top: int = SEARCHED, *, limit_s: float | None = None
) -> tuple[Knob, ...]:
    """The fastest variants of a plan's layout under the model, the plan itself left out."""
    found = _searched(plan, _within(narrowing, plan), top, limit_s)
    return tuple(_knob(plan, other) for other in found if other.strategy != plan.strategy)


def mixed_gain(plan: Plan, narrowing: Narrowing, *, limit_s: float | None = None) -> Knob | None:
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
    asked = replace(plan, context=replace(context, module_sets=()))
    mixed = _searched(asked, replace(within, allowed=frozenset({MIXED_LAYERS})), 1, limit_s)
    if not mixed or not mixed[0].strategy.mixes_policies:
        return None
    said = _searched(asked, within, 1, limit_s)
    fastest = min((plan, *said), key=lambda one: one.estimate.iter_time_s)
    gain = _knob(fastest, mixed[0])
    return gain if gain.time_change < 0.0 else None


def _knob(plan: Plan, other: Plan) -> Knob:
    change = other.estimate.iter_time_s / plan.estimate.iter_time_s - 1.0
    turned = _differences(plan.context, plan.strategy, other.strategy) or ["other stages"]
    return Knob(plan=other, words=", ".join(turned), num_turned=len(turned), time_change=change)


def _differences(context: Context, own: Strategy, other: Strategy) -> Sequence[str]:
    """What is turned, in words; stages that only follow are not named."""
    words = [
        text.format(getattr(other, name))
        for name, text in KNOBS
        if getattr(other, name) != getattr(own, name)
    ]
    if other.sequence_parallel != own.sequence_parallel:
        words.append(f"sequence parallelism {'on' if other.sequence_parallel else 'off'}")
    if (other.offload, other.offload_percent) != (own.offload, own.offload_percent):
        words.append(offload_words(other))
    if other.recompute != own.recompute or _modules(context, other) != _modules(context, own):
        words.append(recompute_words(context, other))
    was, under = own.layers_under, other.layers_under
    return words + [
        policy.words.format(under[name])
        for name, policy in MOVED.items()
        if under[name] != was[name]
    ]


def _modules(context: Context, strategy: Strategy) -> tuple[str, ...]:
    if not any(strategy.selective_layers_per_stage):
        return ()
    return strategy.recompute_modules or context.traits.recompute.selected


def offload_words(strategy: Strategy) -> str:
    """What states are offloaded, and where to."""
    if strategy.offload == "none":
        return "nothing offloaded"
    what, _, where = strategy.offload.partition(":")
    share = f"{strategy.offload_percent}% of the " if strategy.offload_percent < 100 else ""
    return f"{share}{what.replace('+', ' and ')} on the {where}"


def recompute_words(context: Context, strategy: Strategy) -> str:
    """What is recomputed of which layers."""
    if strategy.recompute == "none":
        return "nothing recomputed"
    if strategy.recompute == "full":
        return "all layers recomputed"
    modules = _modules(context, strategy)
    named = f" ({', '.join(modules)})" if modules else ""
    if strategy.recompute == "selective":
        return f"selective recomputation{named}"
    return f"recomputed {strategy.recompute}{named}"
