"""What would save how much: one change at a time, each estimated anew."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.answers.base import Plan
from planner.answers.layout import with_batch
from planner.answers.whatif import price
from planner.cost.context import Context
from planner.cost.estimate import Estimate, Verdict
from planner.search.space.interleaving import default_layers
from planner.spec.strategy import (
    MODEL_PARALLEL_DEGREES,
    OFFLOAD_CODES,
    OFFLOAD_POLICIES,
    POLICIES,
    RECOMPUTED,
    Strategy,
    policy_counts,
    split_values,
    with_policy_on_all_layers,
)

NOTHING = 1e-6  # relative changes below this are none


@dataclass(frozen=True, kw_only=True)
class Saving:
    """One change: its peak and time, or the rule that forbids it."""

    change: str
    peak_bytes: float | None = None
    saved_bytes: float | None = None
    """Of the peak; negative where the change needs more."""
    time_factor: float | None = None
    """Seconds per token over those of the configuration itself."""
    verdict: Verdict | None = None
    """Whether it then fits, in the device and in the host."""
    refused: str | None = None
    """The rule that forbids it."""
    why: str = ""


def _state_changes(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Sharding and offload of weights, gradients and optimizer states."""
    for stage in range(strategy.zero_stage + 1, 4):
        yield f"ZeRO stage {stage}", replace(strategy, zero_stage=stage)
    if strategy.dp_replicate > 1:
        yield "shard over all of dp", replace(strategy, dp_replicate=1)
    for code in OFFLOAD_CODES:
        if code not in (strategy.offload, "none"):
            yield f"offload {code}", replace(strategy, offload=code)


def _activation_changes(strategy: Strategy) -> Iterator[tuple[str, Strategy]]:
    """Recomputation, micro-batch, interleaving."""
    if not strategy.sequence_parallel and strategy.tp > 1:
        yield "sequence parallelism", replace(strategy, sequence_parallel=True)
    for policy in RECOMPUTED:
        changed = with_policy_on_all_layers(strategy, policy)
        if changed != strategy:
            yield f"recompute {policy} in all layers", changed
    for name, moved in OFFLOAD_POLICIES.items():
        if not strategy.layers_under[name]:
            yield moved.saving, with_policy_on_all_layers(strategy, name)
    if strategy.micro_batch > 1:
        half = strategy.micro_batch // 2
        number = strategy.num_micro_batches * strategy.micro_batch // half
        changed = replace(strategy, micro_batch=half, num_micro_batches=number)
        yield f"micro-batch {half}", changed
    if strategy.vpp > 1 and strategy.schedule == "1f1b":
        yield "no interleaving", replace(strategy, vpp=1)


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
            sequence_parallel=context.traits.support.sequence_parallel,
        )
        yield f"tp {2 * strategy.tp}", twice
        for name in MODEL_PARALLEL_DEGREES:
            if name not in ("tp", "pp"):
                degree = 2 * getattr(strategy, name)
                yield f"{name} {degree}", replace(half, **{name: degree})
        if 2 * strategy.pp <= context.model.num_blocks:
            yield f"pp {2 * strategy.pp}", _with_stages(context, half, 2 * strategy.pp)
    if context.model.moe:
        support, ep = context.traits.support, 2 * strategy.ep
        etp = strategy.etp
        if etp == support.usual_etp(strategy.tp, strategy.ep):
            etp = int(support.usual_etp(strategy.tp, ep))
        yield f"ep {ep}", replace(strategy, ep=ep, etp=etp)


def _with_stages(context: Context, strategy: Strategy, pp: int) -> Strategy:
    layers = default_layers(context.model.num_blocks, pp, strategy.vpp)

    by_policy = dict(zip(POLICIES, strategy.policy_counts, strict=True))
    under = {name: [min(max(by_policy[name]), number) for number in layers] for name in RECOMPUTED}
    return replace(strategy, pp=pp, **split_values(layers, policy_counts(layers, under)))


def _saving(change: str, context: Context, strategy: Strategy, before: Estimate) -> Saving:
    found = price(with_batch(context, strategy), strategy)
    if not isinstance(found, Plan):
        return Saving(change=change, refused=found[0].rule, why=found[0].text)
    after = found.estimate
    return Saving(
        change=change,
        peak_bytes=after.memory.peak_bytes,
        saved_bytes=before.memory.peak_bytes - after.memory.peak_bytes,
        time_factor=before.tokens_per_s_per_gpu / after.tokens_per_s_per_gpu,
        verdict=after.memory.verdict,
    )


def savings(context: Context, strategy: Strategy, before: Estimate) -> list[Saving]:
    """Every single change, legal ones first, those that save most at the top."""
    changes = (
        *_state_changes(strategy),
        *_activation_changes(strategy),
        *_degree_changes(context, strategy),
    )
    found = [_saving(words, context, changed, before) for words, changed in changes]
    if context.job.seq_len > 1:
        job = replace(context.job, seq_len=context.job.seq_len // 2)
        words = f"sequences of {job.seq_len}"
        found.append(_saving(words, replace(context, job=job), strategy, before))
    limit = NOTHING * before.memory.peak_bytes
    legal = [one for one in found if one.saved_bytes is not None and abs(one.saved_bytes) > limit]
    refused = [one for one in found if one.refused]
    return sorted(legal, key=lambda one: -(one.saved_bytes or 0.0)) + refused
