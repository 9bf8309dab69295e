"""The result of a sweep as one HTML page: the best, where it changes, all plans as points."""

from collections.abc import Sequence
from typing import Any

from planner import __version__
from planner.report.page.bars import steps
from planner.report.page.charts import COLOURS, drawn_svg, figure, style
from planner.report.page.html import Html, element, folded, joined, section, table
from planner.report.page.page import whole
from planner.report.plot import library, short_number
from planner.report.sweep import (
    Cells,
    best_rows,
    change_rows,
    change_words,
    plain,
    reasons,
    title,
    value_text,
)
from planner.sweep.results import Results
from planner.sweep.winners import Best, Changes

POINT = 3.0
MOST_REASONS = 20


def _table(lines: Sequence[Cells], *, left: int) -> Html:
    heads = list(dict.fromkeys(name for line in lines for name, _ in line))
    rows = [[dict(line).get(name, "-") for name in heads] for line in lines]
    return table(heads, rows, left=left)


def _chart(best: Best, rows: Sequence[dict[str, Any]]) -> Html:
    """Cost of every plan that is left over its time, the best ones larger."""
    shown = [row for row in rows if row["cost_usd_per_billion_tokens"] is not None]
    if not shown:
        return Html()
    by_job = all(row["days"] is not None for row in shown)
    x, y = ("days", "cost_usd") if by_job else ("tokens_per_s", "cost_usd_per_billion_tokens")
    first = [row for those in best.groups.values() for row in those[:1] if row[y] is not None]
    drawn = figure(3.6)
    axes = drawn.add_subplot()
    for those, role, size in ((shown, "accent", POINT), (first, "recompute", 2.5 * POINT)):
        points = [[row[name] for row in those] for name in (x, y)]
        axes.plot(*points, color=COLOURS[role], marker="o", markersize=size, linestyle="none")
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        values = [row[name] for row in shown]
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_minor_locator(library("matplotlib.ticker").NullLocator())
        ticks = steps(values, values)
        axis.set_ticks(ticks, [short_number(tick) for tick in ticks])
    axes.set_xlabel("days" if by_job else "tokens per second")
    axes.set_ylabel("USD" if by_job else "USD per billion tokens")
    axes.grid(visible=True, color=COLOURS["rule"], linewidth=0.6)
    caption = "A point for each plan that keeps the conditions; the large ones are the best."
    name = "Cost over time of the job" if by_job else "Cost over speed"
    return drawn_svg(drawn, "cost", title=name, caption=caption)


def _changes(changes: Changes | None) -> Html:
    if changes is None:
        return Html()
    parts = [
        joined(
            [
                element("p", change_words(changes, group, steps)),
                _table(change_rows(changes, steps), left=2 + len(changes.choices)),
            ]
        )
        for group, steps in changes.groups.items()
    ]
    return section(f"Along {plain(changes.along)}", *parts)


def _commands(best: Best) -> Html:
    lines = [
        element("p", element("code", row["command"]), Html("<br>"), row["layout"])
        for those in best.groups.values()
        for row in those
    ]
    return folded("Their commands and layouts", *lines)


def _rest(results: Results) -> Html:
    """What was asked, and why cells have no plan."""
    asked = [(plain(name), ", ".join(map(value_text, each))) for name, each in results.axes.items()]
    parts = [table(("option", "values"), asked, left=2)]
    none = reasons(results.frame.select("status", "reason").to_dicts())[:MOST_REASONS]
    if none:
        rows = [(status, reason, f"{count:,}") for status, reason, count in none]
        parts.append(table(("without a plan", "because", "cells"), rows, left=2))
    return section("What was asked", *parts)


def render_sweep_page(
    results: Results,
    best: Best,
    changes: Changes | None,
    rows: Sequence[dict[str, Any]],
    kept: Sequence[str],
    origin: str,
) -> str:
    """The whole page; raises InputError where the plotting library is missing."""
    with style():
        head = title(best, kept)
        parts = [
            element("h1", f"{head}."),
            section(
                "The best",
                _table(best_rows(best), left=len(best.per) + len(best.choices)),
                _commands(best),
            ),
            _chart(best, rows),
            _changes(changes),
            _rest(results),
        ]
    made = f"Modelled by planner {__version__}, not measured. Made by: {origin}"
    body = joined([element("main", joined(parts)), element("footer", element("p", made))])
    return whole(f"{results.path}: sweep", body)
