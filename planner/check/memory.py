"""Memory of every stage: whether it fits, what it lacks, the smallest change that makes it fit."""

from collections.abc import Iterator
from dataclasses import replace

from planner.answers.base import Deadline
from planner.answers.layout import differences
from planner.answers.repair import memory_deficits, repair
from planner.cost.estimate import Estimate, estimate
from planner.formats.format import Finding
from planner.frameworks.settings import with_optimizer
from planner.query.layout import Layout
from planner.search.near import Accepts
from planner.spec.strategy import with_policy_on_all_layers
from planner.units import format_bytes, format_stage

# Where a deficit is shown: the first of them that the file states.
DECISIONS = ("micro_batch", "zero_stage", "tp", "pp", "recompute_layers_per_stage", "num_gpus")


def memory_findings(
    layout: Layout,
    made: Estimate,
    *,
    accepts: Accepts | None = None,
    time_limit_s: float | None = None,
) -> Iterator[Finding]:
    """An error per stage that does not fit, with one way out; a warning where it is tight.

    A note where it may fit, depending on what is assumed of the training script.

    With ``accepts`` the way out is one that it is true of, where there is one.
    """
    memory = made.memory
    if memory.verdict == "tight":
        gpus = format_stage(memory.stage, layout.strategy.pp)
        text = (
            f"{gpus} needs {format_bytes(memory.peak_bytes)} of "
            f"{format_bytes(memory.hbm_bytes)}; estimates of {layout.context.traits.name} were off "
            f"by {format_bytes(memory.uncertainty_bytes)} on published runs"
        )
        yield layout.places.finding("memory.tight", text, *DECISIONS)
    if memory.verdict != "does not fit":
        return
    said = [ASSUMED[name] for name in layout.assumes]
    assumed, at_least, asked = (" and ".join(each[i] for each in said) for i in range(3))
    least = _at_least(layout)
    found = list(memory_deficits(layout.context, layout.strategy))
    if layout.assumes and estimate(least.context, least.strategy).memory.fits:
        text = (
            f"{found[0].words}, where {assumed.format(layout.context.job.seq_len)}, which is "
            f"assumed: {asked} {'says' if len(said) == 1 else 'say'} what is so"
        )
        yield layout.places.finding("memory.fits", text, *DECISIONS, severity="note")
        return
    found = list(memory_deficits(least.context, least.strategy))
    of_what = " of HBM" * any(deficit.limit != "HBM" for deficit in found)
    fix = _fix(least, of_what, accepts=accepts, deadline=Deadline(time_limit_s))
    even = f" even where {at_least}" * bool(said)
    for number, deficit in enumerate(found):
        text = deficit.words + even
        yield layout.places.finding("memory.fits", text if number else f"{text}; {fix}", *DECISIONS)


LEAST_SEQ_LEN = 512  # nobody trains on less
# What is assumed where nobody says it, what takes least memory, and who can say what is so.
ASSUMED = {
    "zero_stage": (
        "no launcher shards the states",
        "the launcher shards all states",
        "the launcher's own configuration (--assume zero_stage=0 to 3)",
    ),
    "recompute": (
        "nothing is recomputed",
        "all layers are recomputed",
        "--assume recompute=full or none",
    ),
    "optimizer": ("the optimizer is adam", "the optimizer is sgd", "--assume optimizer=NAME"),
    "seq_len": ("sequences have {} tokens", f"sequences have {LEAST_SEQ_LEN} tokens", "--seq-len"),
}


def _at_least(layout: Layout) -> Layout:
    """The layout where what is assumed takes the least memory."""
    context, strategy = layout.context, layout.strategy
    if "zero_stage" in layout.assumes:
        strategy = replace(strategy, zero_stage=3)
    if "recompute" in layout.assumes:
        strategy = with_policy_on_all_layers(strategy, "full")
    if "optimizer" in layout.assumes:
        context = replace(context, traits=with_optimizer(context.traits, "sgd"))
    if "seq_len" in layout.assumes:
        length = min(LEAST_SEQ_LEN, context.job.seq_len)
        context = context.with_job(seq_len=length)
    return replace(layout, context=context, strategy=strategy)


def _fix(layout: Layout, of_what: str, *, accepts: Accepts | None, deadline: Deadline) -> str:
    """The smallest repair in words, one that leaves a margin before one that does not."""
    most, is_complete = 0, True
    deadline.num_left = 4 if accepts else 2
    for accepted in (accepts, None) if accepts else (None,):
        for context in (layout.cautious, layout.context):
            answer = repair(
                context,
                layout.strategy,
                top=1,
                num_gpus=layout.strategy.num_gpus,
                accepts=accepted,
                time_limit_s=deadline.share_s(),
            )
            is_complete &= answer.near.is_complete
            most = max(most, answer.near.num_changes)
            if answer.repaired:
                best = answer.repaired[0].plan
                made = in_words(differences(layout.strategy, best.strategy))
                size = format_bytes(best.estimate.memory.peak_bytes)
                limit = " (this file has no keys for it)" if accepts and not accepted else ""
                return f"nearest that fits, {size}{of_what}: {made}{limit}"
    if not is_complete:
        return "no change that makes it fit was found within the time limit"
    return f"no change of at most {most} fields makes it fit on these GPUs"


def in_words(changes: dict[str, tuple[str, str]]) -> str:
    """``tp 2 to 4, recompute none to full``."""
    return ", ".join(f"{name} {old} to {new}" for name, (old, new) in changes.items())
