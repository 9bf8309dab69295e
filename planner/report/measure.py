"""Screens and documents of `planner compare` and `planner calibrate`: what machines measured."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, make_dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from planner.answers.row import Row, row_from, row_of
from planner.calibrate.fit import Calibration, Figure, OwnErrors
from planner.compare.causes import APART
from planner.compare.compare import Comparison, Prediction
from planner.compare.log import Measured
from planner.report.table import Column, Table, pairs, show
from planner.units import format_bytes, plural


@row_of(
    dict.fromkeys(("allocated_bytes", "reserved_bytes"), float | None),
    derived=("num_steps", "num_left_out"),
    leave_out=("steps_s", "left_out_s"),
    about={
        "iter_time_s": "Median.",
        "iter_time_s_low": "A tenth of the steps are faster.",
        "iter_time_s_high": "A tenth are slower.",
    },
)
class MeasuredRow(Measured):
    """What a log measured."""


@row_of(
    {
        **dict.fromkeys(("path", "framework", "verdict", "unit"), str),
        "printed": float,  # the median of the steps in the log's unit
        "time_error": float | None,  # predicted over measured, minus one
        "is_usual": bool | None,  # measured inside the predicted interval
        "measured": MeasuredRow | None,
        "notes": tuple[str, ...],
    },
    leave_out=("log", "layout", "measured"),
)
class ComparedRow(Comparison):
    """What one log shows."""


CompareDocument: Any = make_dataclass("CompareDocument", [("logs", list[ComparedRow])])


@row_of(
    about={
        "key": "Key of overrides in a cluster file.",
        "catalog": "Value before, in the unit of the key.",
        "basis": "Basis of that value.",
        "deviation": "Standard deviation of value.",
        "num_points": "Number of points that depend on it.",
    },
)
class FigureRow(Figure):
    """A fitted figure: its value before (the catalog's, or a stated machine's own), and now."""


class CalibrateDocument(Row):
    """A machine's own figures, fitted to measurements and held to the catalog's."""

    cluster: str
    accelerator: str
    figures: list[FigureRow]
    own: tuple[OwnErrors, ...]
    cluster_file: str
    """Text of the cluster file, as --out writes it."""


def _verdict(one: Comparison) -> str:
    if one.measured is None:
        return "Not compared: a rate is no time without --global-batch, --seq-len and --gpus."
    if one.predicted is None or one.time_error is None:
        return "Not priced: the layout is not known."
    slower = 1.0 / (1.0 + one.time_error) - 1.0
    apart = "Slower than priced" if slower > 0 else "Faster than priced"
    word = "As priced" if abs(one.time_error) <= APART else apart
    usual = "usual among published runs" if one.is_usual else "unusual: outside eight of ten runs"
    return f"{word}: {100 * slower:+.1f} % against the prediction, {usual}."


def print_comparisons(found: Sequence[Comparison], console: Console) -> None:
    """Print every log under its name."""
    for number, one in enumerate(found):
        style = "bold" if one.is_usual is None else "bold green" if one.is_usual else "bold red"
        title = Text(f"{one.log.path}: ", style="bold").append(_verdict(one), style=style)
        rows = pairs((f"  {word}", line) for word, line in _compared(one))
        show(console, Text() if number else "", title, rows)


def _compared(one: Comparison) -> Iterator[tuple[str, str]]:
    if one.measured is None:
        yield "measured", f"{one.rate:,.4g} {one.log.unit}, the median of {len(one.log.steps)}"
    else:
        found = one.measured
        count, left_out = found.num_steps, found.num_left_out
        spread = (
            f"eight of ten {_seconds(found.iter_time_s_low)} to {_seconds(found.iter_time_s_high)}"
        )
        many = f"median of {count} steps printed, {spread}" if count > 1 else "one figure"
        first = f"; the first {left_out} left out" if left_out > 1 else "; the first left out"
        median = f"{_seconds(found.iter_time_s)} an iteration"
        yield "measured", f"{median} ({many}{first if left_out else ''})"
    if one.predicted is not None:
        yield from _predicted(one, one.predicted)
    for kind in ("reserved", "allocated"):
        seen = getattr(one.log.memory, f"{kind}_bytes")
        said = getattr(one.predicted, f"{kind}_bytes", None)
        if seen is not None:
            text = f"{format_bytes(seen)} on the fullest rank printed"
            if said is not None:
                text += f", predicted {format_bytes(said)} ({100 * (said / seen - 1):+.1f} %)"
            yield kind, text
    yield from (("perhaps", cause.message) for cause in one.causes)
    if one.time_error is not None and abs(one.time_error) > APART and not one.causes:
        # Hardly a published run is off its price by a factor of two.
        is_strange = not 0.5 < 1.0 + one.time_error < 2.0
        doubt = ": are cluster, model and batch the run's?" if is_strange else ""
        yield "perhaps", f"none of what is looked for explains the difference{doubt}"
    yield from (("steps", cause.message) for cause in one.steps)
    said = {"not priced": one.unpriced, "note": one.log.notes}
    if one.predicted is not None:
        said |= {"assumed": one.predicted.assumed, "unusual": one.predicted.unusual}
    yield from ((word, text) for word, texts in said.items() for text in texts)


def _seconds(seconds: float) -> str:
    """Four digits, in one unit, so that two times can be compared."""
    return f"{seconds:,.4g} s"


def _predicted(one: Comparison, price: Prediction) -> Iterator[tuple[str, str]]:
    ends = f"{_seconds(price.iter_time_s_lower)} to {_seconds(price.iter_time_s_upper)}"
    text = f"{_seconds(price.iter_time_s)} an iteration (80 % of runs: {ends}; {price.regime})"
    yield "predicted", text
    if one.measured is not None:
        factor = price.iter_time_s / one.measured.iter_time_s
        tokens = f"{price.tokens_per_s * factor:,.0f} tokens/s"
        yield "MFU", f"{price.mfu * factor:.1%} measured, {price.mfu:.1%} predicted; {tokens}"
    if one.layout is not None:
        gpus = f"{price.gpus:,} {one.layout.context.cluster.accelerator.name}"
        yield "layout", f"{price.model}, {gpus}: {price.layout}"


def compare_document(found: Sequence[Comparison]) -> CompareDocument:
    """The same as data, base units throughout."""
    return CompareDocument(
        logs=[
            row_from(
                ComparedRow,
                one,
                path=one.log.path,
                framework=one.log.framework,
                verdict=_verdict(one),
                unit=one.log.unit,
                printed=one.rate,
                measured=one.measured
                and row_from(MeasuredRow, one.measured, **asdict(one.log.memory)),
                notes=one.log.notes,
            )
            for one in found
        ]
    )


FIGURES: list[Column[Figure]] = [
    Column("figure", "key", right=False, wraps=True),
    Column("catalog", lambda each: f"{each.catalog:g}"),
    Column("basis", "basis", right=False),
    Column("yours", lambda each: f"{each.value:.4g}"),
    Column("+-", lambda each: f"{each.value * each.deviation:.2g}"),
    Column("change", lambda each: f"{each.factor - 1.0:+.1%}"),
    Column("points", "num_points"),
]


def print_calibration(made: Calibration, console: Console) -> None:
    """Print the figures, then the errors, and which file may be of another machine."""
    name = made.base.cluster.name
    points = plural(sum(own.num_points for own in made.own), "point")
    headline = f"{name}: {points}, which no figure that can be fitted follows."
    if made.figures:
        most = max(made.figures, key=lambda each: abs(each.factor - 1.0))
        number, change = plural(len(made.figures), "figure"), f"{most.factor - 1.0:+.1%}"
        headline = f"{name}: {number} from {points}; most changes {most.key}, {change}."
    errors: list[Column[OwnErrors]] = [
        Column("mean error of", lambda own: f"{own.path} ({own.kind})", right=False, wraps=True),
        Column("points", "num_points"),
        Column("before", lambda own: f"{own.before:.1%}"),
        Column("after", lambda own: f"{own.after:.1%}"),
    ]
    show(
        console,
        Text(headline, style="bold"),
        Table(made.figures, FIGURES) if made.figures else "",
        Table(made.own, errors),
    )


def calibrate_document(made: Calibration, text: str) -> CalibrateDocument:
    """The same as data, with the cluster file."""
    cluster = made.base.cluster
    return CalibrateDocument(
        cluster=cluster.name,
        accelerator=cluster.accelerator.name,
        figures=[
            row_from(FigureRow, each, deviation=each.value * each.deviation)
            for each in made.figures
        ],
        own=made.own,
        cluster_file=text,
    )
