"""A run beside its price, for people and as data: the verdict, then the figures behind it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from planner.answers.layout import short_layout
from planner.compare.causes import APART
from planner.compare.compare import Comparison, Prediction
from planner.compare.log import Measured, Memory
from planner.report.document import serialise
from planner.report.table import Column, Table, rich_table
from planner.units import format_bytes

COLUMNS: list[Column[tuple[str, str]]] = [
    Column("", lambda row: f"  {row[0]}", right=False),
    Column("", itemgetter(1), right=False, wraps=True),
]
STRANGE = 2.0
"""Times by which hardly a published run is off its price."""


def verdict(one: Comparison) -> str:
    """Whether the run is as fast as its price, in a sentence."""
    if one.measured is None:
        return "Not compared: a rate is no time without --global-batch, --seq-len and --gpus."
    if one.predicted is None or one.time_error is None:
        return "Not priced: the layout is not known."
    slower = 1.0 / (1.0 + one.time_error) - 1.0
    if abs(one.time_error) <= APART:
        word = "As priced"
    else:
        word = "Slower than priced" if slower > 0 else "Faster than priced"
    usual = "usual among published runs" if one.is_usual else "unusual: outside eight of ten runs"
    return f"{word}: {100 * slower:+.1f} % against the prediction, {usual}."


def print_comparisons(found: Sequence[Comparison], console: Console) -> None:
    """Print every log under its name."""
    for number, one in enumerate(found):
        if number:
            console.print()
        style = "bold" if one.is_usual is None else "bold green" if one.is_usual else "bold red"
        console.print(Text(f"{one.log.path}: ", style="bold").append(verdict(one), style=style))
        console.print(rich_table(Table(list(_rows(one)), COLUMNS)))


def _rows(one: Comparison) -> Iterator[tuple[str, str]]:
    """What a word at the left says of a log, in lines."""
    if one.measured is None:
        yield "measured", f"{one.rate:,.4g} {one.log.unit}, the median of {len(one.log.steps)}"
    else:
        yield "measured", _measured(one.measured)
    if one.predicted is not None:
        yield from _predicted(one, one.predicted)
    yield from _memory(one)
    yield from (("perhaps", cause.message) for cause in one.causes)
    if one.time_error is not None and abs(one.time_error) > APART and not one.causes:
        yield "perhaps", f"none of what is looked for explains the difference{_doubt(one)}"
    yield from (("steps", cause.message) for cause in one.steps)
    yield from (("not priced", reason) for reason in one.unpriced)
    yield from (("note", note) for note in one.log.notes)
    if one.predicted is not None:
        yield from (("assumed", text) for text in one.predicted.assumed)
        yield from (("unusual", text) for text in one.predicted.unusual)


def _doubt(one: Comparison) -> str:
    """Where it is so large that the run may be another one."""
    assert one.time_error is not None
    factor = 1.0 + one.time_error
    return "" if 1.0 / STRANGE < factor < STRANGE else ": are cluster, model and batch the run's?"


def _seconds(seconds: float) -> str:
    """Four digits, in one unit, so that two times can be compared."""
    return f"{seconds:,.4g} s"


def _measured(found: Measured) -> str:
    count, left_out = len(found.steps_s), len(found.left_out_s)
    spread = f"eight of ten {_seconds(found.low_s)} to {_seconds(found.high_s)}"
    many = f"median of {count} steps printed, {spread}" if count > 1 else "one figure"
    first = f"; the first {left_out} left out" if left_out > 1 else "; the first left out"
    return f"{_seconds(found.median_s)} an iteration ({many}{first if left_out else ''})"


def _predicted(one: Comparison, price: Prediction) -> Iterator[tuple[str, str]]:
    made, context = price.estimate, price.layout.context
    ends = f"{_seconds(made.iter_time_s_lower)} to {_seconds(made.iter_time_s_upper)}"
    text = f"{_seconds(made.iter_time_s)} an iteration (80 % of runs: {ends}; {made.regime})"
    yield "predicted", text
    if one.measured is not None:
        factor = made.iter_time_s / one.measured.median_s
        tokens = f"{made.tokens_per_s * factor:,.0f} tokens/s"
        yield "MFU", f"{made.mfu * factor:.1%} measured, {made.mfu:.1%} predicted; {tokens}"
    if one.published is not None:
        share = f"{100 * one.published.nearer:.0f} % of {one.published.num_runs} runs"
        yield "published", f"the model was nearer on {share} of {one.published.kind} models"
    gpus = f"{price.layout.num_gpus:,} {context.cluster.accelerator.name}"
    yield "layout", f"{context.model.name}, {gpus}: {short_layout(price.layout.strategy)}"


def _memory(one: Comparison) -> Iterator[tuple[str, str]]:
    priced = one.predicted.memory if one.predicted else Memory()
    for kind in ("reserved", "allocated"):
        seen, said = getattr(one.log.memory, f"{kind}_bytes"), getattr(priced, f"{kind}_bytes")
        if seen is None:
            continue
        text = f"{format_bytes(seen)} on the fullest rank printed"
        if said is not None:
            text += f", predicted {format_bytes(said)} ({100 * (said / seen - 1):+.1f} %)"
        yield kind, text


def render_comparisons_json(found: Sequence[Comparison]) -> str:
    """The same as data, base units throughout."""
    return serialise("compare", {"logs": [_dict(one) for one in found]})


def _dict(one: Comparison) -> dict[str, Any]:
    return {
        "path": one.log.path,
        "framework": one.log.framework,
        "verdict": verdict(one),
        "unit": one.log.unit,
        "printed": one.rate,
        "time_error": one.time_error,
        "is_usual": one.is_usual,
        "measured": _measured_dict(one),
        "predicted": _predicted_dict(one.predicted),
        "published": asdict(one.published) if one.published else None,
        "causes": [asdict(cause) for cause in one.causes],
        "steps": [asdict(cause) for cause in one.steps],
        "unpriced": list(one.unpriced),
        "notes": list(one.log.notes),
    }


def _measured_dict(one: Comparison) -> dict[str, Any] | None:
    found = one.measured
    if found is None:
        return None
    return {
        "iter_time_s": found.median_s,
        "iter_time_s_low": found.low_s,
        "iter_time_s_high": found.high_s,
        "mean_s": found.mean_s,
        "num_steps": len(found.steps_s),
        "num_left_out": len(found.left_out_s),
        **asdict(one.log.memory),
    }


def _predicted_dict(price: Prediction | None) -> dict[str, Any] | None:
    if price is None:
        return None
    made, context = price.estimate, price.layout.context
    return {
        "model": context.model.name,
        "cluster": context.cluster.name,
        "framework": context.traits.name,
        "profile": context.traits.profile,
        "gpus": price.layout.num_gpus,
        "layout": short_layout(price.layout.strategy),
        "global_batch": context.job.global_batch,
        "seq_len": context.job.seq_len,
        "iter_time_s": made.iter_time_s,
        "iter_time_s_lower": made.iter_time_s_lower,
        "iter_time_s_upper": made.iter_time_s_upper,
        "regime": made.regime,
        "mfu": made.mfu,
        **asdict(price.memory),
        "assumed": list(price.assumed),
        "unusual": list(price.unusual),
    }
