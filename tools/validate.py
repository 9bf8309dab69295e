"""Estimates published runs as they were configured, and compares.

``python -m tools.validate RUNS.jsonl [--cross-validate] [--format json]``
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import __version__
from planner.cli.output import console, say
from planner.errors import InputError
from planner.limits import one_line
from tools.validation.compare import compare_all
from tools.validation.fit import cross_validate, load_constants, samples_of
from tools.validation.records import Runs, read_runs
from tools.validation.screen import cross_validation_json, print_cross_validation, print_report
from tools.validation.summary import to_json


def main() -> int:
    """Print the comparison; 2 where there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m tools.validate", description=__doc__)
    parser.add_argument("runs", type=Path, help="published runs, one JSON record a line")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help="fit the constants on half of the dense runs and score the other half",
    )
    given = parser.parse_args()
    report = _cross_validate if given.cross_validate else _compare
    try:
        report(read_runs(given.runs), as_json=given.format == "json")
    except InputError as error:
        for problem in error.problems:
            say(one_line(str(problem)))
        return error.exit_code
    return 0


def _compare(runs: Runs, *, as_json: bool) -> None:
    comparisons = compare_all(runs.records)
    if as_json:
        _print_json("validate", to_json(comparisons, runs.unread))
    else:
        print_report(comparisons, console(), runs.unread)


def _cross_validate(runs: Runs, *, as_json: bool) -> None:
    samples = samples_of(runs.records)
    if len({sample.group for sample in samples}) < 2:
        raise InputError.single(
            "command line",
            "--cross-validate",
            "needs scored dense runs of at least two sources, models or GPUs; "
            f"given {len(samples)} such runs",
        )
    found = cross_validate(samples, load_constants())
    if as_json:
        _print_json("cross-validation", cross_validation_json(found))
    else:
        print_cross_validation(found, console())


def _print_json(kind: str, body: Mapping[str, Any]) -> None:
    head = {"schema": kind, "schema_version": 1, "planner_version": __version__}
    print(json.dumps({**head, **body}, indent=2, allow_nan=False))


if __name__ == "__main__":
    sys.exit(main())
