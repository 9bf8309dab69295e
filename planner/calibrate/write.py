"""Cluster files of a calibration and of a machine stated whole, as text."""

import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from planner.calibrate.figures import named_files
from planner.calibrate.fit import Calibration
from planner.limits import one_line
from planner.units import plural


def cluster_text(made: Calibration, command: str, day: date, folder: Path) -> str:
    """The base's cluster file, with the fitted figures among its overrides.

    Each has its spread, its points and the day. ``folder`` is where the file will lie: files that
    it names are found from there.
    """
    lines = [f"# Written by `{one_line(command)}` on {day.isoformat()}; edit what is wrong."]
    lines += [
        f"#   {one_line(each.path)}: {each.num_points} x {each.kind}, mean error "
        f"{each.before:.1%} before, {each.after:.1%} now"
        for each in made.own
    ]
    files = named_files(made.base.raw)
    rest = {**made.base.raw, **{key: os.path.relpath(files[key], folder) for key in files}}
    overrides = rest.pop("overrides", {})
    lines.append(_dumped(rest).rstrip())
    fitted = {each.key for each in made.figures}
    kept = [f"  {key}: {value!r}" for key, value in overrides.items() if key not in fitted]
    if kept or fitted:
        lines += ["overrides:", *kept]
    for each in made.figures:
        spread = f"+- {each.value * each.deviation:.2g}, {plural(each.num_points, 'point')}"
        comment = f"{spread}, {day.isoformat()}; {each.basis}: {each.catalog:g}"
        lines.append(f"  {each.key}: {each.value:.6g}  # {comment}")
    return "\n".join(lines) + "\n"


def machine_text(made: Calibration, command: str, day: str) -> str:
    """The file of a machine stated whole; how well the model follows it stands in comments."""
    lines = [f"# Written by `{one_line(command)}` of {day}; edit what is wrong."]
    lines += [
        f"#   {one_line(each.path)}: {each.num_points} x {each.kind}, mean error {each.after:.1%}"
        for each in made.own
    ]
    return "\n".join(lines) + "\n" + _dumped(made.base.raw)


def _dumped(raw: Mapping[str, Any]) -> str:
    text: str = yaml.dump(
        dict(raw),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        width=10_000,
        allow_unicode=True,
    )
    return text


class _Dumper(yaml.SafeDumper):
    """Figures on one line each, as hwdb has them, and no references."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:  # noqa: ANN401
        is_figure = isinstance(mapping, dict) and "value" in mapping
        return super().represent_mapping(tag, mapping, flow_style=is_figure or flow_style)


_Dumper.add_representer(
    dict, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data)
)
