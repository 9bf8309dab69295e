"""A plan file under check: recognised, read, every key with its line."""

import re
from dataclasses import replace
from pathlib import Path

from planner.check.layout import Layout, Place, Places
from planner.check.result import finding_of
from planner.documents.tree import parsed_yaml
from planner.errors import InputError
from planner.formats.finding import Finding
from planner.formats.format import SourceText
from planner.plans.plan_file import InputsPart, StrategyPart, read_plan

NAME = "plan"
_KEYS = tuple(
    re.compile(rf"^{key}\s*:", re.MULTILINE) for key in ("schema_version", "inputs", "strategy")
)


def is_plan(source: SourceText) -> bool:
    """Whether a text has the three keys that only a plan file has."""
    return all(key.search(source.text) for key in _KEYS)


def read_plan_layout(
    source: SourceText, cluster: str | None
) -> tuple[Layout | None, tuple[Finding, ...], str, str]:
    """The layout of a plan, what is wrong with the file, and its model and cluster by name.

    ``cluster`` stands in place of the file's own. Raises InputError where it is no YAML.
    """
    lines = key_lines(source)
    try:
        context, strategy, file = read_plan(Path(source.path), cluster=cluster)
    except InputError as error:
        found = (finding_of(problem, source.path, rule="plan.valid") for problem in error.problems)
        return None, tuple(placed(finding, lines) for finding in found), "", cluster or ""
    places = {name: Place(key=key, line=lines.get(key, 0)) for name, key in _decisions().items()}
    places = {name: place for name, place in places.items() if place.line}
    layout = Layout(
        context=replace(context, margin_fraction=0.0),
        strategy=strategy,
        places=Places(path=source.path, of=places),
    )
    return layout, (), file.inputs.model, cluster or file.inputs.cluster


def _decisions() -> dict[str, str]:
    """Keys of the file by the decisions they state."""
    names = {name: f"inputs.{name}" for name in InputsPart.model_fields}
    return names | {name: f"strategy.{name}" for name in StrategyPart.model_fields}


def placed(finding: Finding, lines: dict[str, int]) -> Finding:
    """The finding with the line of its key, or of the nearest section around it."""
    key = finding.key
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return finding if finding.line or not key else replace(finding, line=lines[key])


def key_lines(source: SourceText) -> dict[str, int]:
    """The line of every key by its dotted path; raises InputError where the text is no YAML."""
    lines: dict[str, int] = {}
    for path, entry in parsed_yaml(source.path, source.text).entries.items():
        if isinstance(path[-1], str):
            lines[".".join(name for name in path if isinstance(name, str))] = entry.line
    return lines
