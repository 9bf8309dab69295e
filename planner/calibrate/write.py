"""The cluster file of a calibration, each figure with its spread, its points and the day."""

import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from planner.calibrate.fit import Calibration, Fitted
from planner.calibrate.write_whole import dumped
from planner.catalog.hardware import is_path
from planner.limits import one_line


def cluster_text(made: Calibration, command: str, day: date, folder: Path) -> str:
    """The cluster file: the base's, with the fitted figures among its overrides.

    ``folder`` is where it will lie: files that it names are found from there.
    """
    lines = [f"# Written by `{one_line(command)}` on {day.isoformat()}; edit what is wrong."]
    lines += [
        f"#   {one_line(each.path)}: {each.num_points} x {each.kind}, mean error "
        f"{each.before:.1%} before, {each.after:.1%} now"
        for each in made.own
    ]
    rest = {key: value for key, value in made.base.raw.items() if key != "overrides"}
    lines.append(dumped(_placed(rest, folder)).rstrip())
    kept = {
        key: value
        for key, value in made.base.raw.get("overrides", {}).items()
        if key not in made.factors
    }
    if kept or made.fitted:
        lines.append("overrides:")
    lines += [f"  {key}: {value!r}" for key, value in kept.items()]
    lines += [f"  {each.key}: {each.value:.6g}  # {_words(each, day)}" for each in made.fitted]
    return "\n".join(lines) + "\n"


def _placed(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    named = ("node", "accelerator", "fabric")
    return {
        key: os.path.relpath(value, folder) if key in named and _is_place(value) else value
        for key, value in raw.items()
    }


def _is_place(value: object) -> bool:
    return isinstance(value, str) and is_path(value)


def _words(each: Fitted, day: date) -> str:
    spread = f"{each.value * each.deviation:.2g}"
    before = f"{each.catalog.basis}: {each.catalog.value:g}" if each.is_known else "none before"
    return (
        f"+- {spread}, {each.num_points} point{'s' * (each.num_points > 1)}, {day.isoformat()}; "
        f"{before}"
    )
