"""The forms of the largest micro-batch and the longest sequence: text, JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from planner.answers.conflict import HBM, HOST
from planner.answers.largest import BATCH, MICRO_BATCH, Largest, LargestAnswer
from planner.answers.rows import InputsRow, LargestDocument, LargestRow, PlanRow, ResidentRow
from planner.answers.software import assumptions_line
from planner.report.document import serialise
from planner.report.headline import host_line, layout_words, memory_line
from planner.report.text import print_notes
from planner.spec.strategy import gpus_of_replica
from planner.units import format_count

MEMORIES = {HBM: "device memory", HOST: "host memory"}


def inputs_line(answer: LargestAnswer) -> str:
    """What was asked, in one line."""
    context = answer.case.context
    frameworks = ", ".join(each.traits.name for each in answer.case.contexts)
    return (
        f"{context.model.name} on {context.cluster.name}, {context.job.precision}"
        f"{context.traits.training.suffix}, {frameworks}"
    )


def verdict_line(one: Largest) -> str:
    """The largest value, and what keeps it from being larger."""
    return f"{_title(one)}: {_extent(one)}"


def _title(one: Largest) -> str:
    if one.quantity == MICRO_BATCH:
        return f"Largest micro-batch at {one.fixed:,} tokens"
    return f"Longest sequence at micro-batch {one.fixed:,}"


def _extent(one: Largest) -> str:
    """The value, and the next one with what that would need."""
    if not one.value:
        return f"none fits, which needs more {_needed(one)}." if one.binds else "none fits."
    if BATCH in one.binds:
        return f"{one.value:,}; with another global batch {one.beyond:,}."
    if one.beyond is None:
        return f"at least {one.value:,}" + ("; the time was over." if one.is_cut else ".")
    if not one.binds:
        return f"{one.value:,}; no layout of {one.beyond:,} is legal."
    return f"{one.value:,}; {one.beyond:,} needs more {_needed(one)}."


def _needed(one: Largest) -> str:
    return " or ".join(MEMORIES[name] for name in one.binds)


def _plan_lines(one: Largest) -> Iterator[str]:
    """The fastest plan there: its layout, rate and memory."""
    plan = one.plan
    if plan is None:
        return
    gpus = gpus_of_replica(asdict(plan.strategy))
    yield f"With a replica on {gpus:,} GPU{'s' * (gpus > 1)}: {layout_words(plan)}."
    rate = format_count(round(plan.estimate.tokens_per_s))
    yield f"{rate} tokens/s, MFU {plan.estimate.mfu:.1%}; {memory_line(plan)}"
    if host := host_line(plan):
        yield host
    if one.resident:
        yield f"With nothing offloaded: {_extent(one.resident)}"


def _print_one(one: Largest, console: Console) -> None:
    console.print(verdict_line(one), style="bold green" if one.value else "bold", markup=False)
    for line in _plan_lines(one):
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def beyond_model_line(answer: LargestAnswer) -> str:
    """Whether a length is beyond what the model was made for; empty where not."""
    model = answer.case.context.model
    longest = max((one.value for one in answer.found if one.quantity != MICRO_BATCH), default=0)
    if longest <= model.max_seq_len:
        return ""
    return f"{model.name} was made for sequences of {model.max_seq_len:,} tokens."


def print_largest(
    answer: LargestAnswer, console: Console, *, verbose: bool = False, following: str = ""
) -> None:
    """Print each largest value with what binds it; ``verbose``: what was assumed."""
    console.print(inputs_line(answer), style="dim", markup=False)
    if answer.case.narrowing.texts:
        console.print(f"narrowed by {', '.join(answer.case.narrowing.texts)}", markup=False)
    print_notes([note for note in answer.notes if not note.is_assumed], console)
    for one in answer.found:
        _print_one(one, console)
    if answer.is_tight:
        line = "Tight: nothing leaves the margin free by which published peaks exceeded the model."
        console.print(line, style="yellow")
    if line := beyond_model_line(answer):
        console.print(line, markup=False)
    if verbose:
        print_notes([note for note in answer.notes if note.is_assumed], console)
        for context in answer.case.contexts:
            plans = [one.plan for one in answer.found if one.plan]
            used = [plan.strategy for plan in plans if plan.framework == context.traits.name]
            if used:
                console.print(assumptions_line(context, used), style="dim", markup=False)
    if following:
        console.print(f"Next: {following}", style="dim", markup=False, soft_wrap=True)
    if not verbose:
        text = "Larger is not always faster: `plan` ranks by time. -v adds what was assumed."
        console.print(text, style="dim")


def _largest(one: Largest) -> dict[str, Any]:
    return {
        "quantity": one.quantity,
        "value": one.value,
        "micro_batch": one.value if one.quantity == MICRO_BATCH else one.fixed,
        "seq_len": one.fixed if one.quantity == MICRO_BATCH else one.value,
        "beyond": one.beyond,
        "binds": [MEMORIES.get(name, name) for name in one.binds],
        "complete": not one.is_cut,
        "plan": PlanRow.of(one.plan) if one.plan else None,
    }


def _largest_row(one: Largest) -> LargestRow:
    resident = ResidentRow(**_largest(one.resident)) if one.resident else None
    return LargestRow(**_largest(one), resident=resident)


def render_largest_json(answer: LargestAnswer) -> str:
    """The answer as indented JSON."""
    case = answer.case
    body = LargestDocument(
        inputs=InputsRow.of(tuple(case.contexts), case.narrowing, answer.notes),
        tight=answer.is_tight,
        largest=[_largest_row(one) for one in answer.found],
    )
    return serialise("largest", body)
