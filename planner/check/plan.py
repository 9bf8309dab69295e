"""A plan file under check: recognised, read, every key with its line."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from planner.check.layout import Layout, Place, Places
from planner.check.result import finding_of
from planner.errors import InputError
from planner.frameworks.finding import Finding
from planner.frameworks.format import SourceText
from planner.plans.plan_file import InputsPart, StrategyPart, read_plan

NAME = "plan"
MAX_DEPTH = 16
_KEYS = tuple(
    re.compile(rf"^{key}\s*:", re.MULTILINE) for key in ("schema_version", "inputs", "strategy")
)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        return None, tuple(_placed(finding, lines) for finding in found), "", cluster or ""
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


def _placed(finding: Finding, lines: dict[str, int]) -> Finding:
    """The finding with the line of its key, or of the nearest section around it."""
    key = finding.key
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return finding if finding.line or not key else replace(finding, line=lines[key])


def key_lines(source: SourceText) -> dict[str, int]:
    """The line of every key by its dotted path.

    Raises InputError where the text is no YAML, is nested deeply, or refers to itself.
    """
    try:
        return dict(_lines(source))
    except yaml.MarkedYAMLError as error:
        last = source.text.count("\n") + 1
        line = min(error.problem_mark.line + 1, last) if error.problem_mark else 1
        raise InputError.single(source.path, f"line {line}", f"not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError.single(source.path, "file", f"not YAML: {error}") from None


def _lines(source: SourceText) -> Iterator[tuple[str, int]]:
    """Walk the events: nothing is built, so that aliases cannot multiply."""
    path: list[str | None] = []
    is_key: list[bool] = []
    for event in yaml.parse(source.text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            message = "a plan file has no aliases; given one"
            raise InputError.single(source.path, f"line {line}", message)
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(path) == MAX_DEPTH:
                message = f"a plan file has at most {MAX_DEPTH} levels"
                raise InputError.single(source.path, f"line {line}", message)
            path.append(None)
            is_key.append(isinstance(event, yaml.MappingStartEvent))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            path.pop()
            is_key.pop()
            _value_ends(path, is_key)
        elif isinstance(event, yaml.ScalarEvent) and path:
            if is_key[-1] and path[-1] is None:
                path[-1] = event.value
                yield ".".join(key for key in path if key is not None), line
            else:
                _value_ends(path, is_key)


def _value_ends(path: list[str | None], is_key: list[bool]) -> None:
    """After a value the next scalar of a mapping is a key again."""
    if path and is_key[-1]:
        path[-1] = None
