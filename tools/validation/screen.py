"""Comparison and cross-validation as tables: rows for terminal and Markdown, and their JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.validation.compare import Comparison
from tools.validation.fit import CrossValidation
from tools.validation.records import Unread
from tools.validation.summary import (
    MEMORY_TITLES,
    Errors,
    Summary,
    error_cells,
    percent,
    summary,
    worst_rows,
)

NUM_WORST = 10
NUM_NAMES = 6
"""Names of skipped records in one row; JSON has all."""
ERROR_TITLES = ("runs", "mean %", "median %", "p90 %", "bias %")
SPLIT_TITLES = ("constants", *ERROR_TITLES)
CONSTANT_TITLES = ("constant", "in force", "fitted", "±", "prior", "range", "runs")


def _table(title: str, first: str, others: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _errors(title: str, first: str, rows: Iterable[tuple[str, Errors]]) -> Table:
    table = _table(title, first, ERROR_TITLES)
    for name, errors in rows:
        table.add_row(name, *error_cells(errors))
    return table


def _whole(found: Summary) -> Table:
    rows = [
        ("time, all", found.time),
        ("time, dense models", found.time_dense),
        ("time, mixtures of experts", found.time_moe),
        ("time from TFLOPs or MFU (not in the above)", found.time_from_flops),
        *((f"memory {MEMORY_TITLES[kind]}", errors) for kind, errors in found.memory.items()),
    ]
    return _errors("Error: predicted over measured, minus one", "figure", rows)


def _sentences(found: Summary, total: int, unread: int) -> str:
    skipped = sum(map(len, found.skipped.values())) + unread
    total += unread
    lines = [
        f"{total} records: {total - skipped} estimated as they were configured, {skipped} skipped.",
        (
            f"Out of memory: {found.out_of_memory_right} of {found.out_of_memory} predicted not to "
            f"fit; of {found.ran} that ran, {found.ran_predicted_to_fit} predicted to fit."
        ),
    ]
    if found.timed:
        lines.append(f"Times inside the stated range: {found.timed_in_range} of {found.timed}.")
    if found.mean_tau is not None:
        lines.append(
            f"Order of layouts in {len(found.ranking)} groups: mean Kendall's tau "
            f"{found.mean_tau:.2f}, mean regret {percent(found.mean_regret)} %."
        )
    return "\n".join(lines)


def _worst(rows: Sequence[Comparison]) -> Table:
    table = _table("Largest errors of time", "run", ("measured s", "predicted s", "error %"))
    for row in worst_rows(rows, NUM_WORST):
        predicted = row.predicted.iter_time_s if row.predicted else None
        table.add_row(
            row.record.id,
            f"{row.measured.iter_time_s or 0.0:.2f}",
            f"{predicted or 0.0:.2f}",
            percent(row.time_error, signed=True),
        )
    return table


def _short(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NUM_NAMES])
    left = len(names) - NUM_NAMES
    return f"{shown} and {left} more" if left > 0 else shown


def _skipped(found: Summary, unread: Sequence[Unread]) -> Table:
    """A row per reason, with the names it holds for; what could not be read has its own."""
    table = Table(title="Skipped", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("reason", overflow="fold")
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("names", overflow="fold")
    for reason, names in found.skipped.items():
        table.add_row(Text(reason), str(len(names)), Text(_short(names)))
    for line in unread:
        said = "; ".join(f"{problem.key}: {problem.message}" for problem in line.problems)
        table.add_row(Text(f"not read: {said}"), "1", Text(line.name))
    return table


def print_report(
    comparisons: Sequence[Comparison], console: Console, unread: Sequence[Unread] = ()
) -> None:
    """Print summary, errors by framework, GPU and size, the worst rows, and what was skipped."""
    found = summary(comparisons)
    said = _sentences(found, len(comparisons), len(unread))
    console.print(said, markup=False, soft_wrap=False)
    console.print(_whole(found))
    if found.time.n:
        console.print(_errors("Time by framework", "framework", found.by_framework.items()))
        console.print(_errors("Time by GPU", "GPU", found.by_gpu.items()))
        console.print(_errors("Time by size", "size", found.by_size.items()))
        console.print(_worst(comparisons))
    if found.skipped or unread:
        console.print(_skipped(found, unread))


def error_rows(found: CrossValidation) -> list[list[str]]:
    """Errors under the priors, fitted to all, and held out by split."""
    rows = [
        ["priors, nothing fitted", *error_cells(found.prior)],
        ["fitted to all runs", *error_cells(found.fitted)],
    ]
    for number, half in enumerate(found.halves, 1):
        rows.append([f"fitted to half {number}: that half", *error_cells(half.train)])
        rows.append([f"fitted to half {number}: the other half", *error_cells(half.test)])
    return rows


def constant_rows(found: CrossValidation) -> list[list[str]]:
    """Every constant: value in force, fitted to all with its error, prior, range, runs."""
    return [
        [
            one.constant.name,
            f"{one.in_force:.3g}",
            f"{one.fitted:.3g}",
            f"{one.standard_error:.2g}",
            f"{one.constant.prior:.3g}",
            f"{one.constant.low:g}-{one.constant.high:g}",
            str(one.num_samples),
        ]
        for one in found.constants
    ]


def sentence(found: CrossValidation) -> str:
    """The headline: error on groups that were not fitted."""
    worst = max(half.test.mape or 0.0 for half in found.halves)
    return (
        f"Dense runs held out: mean error {100.0 * found.test_mean:.1f} % over "
        f"{len(found.halves)} halves, worst {100.0 * worst:.1f} %; groups of source, model and "
        "GPU are kept together."
    )


def print_cross_validation(found: CrossValidation, console: Console) -> None:
    """Print the headline, errors by split, and the constants."""
    console.print(sentence(found), markup=False)
    tables = (
        ("Error of time on dense runs", SPLIT_TITLES, error_rows(found)),
        ("Constants", CONSTANT_TITLES, constant_rows(found)),
    )
    for title, titles, rows in tables:
        table = _table(title, titles[0], titles[1:])
        for row in rows:
            table.add_row(*row)
        console.print(table)


def cross_validation_json(found: CrossValidation) -> dict[str, Any]:
    """Everything as plain data; errors as fractions."""
    return {
        "held_out_mean": found.test_mean,
        "prior": asdict(found.prior),
        "fitted": asdict(found.fitted),
        "halves": [asdict(half) for half in found.halves],
        "constants": [
            {
                "name": one.constant.name,
                "in_force": one.in_force,
                "fitted": one.fitted,
                "standard_error": one.standard_error,
                "prior": one.constant.prior,
                "range": [one.constant.low, one.constant.high],
                "runs": one.num_samples,
                "source": one.constant.source,
            }
            for one in found.constants
        ],
    }
