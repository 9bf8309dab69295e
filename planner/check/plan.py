"""A plan file under check: recognised, read, every key with its line."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.check.result import finding_of
from planner.documents.tree import parsed_yaml
from planner.errors import InputError, unknown
from planner.formats import registry as formats
from planner.formats.format import Finding, Located, SourceText
from planner.query.from_file import AUTO
from planner.query.values import Locations

if TYPE_CHECKING:
    from planner.query.layout import Layout

PLAN = "plan"


def check_format_name(name: str) -> None:
    """Raise InputError where there is no format of this name."""
    known = (AUTO, PLAN, *formats.format_names())
    if name not in known:
        raise InputError.single("command line", "--framework", unknown("format", name, known))


def is_plan_file(source: SourceText, framework: str = AUTO) -> bool:
    """Return True if a file is a plan: by the framework, or by its keys where that is auto."""
    if framework != AUTO:
        return framework == PLAN
    # Only a plan file has all of them.
    keys = ("schema_version", "inputs", "strategy")
    return all(re.search(rf"^{key}\s*:", source.text, re.MULTILINE) for key in keys)


def read_plan_layout(
    source: SourceText, cluster: str | None
) -> tuple["Layout | None", tuple[Finding, ...], str, str]:
    """The layout of a plan, what is wrong, its model and cluster; ``cluster`` replaces its own."""
    from planner.answers.plan_file import InputsPart, StrategyPart, read_plan
    from planner.query.layout import Layout

    lines = key_lines(source)
    try:
        context, strategy, file = read_plan(Path(source.path), cluster=cluster)
    except InputError as error:
        found = (finding_of(problem, source.path, rule="plan.valid") for problem in error.problems)
        return None, tuple(_placed(finding, lines) for finding in found), "", cluster or ""
    keys = {name: f"inputs.{name}" for name in InputsPart.model_fields}
    keys |= {name: f"strategy.{name}" for name in StrategyPart.model_fields}
    places = {name: Located(key=key, line=lines[key]) for name, key in keys.items() if key in lines}
    layout = Layout(
        context=replace(context, margin_fraction=0.0),
        strategy=strategy,
        places=Locations(path=source.path, of=places),
    )
    return layout, (), file.inputs.model, cluster or file.inputs.cluster


def _placed(finding: Finding, lines: dict[str, int]) -> Finding:
    """The finding with the line of its key, or of the nearest section around it."""
    key = finding.key
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return finding if finding.line or not key else replace(finding, line=lines[key])


def key_lines(source: SourceText) -> dict[str, int]:
    """The line of every key by its dotted path; raises InputError where the text is no YAML."""
    return {
        ".".join(name for name in path if isinstance(name, str)): entry.line
        for path, entry in parsed_yaml(source.path, source.text).entries.items()
        if isinstance(path[-1], str)
    }
