"""Summary of a sweep and of its results: words, tables, CSV, JSON."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from planner.answers.row import row_from, row_of
from planner.report.table import Column, Table, csv_text, show, whole
from planner.sweep.run import ASKED, FAILED, NOTHING, PLAN, REFUSED, Results, Row
from planner.sweep.winners import Winners
from planner.units import format_count, format_seconds

STATUSES = {
    PLAN: "with a plan",
    NOTHING: "where nothing fits",
    REFUSED: "refused",
    FAILED: "failed",
}


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """Summary of a sweep; the answers themselves are in its results."""

    results: str
    cells: int
    axes: Mapping[str, tuple[Any, ...]]
    by_status: dict[str, int]
    known: int  # answers that were there already
    executor: str


@row_of(
    {
        "results": str,
        "cells": int,
        "axes": dict[str, tuple[Any, ...]],
        "plans": int,
        "measure": str,
        "rows": list[dict[str, Any]],
    },
    leave_out=("best", "num_plans", "num_unknown"),
)
class SweepShowRow(Winners):
    """The best cells of results; their rows have a rank."""

    rows: list[dict[str, Any]]


def outcome(results: Results, num_known: int, executor: str) -> SweepRow:
    """Count the cells of a sweep by what became of them."""
    counts = Counter(str(row["status"]) for row in results.rows)
    return SweepRow(
        results=results.path,
        cells=len(results.rows),
        axes=results.axes,
        by_status={name: counts[name] for name in STATUSES},
        known=num_known,
        executor=executor,
    )


def print_outcome(
    made: SweepRow, rows: Sequence[Row], size: str, console: Console, *, following: str
) -> None:
    """Print what came of a sweep, and the usual reasons of cells without a plan."""
    said = [f"{count:,} {STATUSES[name]}" for name, count in made.by_status.items() if count]
    reasons = Counter((row["status"], row["reason"]) for row in rows if row["status"] != PLAN)
    show(
        console,
        f"{made.cells:,} cells ({size}): {', '.join(said)}.",
        f"{made.known:,} answers were known." if made.known else "",
        *(
            f"  {count:,} {STATUSES[status]}: {reason}"
            for (status, reason), count in reasons.most_common(3)
        ),
        whole(f"Next: {following}"),
    )


def print_show(shown: Winners, console: Console) -> None:
    """Print the best cells."""
    kept = f" with {' and '.join(shown.conditions)}" if shown.conditions else ""
    per = f", for each {' and '.join(map(_plain, shown.per))}" if shown.per else ""
    lacking = f" ({shown.num_unknown:,} without the figure)" if shown.num_unknown else ""
    rows = [row for ranked in shown.best for row in ranked]
    show(
        console,
        f"{shown.measure.title} of {shown.num_plans:,} plans{lacking}{kept}{per}:",
        Table(rows, _columns((*shown.per, *shown.choices), rows)),
        whole(f"The first: {rows[0]['command']}"),
    )


def _columns(names: Sequence[str], rows: Sequence[Row]) -> list[Column[Row]]:
    """Columns of these names, GPUs, layout, rates, and what the job or a billion tokens costs."""

    def figure(key: str, in_words: Callable[[Any], str]) -> Callable[[Row], str]:
        return lambda row: "-" if row[key] is None else in_words(row[key])

    def name(key: str) -> Column[Row]:
        return Column(_plain(key), figure(key, _text), right=False, wraps=True)

    found = [
        *map(name, names),
        Column("GPUs", figure("gpus", "{:,}".format)),
        Column(
            "layout",
            lambda row: f"DP {row['dp']} · TP {row['tp']} · PP {row['pp']}",
            right=False,
            wraps=True,
            spare=3,
        ),
        Column("iteration", figure("iter_time_s", format_seconds), spare=5),
        Column("tokens/s", figure("tokens_per_s", format_count), spare=4),
        Column("MFU", figure("mfu", "{:.1%}".format), spare=6),
    ]
    of_jobs = [
        Column("days", figure("days", "{:,.1f}".format)),
        Column("USD", figure("cost_usd", format_count)),
    ]
    if all(row["days"] is None for row in rows):
        of_jobs = [Column("USD/1B", figure("cost_usd_per_billion_tokens", "{:,.2f}".format))]
    return [
        *found,
        *of_jobs,
        Column("kWh/1B", figure("energy_kwh_per_billion_tokens", "{:,.1f}".format)),
    ]


def _plain(name: str) -> str:
    return name.removeprefix(ASKED)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def render_show_csv(shown: Winners) -> str:
    """Return the rows as CSV with a header."""
    rows = show_document(shown).rows
    return csv_text(rows, list(dict.fromkeys(name for row in rows for name in row)))


def show_document(shown: Winners) -> SweepShowRow:
    """Return the document ``sweep-show``, with every column of the results."""
    return row_from(
        SweepShowRow,
        shown,
        results=shown.results.path,
        cells=len(shown.results.rows),
        axes=shown.results.axes,
        plans=shown.num_plans,
        measure=shown.measure.column,
        rows=[
            {"rank": rank, **row}
            for ranked in shown.best
            for rank, row in enumerate(ranked, start=1)
        ],
    )
