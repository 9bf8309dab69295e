"""Why plans cannot be said, in words that several formats share."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.spec.strategy import FIELD_DEFAULTS, Strategy


def beyond(strategy: Strategy, can: Mapping[str, str]) -> Iterator[str]:
    """Say which fields differ from their neutral value; ``can`` holds reasons by field."""
    for name, reason in can.items():
        given = getattr(strategy, name)
        if given != FIELD_DEFAULTS[name]:
            yield f"{name} {given}: {reason}"


def unlike_layers(strategy: Strategy) -> Iterator[str]:
    """Say what cannot hold where every layer is treated alike."""
    selective, full, offloaded = strategy.policy_counts
    if any(selective):
        yield f"selective_layers_per_stage {words(selective)}: whole blocks are recomputed or none"
    if 0 < sum(full) < sum(strategy.layers_per_stage):
        yield f"recompute_layers_per_stage {words(full)}: all layers are recomputed or none"
    if any(offloaded):
        yield f"offloaded_layers_per_stage {words(offloaded)}: activations stay on the accelerator"


def wrong_precision(context: Context, allowed: tuple[str, ...]) -> Iterator[str]:
    """Say where the precision of a job is none of those allowed."""
    if context.job.precision not in allowed:
        yield f"precision {context.job.precision}: allowed are {', '.join(allowed)}"


def wrong_profile(context: Context, others: tuple[str, ...], program: str) -> Iterator[str]:
    """Say where a plan is priced as another program runs it, whose files these are not."""
    traits = context.traits
    if traits.name == "megatron" and traits.profile in others:
        yield f"profile {traits.profile}: another program than {program}, which runs no such plan"


def words(counts: tuple[int, ...]) -> str:
    """Counts per stage, for a message."""
    return ", ".join(map(str, counts))
