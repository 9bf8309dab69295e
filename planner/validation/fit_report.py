"""What ``planner validate --cross-validate`` says, as terminal tables and as Markdown rows."""

from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from planner.validation.fit import CrossValidation
from planner.validation.statistics import Errors

ERROR_TITLES = ("constants", "runs", "mean %", "median %", "p90 %", "bias %")
CONSTANT_TITLES = ("constant", "in force", "fitted", "±", "prior", "range", "runs")


def _percent(errors: Errors) -> list[str]:
    shares = (errors.mape, errors.median_ape, errors.p90_ape)
    cells = [f"{100.0 * share:.1f}" for share in shares if share is not None]
    return [str(errors.n), *cells, f"{100.0 * (errors.bias or 0.0):+.1f}"]


def error_rows(found: CrossValidation) -> list[list[str]]:
    """Errors under the priors, fitted to all, and held out by split."""
    rows = [
        ["priors, nothing fitted", *_percent(found.prior)],
        ["fitted to all runs", *_percent(found.fitted)],
    ]
    for number, half in enumerate(found.halves, 1):
        rows.append([f"fitted to half {number}: that half", *_percent(half.train)])
        rows.append([f"fitted to half {number}: the other half", *_percent(half.test)])
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
        ("Error of time on dense runs", ERROR_TITLES, error_rows(found)),
        ("Constants", CONSTANT_TITLES, constant_rows(found)),
    )
    for title, titles, rows in tables:
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for index, name in enumerate(titles):
            table.add_column(name, justify="right" if index else "left", no_wrap=index > 0)
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
