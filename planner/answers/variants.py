"""Other layouts beside a plan: variants, without offload, and what single changes would save."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.changes import (
    NOTHING_OFFLOADED,
    changed,
    narrowed,
    smaller_optimizers,
    switches,
)
from planner.answers.layout import differences, with_batch
from planner.answers.whatif import Change, best, price_layout
from planner.cost.context import Context
from planner.cost.estimate import Estimate, Verdict
from planner.query.resolve import Case
from planner.search.ranking.candidates import LAYOUT
from planner.search.ranking.penalties import UNPUBLISHED
from planner.search.space.interleaving import default_layers
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import (
    MODEL_PARALLEL_DEGREES,
    OFFLOAD_CODES,
    OFFLOAD_POLICIES,
    POLICIES,
    RECOMPUTED,
    Strategy,
    split_values,
    with_policy_on_all_layers,
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of a plan: what is changed, and what that gains under the model."""

    plan: Plan
    words: str
    num_changed: int
    time_change: float  # its time over that of the plan, minus one

    @classmethod
    def of(cls, plan: Plan, other: Plan, words: Sequence[str]) -> "Variant":
        """Another plan, and what is changed in words."""
        ratio = other.estimate.iter_time_s / plan.estimate.iter_time_s
        return cls(
            plan=other,
            words=", ".join(words),
            num_changed=len(words),
            time_change=ratio - 1.0,
        )


def variants(
    plan: Plan, narrowing: Narrowing, *, limit_s: float | None = None
) -> tuple[Variant, ...]:
    """The fastest variants of a plan's layout under the model, the plan itself left out."""
    fixed = {name: (int(getattr(plan.strategy, name)),) for name in LAYOUT}
    within = replace(narrowing, values={**narrowing.values, **fixed})
    case = Case(contexts=(plan.context,), narrowing=within)
    found = best(case, Deadline(limit_s), top=12, within=partial(replace, ranking="time")).plans
    made = list[Variant]()
    for other in found:
        changed_to = differences(plan.strategy, other.strategy)
        changed_to.pop("layers per stage", None)  # a consequence, and no decision of its own
        words = [f"{name} {now.replace(', ', '+')}" for name, (_, now) in changed_to.items()]
        if other.strategy != plan.strategy:
            made.append(Variant.of(plan, other, words or ["other stages"]))
    return tuple(made)


def useful_switches(plan: Plan, case: Case) -> Iterator[Change]:
    """Switches that take less memory, where a plan has sacrifices; none takes back what was set."""
    stated = set(plan.context.traits.settings)
    for change in switches(case) if plan.sacrifices > (False, 1, False) else ():
        if stated <= set(change.case.context.traits.settings):
            yield change


def is_spared(switched: Plan, plan: Plan) -> bool:
    """A switched plan sacrifices less, ranks no lower, takes at most UNPUBLISHED times as long."""
    is_near = switched.estimate.iter_time_s <= UNPUBLISHED * plan.estimate.iter_time_s
    is_better = is_near and switched.ranked_s <= plan.ranked_s
    return is_better and switched.sacrifices < plan.sacrifices


def _on_device(case: Case) -> Iterator[Change]:
    """Smaller optimizers, then beside switches; a plan has tried switches alone."""
    yield from smaller_optimizers(case)
    for switch in switches(case):
        for smaller in smaller_optimizers(switch.case):
            yield changed(smaller.case, smaller.case.context, *switch.options, *smaller.options)


def resident_variant(answer: Answer) -> Variant | None:
    """The first smaller optimizer, on fewer GPUs switch, that spares offload and is no slower."""
    rows = (answer.plans[0], *answer.ladder)
    row = next((row for row in rows if row.strategy.offload != "none"), None)
    if row is None or answer.aim.objective != "iteration_s":
        return None
    asked = Case(contexts=(row.context,), narrowing=answer.narrowing)
    sized = narrowed(asked, f"--where gpus=={row.num_gpus}")
    inside = sized and narrowed(sized, NOTHING_OFFLOADED)
    changes = _on_device if row is rows[0] else switches
    for change in changes(inside) if inside else ():
        plan = best(change.case, Deadline(answer.beside_s or Deadline.PLAN_S)).plan
        if plan is not None and plan.ranked_s <= row.ranked_s:
            return Variant.of(row, plan, [change.words])
    return None


@dataclass(frozen=True, kw_only=True)
class PricedChange:
    """One change: its peak and time, or the rule that forbids it."""

    change: str
    peak_bytes: float | None = None
    saved_bytes: float | None = None
    """Bytes of the peak that are saved; negative if the change needs more."""
    time_factor: float | None = None
    """Seconds per token over those of the configuration itself."""
    verdict: Verdict | None = None
    """Verdict on whether it then fits, in the device and in the host."""
    refused: str | None = None
    why: str = ""

    @classmethod
    def of(
        cls, change: str, context: Context, strategy: Strategy, before: Estimate
    ) -> "PricedChange":
        """The changed layout beside the estimate of the configuration itself."""
        found = price_layout(with_batch(context, strategy), strategy)
        if not isinstance(found, Plan):
            broken = found[0]
            return cls(change=change, refused=broken.rule, why=broken.text)
        after = found.estimate
        return cls(
            change=change,
            peak_bytes=after.memory.peak_bytes,
            saved_bytes=before.memory.peak_bytes - after.memory.peak_bytes,
            time_factor=before.tokens_per_s_per_gpu / after.tokens_per_s_per_gpu,
            verdict=after.memory.verdict,
        )


def _changes(strategy: Strategy) -> dict[str, Strategy]:
    """Single changes that keep the degrees, in words; what they leave as it is among them."""
    half = max(strategy.micro_batch // 2, 1)
    # As many sequences in smaller micro-batches.
    number = strategy.num_micro_batches * strategy.micro_batch // half
    vpp = 1 if strategy.schedule == "1f1b" else strategy.vpp
    return {
        **{
            f"ZeRO stage {stage}": replace(strategy, zero_stage=stage)
            for stage in range(strategy.zero_stage + 1, 4)
        },
        "shard over all of dp": replace(strategy, dp_replicate=1),
        **{
            f"offload {code}": replace(strategy, offload=code)
            for code in OFFLOAD_CODES
            if code != "none"
        },
        "sequence parallelism": replace(
            strategy, sequence_parallel=strategy.sequence_parallel or strategy.tp > 1
        ),
        **{
            f"recompute {policy} in all layers": with_policy_on_all_layers(strategy, policy)
            for policy in RECOMPUTED
        },
        **{
            moved.saving: with_policy_on_all_layers(strategy, name)
            for name, moved in OFFLOAD_POLICIES.items()
            if not strategy.layers_under[name]
        },
        f"micro-batch {half}": replace(strategy, micro_batch=half, num_micro_batches=number),
        "no interleaving": replace(strategy, vpp=vpp),
    }


def _degree_changes(context: Context, strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Twice the degree of an axis, at half the data parallelism."""
    is_usual = strategy.etp == strategy.tp
    if strategy.dp % 2 == 0:
        half = replace(
            strategy, dp=strategy.dp // 2, num_micro_batches=2 * strategy.num_micro_batches
        )
        twice = replace(
            half,
            tp=2 * strategy.tp,
            etp=2 * strategy.tp if is_usual else strategy.etp,
            sequence_parallel="sequence_parallel" in context.traits.support.features,
        )
        yield f"tp {2 * strategy.tp}", twice
        for name in MODEL_PARALLEL_DEGREES:
            if name not in ("tp", "pp"):
                degree = 2 * getattr(strategy, name)
                yield f"{name} {degree}", replace(half, **{name: degree})
        if 2 * strategy.pp <= context.model.num_blocks:
            pp = 2 * strategy.pp
            layers = default_layers(context.model.num_blocks, pp, strategy.vpp)
            most = {
                name: max(counts)
                for name, counts in zip(POLICIES, half.policy_counts, strict=True)
                if name in RECOMPUTED
            }
            under = {name: [min(most[name], number) for number in layers] for name in most}
            yield f"pp {pp}", replace(half, pp=pp, **split_values(layers, under))
    if context.model.moe:
        support, ep = context.traits.support, 2 * strategy.ep
        is_usual = strategy.etp == support.usual_etp(strategy.tp, strategy.ep)
        etp = int(support.usual_etp(strategy.tp, ep)) if is_usual else strategy.etp
        yield f"ep {ep}", replace(strategy, ep=ep, etp=etp)


def savings(context: Context, strategy: Strategy, before: Estimate) -> list[PricedChange]:
    """Every single change, legal ones first, those that save most at the top."""
    changes = (*_changes(strategy).items(), *_degree_changes(context, strategy))
    found = [
        PricedChange.of(words, context, changed, before)
        for words, changed in changes
        if changed != strategy
    ]
    if context.job.seq_len > 1:
        shorter = context.with_job(seq_len=context.job.seq_len // 2)
        found.append(
            PricedChange.of(f"sequences of {shorter.job.seq_len}", shorter, strategy, before)
        )
    least = 1e-6 * before.memory.peak_bytes  # less is no change
    legal = [one for one in found if not one.refused and abs(one.saved_bytes or 0.0) > least]
    legal.sort(key=lambda one: -(one.saved_bytes or 0.0))
    return [*legal, *(one for one in found if one.refused)]
