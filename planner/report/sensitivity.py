"""What figures do to time and to the winner, in words and as JSON."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from planner.answers.layout import short_layout
from planner.answers.parameters import Parameter
from planner.answers.sensitivity import (
    FACTORS,
    Crossover,
    ParameterSweep,
    Point,
    Sensitivity,
    SensitivityDocument,
    layout_of,
)
from planner.notes import Note
from planner.report.document import serialise
from planner.report.table import Column, Table, show, whole
from planner.report.words import inputs_line, layout_words, note_lines
from planner.units import format_seconds

MOST_SHOWN = 6  # crossings; JSON has all
NEAR = 1.1  # a factor of figures; who wins within it is the verdict
TITLES = ("/ 2", "- 10%", "+ 10%", "x 2")


def value_text(figure: Parameter, factor: float = 1.0) -> str:
    """A figure's value with its unit."""
    value = figure.value * factor
    if not figure.unit:
        return f"{value:.0%}" if figure.most == 1.0 else f"{value:,.0f}"
    return f"{value:,.0f} {figure.unit}" if value >= 1000 else f"{value:.3g} {figure.unit}"


def verdict_line(result: Sensitivity) -> str:
    """Whether the layout stays the best when figures are a tenth off."""
    nearest = [
        one.figure.title
        for one in result.responses
        if one.figure.is_hardware
        and any(1.0 / NEAR <= each.factor <= NEAR for each in one.crossings)
    ]
    layout = short_layout(result.best.strategy)
    if not nearest:
        return f"{layout} stays the best layout with any figure of the hardware 10 % off."
    *others, last = nearest
    named = f"{', '.join(others)} or {last}" if others else last
    return f"{layout} is the best layout; with {named} 10 % off another one wins."


def crossing_line(one: ParameterSweep, crossing: Crossover) -> str:
    """From which value on which layout wins."""
    figure, is_less = one.figure, crossing.factor < 1.0
    value, now = value_text(figure, crossing.factor), value_text(figure)
    wins = f"{crossing.layout} wins" if crossing.layout else "nothing fits"
    if figure.is_hardware:
        side = "below" if is_less else "above"
        return f"{side} {value} of {figure.title} (now {now}): {wins}"
    side = "less" if is_less else "more"
    return f"with {figure.title} at {value} or {side} (now {now}): {wins}"


def _crossings(result: Sensitivity, *, is_hardware: bool) -> list[tuple[ParameterSweep, Crossover]]:
    """Of the hardware, or of the job; those nearest to today's value first."""
    found = [
        (one, crossing)
        for one in result.responses
        for crossing in one.crossings
        if one.figure.is_hardware == is_hardware
    ]
    return sorted(found, key=lambda pair: max(pair[1].factor, 1.0 / pair[1].factor))


def measure_line(result: Sensitivity) -> str:
    """Which figures machines differ in so that it is worth measuring them."""
    found = result.worth_measuring[:3]
    if not found:
        return "Nothing that machines are known to differ in moves time: no need to measure."
    texts = []
    for one in found:
        low, high = one.figure.ends or (1.0, 1.0)
        decides = ", which decides the layout" if one.decides else ""
        values = f"{value_text(one.figure, low)} to {value_text(one.figure, high)}"
        texts.append(f"{one.figure.title}, {values}, moves time by {one.span:.1%}{decides}")
    return f"Worth measuring, as machines differ: {'; '.join(texts)}."


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    change = point.time_per_token_change
    if change is None:
        return "none"
    text = f"{change:+.1%}" if abs(change) < 1.0 else f"{change:+.0%}"
    return text if point.same_layout else f"{text}*"


def _table(result: Sensitivity) -> Table[ParameterSweep]:
    """Time per token at other values of the figures that matter."""

    def factor_column(factor: float, title: str) -> Column[ParameterSweep]:
        def text(one: ParameterSweep) -> str:
            by_factor = {point.factor: point for point in one.points}
            return _cell(by_factor.get(one.figure.factor(factor)))

        return Column(title, text)

    columns: list[Column[ParameterSweep]] = [
        Column("figure", lambda one: one.figure.title, right=False),
        Column("now", lambda one: value_text(one.figure)),
        *map(factor_column, FACTORS, TITLES),
        Column(
            "per 1%",
            lambda one: "-" if one.elasticity is None else f"{one.elasticity:+.2f}%",
        ),
    ]
    return Table([one for one in result.responses if one.matters], columns)


def print_sensitivity(
    result: Sensitivity,
    notes: Sequence[Note],
    console: Console,
    *,
    verbose: bool,
    following: str,
) -> None:
    """The verdict first, then where other layouts win, what to measure, and the table."""
    of_hardware = _crossings(result, is_hardware=True)
    shown = of_hardware if verbose else of_hardware[:MOST_SHOWN]
    crossings = [*shown, *_crossings(result, is_hardware=False)]
    given = ""
    if layout_of(result.plan) != layout_of(result.best):
        slower = result.plan.estimate.iter_time_s / result.best.estimate.iter_time_s - 1.0
        given = (
            f"The plan given ({short_layout(result.plan.strategy)}) takes {slower:+.1%} of the "
            "best one's time; what follows is of the best one."
        )
    now = format_seconds(result.best.estimate.iter_time_s)
    title = f"Time per token, planned again ({now} an iteration now; * another layout wins)"
    still = ", ".join(one.figure.title for one in result.responses if not one.matters)
    show(
        console,
        Text(inputs_line((result.best.context,), ()), "dim"),
        *note_lines(notes, assumed=False),
        Text(verdict_line(result), "bold"),
        given,
        *(f"- {crossing_line(one, crossing)}" for one, crossing in crossings),
        measure_line(result),
        whole(f"Next: {following}") if following else "",
        Text(title, "bold"),
        _table(result),
        f"No effect: {still}." if still else "",
    )
    if verbose:
        grounds = (Text(line, "dim") for line in _grounds(result))
        show(console, *grounds, *note_lines(notes, assumed=True))


def _grounds(result: Sensitivity) -> Iterator[str]:
    """What the answer rests on."""
    yield f"Best plan: {layout_words(result.best)}."
    proved = "every one proved best" if result.is_proved else "not every one proved best"
    yield f"{result.num_searches} searches, {proved} under the model; crossings within 1 %."
    yield (
        "A crossing is the nearest on its side, between values that were planned: a layout that "
        "wins only in between is not seen. What is sustained is at most all of the peak. Batch, "
        "length and layers are changed in whole eighths."
    )


def render_sensitivity_json(result: Sensitivity, notes: Sequence[Note], following: str) -> str:
    """Everything in base units, figures in the unit that stands beside them."""
    return serialise("sensitivity", SensitivityDocument.of(result, notes, following))
