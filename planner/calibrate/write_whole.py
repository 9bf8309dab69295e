"""Cluster files of what was measured, as text."""

from collections.abc import Mapping
from typing import Any

import yaml

from planner.calibrate.state import Whole
from planner.limits import one_line


def whole_text(made: Whole, command: str) -> str:
    """The cluster file; what the model makes of the measurements stands in comments."""
    date = made.table.machine.date
    lines = [f"# Written by `{one_line(command)}` of {date}; edit what is wrong."]
    lines += [
        f"#   {one_line(each.path)}: {each.num_points} x {each.kind}, mean error {each.after:.1%}"
        for each in made.own
    ]
    return "\n".join(lines) + "\n" + dumped(made.base.raw)


def dumped(raw: Mapping[str, Any]) -> str:
    """A cluster file's data as YAML, each figure on a line."""
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
    """Figures on one line each, as hwdb has them."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:  # noqa: ANN401
        is_figure = isinstance(mapping, dict) and "value" in mapping
        return super().represent_mapping(tag, mapping, flow_style=is_figure or flow_style)


_Dumper.add_representer(
    dict, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data)
)
