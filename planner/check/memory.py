"""Whether every stage fits, by how much it does not, and the smallest change that makes it."""

from collections.abc import Iterator

from planner.check.holds import Ask, GaveUpError
from planner.check.layout import Layout
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.formats.finding import Finding
from planner.plans.differences import differences
from planner.plans.repair import RepairAnswer, Shortage, repair, shortages
from planner.spec.strategy import with_all_under
from planner.units import format_bytes

DECISIONS = ("micro_batch", "zero_stage", "tp", "pp", "recompute_layers_per_stage", "num_gpus")
"""Where a shortage is shown: the first of them that the file states."""


def memory_findings(layout: Layout, made: Estimate, *, ask: Ask | None = None) -> Iterator[Finding]:
    """An error per stage that does not fit, with one way out; a warning where it is tight.

    A note where that hangs on what is assumed of the training script.

    With ``ask`` the way out is one that the file can hold, where there is one.
    """
    memory = made.memory
    if memory.verdict == "tight":
        text = (
            f"stage {memory.peak_stage} needs {format_bytes(memory.peak_bytes)} of "
            f"{format_bytes(memory.hbm_bytes)}; estimates of {layout.context.traits.name} were off "
            f"by {format_bytes(memory.uncertainty_bytes)} on published runs"
        )
        yield layout.places.finding("memory.tight", text, *DECISIONS)
    if memory.verdict != "does not fit":
        return
    length = layout.context.job.seq_len
    assumed = f" with sequences of {length} tokens, which is assumed: --seq-len says how many"
    if layout.assumes_no_recompute and (all_bytes := _with_all_recomputed(layout)) is not None:
        text = (
            f"{_shortage(next(shortages(layout.context, layout.strategy)))}, where nothing is "
            f"recomputed, which is assumed; {format_bytes(all_bytes)} where all layers are: "
            "--assume recompute=full, or none, says what the training script does"
        )
        yield layout.places.finding("memory.fits", text, *DECISIONS, severity="note")
        return
    fix = _fix(layout, ask=ask)
    for number, shortage in enumerate(shortages(layout.context, layout.strategy)):
        text = _shortage(shortage) + (assumed if layout.assumes_seq_len else "")
        yield layout.places.finding("memory.fits", text if number else f"{text}; {fix}", *DECISIONS)


def _with_all_recomputed(layout: Layout) -> float | None:
    """The peak where every layer is recomputed; None where that does not fit either."""
    strategy = layout.strategy
    whole = with_all_under(strategy, "full")
    memory = estimate(layout.context, whole).memory
    return memory.peak_bytes if memory.fits else None


def _shortage(shortage: Shortage) -> str:
    return (
        f"stage {shortage.stage} needs {format_bytes(shortage.needed_bytes)} of {shortage.limit}, "
        f"may hold {format_bytes(shortage.usable_bytes)}: "
        f"{format_bytes(shortage.missing_bytes)} missing"
    )


def _fix(layout: Layout, *, ask: Ask | None) -> str:
    """The smallest edit in words, one that leaves a margin before one that does not."""
    most = 0
    for accepts in (ask, None) if ask else (None,):
        for context in (layout.cautious, layout.context):
            answer = _answer(context, layout, ask=accepts)
            most = max(most, answer.num_changes if answer else 0)
            if answer and answer.repaired:
                best = answer.repaired[0]
                made = in_words(differences(layout.strategy, best.strategy))
                size = format_bytes(best.estimate.memory.peak_bytes)
                limit = " (this file has no keys for it)" if ask and not accepts else ""
                return f"nearest that fits, {size}: {made}{limit}"
    return f"no change of at most {most} decisions makes it fit on these GPUs"


def _answer(context: Context, layout: Layout, *, ask: Ask | None) -> RepairAnswer | None:
    """The smallest edit; None where too many in a row were none that the file can hold."""
    try:
        return repair(
            context,
            layout.strategy,
            top=1,
            num_gpus=layout.num_gpus,
            accepts=ask() if ask else None,
        )
    except GaveUpError:
        return None


def in_words(changes: dict[str, tuple[str, str]]) -> str:
    """``tp 2 to 4, recompute none to full``."""
    return ", ".join(f"{name} {old} to {new}" for name, (old, new) in changes.items())
