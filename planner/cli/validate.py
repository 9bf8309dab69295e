"""``planner validate``: published runs against the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli import options

if TYPE_CHECKING:
    from planner.validation.records import Runs


def validate(
    runs: Annotated[Path, typer.Argument(help="Published runs, one JSON record a line.")],
    output_format: options.OutputFormat = options.TableOrJson.table,
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate",
            help="Fit the constants on half of the dense runs and score the other half.",
        ),
    ] = False,
) -> None:
    """Estimate published runs as they were configured, and compare."""
    from planner.validation.records import read_runs

    report = _cross_validate if cross_validate else _compare
    report(read_runs(runs), output_format)


def _compare(runs: "Runs", output_format: options.TableOrJson) -> None:
    from planner.cli.output import console
    from planner.validation.compare import compare_all

    comparisons = compare_all(runs.records)
    if output_format is options.TableOrJson.json:
        from planner.validation.report import to_json

        _echo("validate", to_json(comparisons, runs.unread))
        return
    from planner.validation.table import print_report

    print_report(comparisons, console(), runs.unread)


def _cross_validate(runs: "Runs", output_format: options.TableOrJson) -> None:
    from planner.cli.output import console
    from planner.errors import InputError
    from planner.validation.constants import load_constants
    from planner.validation.fit import cross_validate, samples_of
    from planner.validation.fit_report import cross_validation_json, print_cross_validation

    samples = samples_of(runs.records)
    if len({sample.group for sample in samples}) < 2:
        raise InputError.single(
            "command line",
            "--cross-validate",
            "needs scored dense runs of at least two sources, models or GPUs; "
            f"given {len(samples)} such runs",
        )
    found = cross_validate(samples, load_constants())
    if output_format is options.TableOrJson.json:
        _echo("cross-validation", cross_validation_json(found))
        return
    print_cross_validation(found, console())


def _echo(kind: str, data: dict[str, Any]) -> None:
    from planner.report.documents import render

    typer.echo(render(kind, data))
