"""What a sweep came to, and what its result says: words, tables, CSV, JSON."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from planner.report.document import serialise
from planner.report.table import Column, Table, csv_text, fitting_table
from planner.sweep.cells import Row, Sweep
from planner.sweep.results import ASKED, Results
from planner.sweep.run import Progressing
from planner.sweep.winners import Best, Changes, Group, Measure, Step
from planner.units import format_count, format_seconds

MOST_REASONS = 3
STATUSES: Mapping[str, str] = {
    "plan": "with a plan",
    "nothing": "where nothing fits",
    "refused": "refused",
    "failed": "failed",
}
"""By status of a cell, in the order in which they are said."""
DEGREES = ("dp", "tp", "pp")
SPARED = ("MFU", "iteration", "tokens/s", "dp·tp·pp", "GPUs", "ahead by")
"""Columns that tables go without where space lacks, in this order."""
FIGURES = (*SPARED, "days", "USD", "USD/1B", "kWh/1B")
MARK = ">"
Cells = list[tuple[str, str]]
"""Title and text, a column each."""


def outcome(sweep: Sweep, rows: Sequence[Row], state: Progressing) -> dict[str, Any]:
    """What came of a sweep, as plain data."""
    counts = Counter(str(row["status"]) for row in rows)
    return {
        "cells": len(rows),
        "axes": {axis.name: list(axis.values) for axis in sweep.axes},
        "by_status": {name: counts[name] for name in STATUSES},
        "known": state.known,
        "answered": state.answered,
        "seconds": state.seconds,
        "cells_per_s": state.cells_per_s,
    }


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Status, reason and number of cells without a plan, most first."""
    counts = Counter(
        (str(row["status"]), str(row["reason"])) for row in rows if row["status"] != "plan"
    )
    return [(*both, count) for both, count in counts.most_common()]


def print_outcome(made: Mapping[str, Any], rows: Sequence[Row], size: str, out: Console) -> None:
    """The same for people."""
    said = [f"{n:,} {STATUSES[name]}" for name, n in made["by_status"].items() if n]
    out.print(f"{made['cells']:,} cells ({size}): {', '.join(said)}.")
    out.print(
        f"{made['answered']:,} answered in {format_seconds(made['seconds'])} "
        f"({made['cells_per_s']:.2f} cells/s on {made['executor']}), {made['known']:,} known."
        if made["answered"]
        else f"All {made['known']:,} answers were known."
    )
    for status, reason, count in reasons(rows)[:MOST_REASONS]:
        out.print(f"  {count:,} {STATUSES[status]}: {reason}")


def value_text(value: object) -> str:
    """A value of an option as people read it."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def words(group: Group, per: Sequence[str]) -> str:
    """Which job a group is."""
    return ", ".join(
        value_text(value) if name == "model" else f"{plain(name)} {value_text(value)}"
        for name, value in zip(per, group, strict=True)
    )


def title(best: Best, asked: Sequence[str]) -> str:
    """What is shown, in a sentence."""
    lacking = f" ({best.num_unknown:,} without the figure)" if best.num_unknown else ""
    return f"{best.measure.title} of {best.num_plans:,} plans{lacking}{_among(asked, best.per)}"


def _among(asked: Sequence[str], per: Sequence[str]) -> str:
    """Which plans were looked at, and what does not compete."""
    kept = f" with {' and '.join(asked)}" if asked else ""
    return f"{kept}, for each {' and '.join(map(plain, per))}" if per else kept


def figures(row: Mapping[str, Any], measure: Measure) -> Cells:
    """What a plan is and comes to, short."""
    usd = row["cost_usd_per_billion_tokens"]
    job = (
        []
        if row["days"] is None
        else [("days", f"{row['days']:,.1f}"), ("USD", _count(row["cost_usd"]))]
    )
    energy = measure.column == "energy_kwh_per_billion_tokens"
    return [
        ("GPUs", f"{row['gpus']:,}"),
        ("dp·tp·pp", "·".join(str(row[name]) for name in DEGREES)),
        ("iteration", format_seconds(row["iter_time_s"])),
        ("tokens/s", format_count(round(row["tokens_per_s"]))),
        ("MFU", f"{row['mfu']:.1%}"),
        *job,
        *([] if job else [("USD/1B", "-" if usd is None else f"{usd:,.2f}")]),
        *([("kWh/1B", f"{row[measure.column]:,.1f}")] if energy else []),
    ]


def _count(number: float | None) -> str:
    return "-" if number is None else format_count(round(number))


def best_rows(best: Best) -> list[Cells]:
    """Lines of the table of the best, groups one after the other."""
    return [
        [
            *(
                (plain(name), value_text(value))
                for name, value in zip(best.per, group, strict=True)
            ),
            *((plain(name), value_text(row[name])) for name in best.choices),
            *figures(row, best.measure),
        ]
        for group, rows in best.groups.items()
        for row in rows
    ]


def change_rows(changes: Changes, steps: Sequence[Step]) -> list[Cells]:
    """Lines of the table of one group's changes."""
    return [
        [
            ("", MARK if step.is_change else ""),
            (plain(changes.along), value_text(step.value)),
            *(
                (plain(name), value_text(value))
                for name, value in zip(
                    changes.choices, step.winner or ("-",) * len(changes.choices), strict=True
                )
            ),
            *(figures(step.row, changes.measure) if step.row else ()),
            ("ahead by", "-" if step.lead is None else f"{step.lead:.1%}"),
        ]
        for step in steps
    ]


def change_words(changes: Changes, group: Group, steps: Sequence[Step]) -> str:
    """Where the best changes, in a sentence."""
    said = []
    before: Group = ()
    for step in steps:
        if step.is_change:
            was, now = (", ".join(map(value_text, each)) for each in (before, step.winner))
            said.append(f"at {plain(changes.along)} {value_text(step.value)} from {was} to {now}")
        before = step.winner or before
    job = f"{words(group, changes.per)}: " if changes.per else ""
    same = f"one best all along, {', '.join(map(value_text, before))}"
    return f"{job}{'; '.join(said) or same}"


def plain(name: str) -> str:
    """A column of an option without what tells it from one of plans."""
    return name.removeprefix(ASKED)


def grid(lines: Sequence[Cells], width: int) -> RichTable:
    """A table of lines that may lack some columns; those that can be spared leave in turn."""
    rows = [dict(line) for line in lines]
    titles = list(dict.fromkeys(title for row in rows for title in row))

    def column(title: str) -> Column[dict[str, str]]:
        texts = [row.get(title, "-").replace(",", "") for row in rows]
        is_number = title in FIGURES or all(text.isdigit() for text in texts)
        spare = len(SPARED) - SPARED.index(title) if title in SPARED else 0
        return Column(
            title,
            lambda row: row.get(title, "-"),
            right=is_number,
            wraps=not is_number,
            spare=spare,
        )

    return fitting_table(Table(rows, [column(title) for title in titles]), width)


def print_show(best: Best, changes: Changes | None, kept: Sequence[str], out: Console) -> None:
    """Answers of ``planner sweep show``."""
    if changes is not None:
        among = _among(kept, changes.per)
        out.print(f"{changes.measure.title} along {plain(changes.along)}{among}:")
        for group, steps in changes.groups.items():
            out.print(change_words(changes, group, steps))
            out.print(grid(change_rows(changes, steps), out.width))
        return
    out.print(f"{title(best, kept)}:")
    out.print(grid(best_rows(best), out.width))
    first = next(iter(best.groups.values()))[:1]
    for row in first:
        out.print(f"The first: {row['layout']}.")
        out.print(row["command"], soft_wrap=True)


def show_rows(best: Best, changes: Changes | None) -> list[dict[str, Any]]:
    """The same as rows of data, every column of the result among them."""
    if changes is None:
        return [
            {"rank": rank, **row}
            for rows in best.groups.values()
            for rank, row in enumerate(rows, start=1)
        ]
    return [
        {
            **dict(zip(changes.per, group, strict=True)),
            changes.along: step.value,
            "is_change": step.is_change,
            "lead": step.lead,
            **(step.row or {}),
        }
        for group, steps in changes.groups.items()
        for step in steps
    ]


def render_show_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header."""
    return csv_text(rows, list(dict.fromkeys(name for row in rows for name in row)))


def render_show_json(
    best: Best, changes: Changes | None, kept: Sequence[str], results: Results
) -> str:
    """The document ``sweep-show``."""
    rows = show_rows(best, changes)
    body = {
        "results": results.path,
        "cells": results.frame.height,
        "axes": {name: list(values) for name, values in results.axes.items()},
        "conditions": list(kept),
        "plans": best.num_plans,
        "measure": best.measure.column,
        "per": list(changes.per if changes else best.per),
        "choices": list(changes.choices if changes else best.choices),
        "along": changes.along if changes else None,
        "rows": rows,
    }
    return serialise("sweep-show", body)


def render_outcome(made: Mapping[str, Any]) -> str:
    """The document ``sweep``."""
    return serialise("sweep", made)
