"""Effect of figures on time and on the winner, in words and as JSON."""

import math
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from planner.answers.layout import short_layout
from planner.answers.parameters import Parameter
from planner.answers.sensitivity import FACTORS, ParameterSweep, Sensitivity, layout_of
from planner.report.table import Column, Table, show, whole
from planner.report.words import inputs_line, layout_words, note_lines, question_lines
from planner.units import format_seconds


def _value(figure: Parameter, factor: float = 1.0) -> str:
    value = figure.value * factor
    if not figure.unit:
        return f"{value:.0%}" if figure.most == 1.0 else f"{value:,.0f}"
    return f"{value:,.0f} {figure.unit}" if value >= 1000 else f"{value:.3g} {figure.unit}"


def _verdict(result: Sensitivity) -> str:
    """Whether the layout stays the best when figures are a tenth off."""
    nearest = [
        one.figure.title
        for one in result.responses
        if one.figure.is_hardware and any(1.0 / 1.1 <= each.factor <= 1.1 for each in one.crossings)
    ]
    layout = short_layout(result.best.strategy)
    if not nearest:
        return f"{layout} stays the best layout with any figure of the hardware 10 % off."
    *others, last = nearest
    named = f"{', '.join(others)} or {last}" if others else last
    return f"{layout} is the best layout; with {named} 10 % off another one wins."


def _crossings(result: Sensitivity) -> Iterator[str]:
    """From which values on other layouts win, nearest first."""
    found = [(one.figure, each) for one in result.responses for each in one.crossings]
    for figure, each in sorted(found, key=lambda pair: abs(math.log(pair[1].factor))):
        side = "less" if each.factor < 1.0 else "more"
        wins = f"{each.layout} wins" if each.layout else "nothing fits"
        value, now = _value(figure, each.factor), _value(figure)
        yield f"- {figure.title} at {value} or {side} (now {now}): {wins}"


def _worth_measuring(result: Sensitivity) -> str:
    """Which figures machines differ in so that it is worth measuring them."""
    texts = []
    for one in result.worth_measuring[:3]:
        low, high = one.figure.ends or (1.0, 1.0)
        decides = ", which decides the layout" if one.decides else ""
        values = f"{_value(one.figure, low)} to {_value(one.figure, high)}"
        texts.append(f"{one.figure.title}, {values}, moves time by {one.span:.1%}{decides}")
    if not texts:
        return "Nothing that machines are known to differ in moves time: no need to measure."
    return f"Worth measuring, as machines differ: {'; '.join(texts)}."


def _table(result: Sensitivity) -> Table[ParameterSweep]:

    def factor_column(factor: float, title: str) -> Column[ParameterSweep]:
        def text(one: ParameterSweep) -> str:
            wanted = one.figure.factor(factor)
            point = next((each for each in one.points if each.factor == wanted), None)
            if point is None:
                return "-"
            change = point.time_per_token_change
            if change is None:
                return "none"
            text = f"{change:+.1%}" if abs(change) < 1.0 else f"{change:+.0%}"
            return text if point.same_layout else f"{text}*"

        return Column(title, text)

    return Table[ParameterSweep](
        [one for one in result.responses if one.matters],
        [
            Column("figure", "figure.title", right=False),
            Column("now", lambda one: _value(one.figure)),
            *map(factor_column, FACTORS, ("/ 2", "- 10%", "+ 10%", "x 2")),
        ],
    )


def print_sensitivity(
    result: Sensitivity,
    console: Console,
    *,
    verbose: bool,
    following: str,
) -> None:
    """The verdict first, then where other layouts win, what to measure, and the table."""
    crossings = list(_crossings(result))
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
        *question_lines(inputs_line((result.best.context,)), result.case.notes),
        Text(_verdict(result), "bold"),
        given,
        *(crossings if verbose else crossings[:8]),
        _worth_measuring(result),
        whole(f"Next: {following}") if following else "",
        Text(title, "bold"),
        _table(result),
        f"No effect: {still}." if still else "",
    )
    if verbose:
        proved = "every one proved best" if result.is_proved else "not every one proved best"
        searched = f"{result.num_searches} searches, {proved} under the model"
        show(
            console,
            Text(f"Best plan: {layout_words(result.best)}.", "dim"),
            Text(f"{searched}; crossings within 1 %.", "dim"),
            *note_lines(result.case.notes, assumed=True),
        )
