"""Summary of a sweep and of its results: words, tables, CSV, JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from planner.answers.row import row_from
from planner.report.document import serialise
from planner.report.table import Column, Table, csv_text, show, whole
from planner.sweep.run import ASKED, FAILED, NOTHING, PLAN, REFUSED, Results, Row
from planner.sweep.winners import Group, Step, Winners
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
    axes: dict[str, list[Any]]
    by_status: dict[str, int]
    known: int  # answers that were there already
    executor: str


@dataclass(frozen=True, kw_only=True)
class SweepShowRow:
    """The best cells of results, or the best along one of their options."""

    results: str
    cells: int
    axes: dict[str, list[Any]]
    conditions: list[str]
    plans: int
    measure: str
    per: list[str]
    choices: list[str]
    along: str | None
    rows: list[dict[str, Any]]  # with rank; along an option with is_change and lead


def outcome(results: Results, num_known: int, executor: str) -> SweepRow:
    """Count the cells of a sweep by what became of them."""
    counts = Counter(str(row["status"]) for row in results.rows)
    return SweepRow(
        results=results.path,
        cells=len(results.rows),
        axes={name: list(values) for name, values in results.axes.items()},
        by_status={name: counts[name] for name in STATUSES},
        known=num_known,
        executor=executor,
    )


def print_outcome(made: SweepRow, rows: Sequence[Row], size: str, out: Console) -> None:
    """Print what came of a sweep, and the usual reasons of cells without a plan."""
    said = [f"{count:,} {STATUSES[name]}" for name, count in made.by_status.items() if count]
    reasons = Counter((row["status"], row["reason"]) for row in rows if row["status"] != PLAN)
    show(
        out,
        f"{made.cells:,} cells ({size}): {', '.join(said)}.",
        f"{made.known:,} answers were known." if made.known else "",
        *(
            f"  {count:,} {STATUSES[status]}: {reason}"
            for (status, reason), count in reasons.most_common(3)
        ),
    )


def print_show(shown: Winners, out: Console) -> None:
    """Print the best cells, or where the best changes along an option."""
    kept = f" with {' and '.join(shown.conditions)}"
    per = f", for each {' and '.join(map(_plain, shown.per))}" if shown.per else ""
    among = f"{kept if shown.conditions else ''}{per}"
    if shown.along is not None:
        show(out, f"{shown.measure.title} along {_plain(shown.along)}{among}:")
        for group, steps in shown.steps.items():
            cells = [
                {
                    ">": ">" if step.is_change else "",
                    _plain(shown.along): _text(step.value),
                    **(_figures(shown.choices, step.row) if step.row else {}),
                    "ahead by": "-" if step.lead is None else f"{step.lead:.1%}",
                }
                for step in steps
            ]
            table = _table(shown, cells)
            show(out, _change_words(shown, shown.along, group, steps), table)
        return
    lacking = f" ({shown.num_unknown:,} without the figure)" if shown.num_unknown else ""
    names = (*shown.per, *shown.choices)
    cells = [_figures(names, row) for rows in shown.best.values() for row in rows]
    show(
        out,
        f"{shown.measure.title} of {shown.num_plans:,} plans{lacking}{among}:",
        _table(shown, cells),
        whole(f"The first: {next(iter(shown.best.values()))[0]['command']}"),
    )


def _table(shown: Winners, cells: Sequence[Mapping[str, str]]) -> Table[Mapping[str, str]]:
    """A table of texts by title; figures that can be spared leave first in narrow terminals."""
    titles = list(dict.fromkeys(title for row in cells for title in row))
    names = {*map(_plain, shown.results.axes), ">", "layout"}
    spared = {"ahead by": 3, "layout": 3, "tokens/s": 4, "iteration": 5, "MFU": 6}

    def column(title: str) -> Column[Mapping[str, str]]:
        is_name = title in names
        spare = spared.get(title, 0)
        return Column(title, lambda row: row.get(title, "-"), not is_name, is_name, spare)

    return Table(cells, list(map(column, titles)))


def _figures(names: Sequence[str], row: Row) -> dict[str, str]:
    """Columns of these names, GPUs, layout, rates, and what the job or a billion tokens costs."""
    cells = {
        **{_plain(name): _text(row[name]) for name in names},
        "GPUs": f"{row['gpus']:,}",
        "layout": f"DP {row['dp']} · TP {row['tp']} · PP {row['pp']}",
        "iteration": format_seconds(row["iter_time_s"]),
        "tokens/s": format_count(row["tokens_per_s"]),
        "MFU": f"{row['mfu']:.1%}",
    }
    usd, per_billion = row["cost_usd"], row["cost_usd_per_billion_tokens"]
    if row["days"] is not None:
        cells["days"] = f"{row['days']:,.1f}"
        cells["USD"] = "-" if usd is None else format_count(usd)
    else:
        cells["USD/1B"] = "-" if per_billion is None else f"{per_billion:,.2f}"
    energy = row["energy_kwh_per_billion_tokens"]
    cells["kWh/1B"] = "-" if energy is None else f"{energy:,.1f}"
    return cells


def _change_words(shown: Winners, along: str, group: Group, steps: Sequence[Step]) -> str:
    said: list[str] = []
    before: Group = ()
    for step in steps:
        if step.is_change:
            was, now = (", ".join(map(_text, each)) for each in (before, step.winner))
            said.append(f"at {_plain(along)} {_text(step.value)}: {was} to {now}")
        before = step.winner or before
    named = zip(shown.per, group, strict=True)
    job = ", ".join(f"{_plain(name)} {_text(value)}" for name, value in named)
    same = f"one best all along, {', '.join(map(_text, before))}"
    return f"{f'{job}: ' if job else ''}{'; '.join(said) or same}"


def _plain(name: str) -> str:
    return name.removeprefix(ASKED)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def show_rows(shown: Winners) -> list[dict[str, Any]]:
    """Return the same as rows of data, with every column of the results."""
    if shown.along is None:
        return [
            {"rank": rank, **row}
            for rows in shown.best.values()
            for rank, row in enumerate(rows, start=1)
        ]
    return [
        {
            **dict(zip(shown.per, group, strict=True)),
            shown.along: step.value,
            "is_change": step.is_change,
            "lead": step.lead,
            **(step.row or {}),
        }
        for group, steps in shown.steps.items()
        for step in steps
    ]


def render_show_csv(shown: Winners) -> str:
    """Return the rows as CSV with a header."""
    rows = show_rows(shown)
    return csv_text(rows, list(dict.fromkeys(name for row in rows for name in row)))


def render_show_json(shown: Winners) -> str:
    """Return the document ``sweep-show``."""
    results = shown.results
    row = row_from(
        SweepShowRow,
        shown,
        results=results.path,
        cells=len(results.rows),
        axes={name: list(values) for name, values in results.axes.items()},
        conditions=list(shown.conditions),
        plans=shown.num_plans,
        measure=shown.measure.column,
        rows=show_rows(shown),
    )
    return serialise("sweep-show", row) + "\n"
