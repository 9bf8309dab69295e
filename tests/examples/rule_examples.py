"""The example files of formats' rules: two of each, and the world they run in.

``world.yaml`` beside them says on how many GPUs and for which model, for both or for each kind.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.formats.format import (
    CheckContext,
    Format,
    FormatRule,
    ParsedConfig,
    Violation,
    read_source,
)

FORMATS = Path(__file__).parent / "formats"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One file of a rule, read."""

    path: Path
    reading: ParsedConfig
    world: CheckContext

    def broken_by(self, rule: FormatRule) -> list[Violation]:
        """How the file breaks a rule."""
        return list(rule.check(self.reading.settings, self.world))

    def broken(self, form: Format) -> set[str]:
        """Names of all rules it breaks."""
        return {rule.name for rule in form.rules if self.broken_by(rule)}


def rule_names(name: str) -> list[str]:
    """Rules that have a folder of examples."""
    return sorted(folder.name for folder in (FORMATS / name).iterdir())


def judged(form: Format) -> list[Any]:
    """Every example by rule and kind, and whether the framework's own start refuses it."""
    return [
        pytest.param(rule.name, kind, kind == "refused" and rule.enforced, id=f"{rule.name}-{kind}")
        for rule in form.rules
        for kind in ("accepted", "refused")
    ]


def load_example(form: Format, rule: str, kind: str) -> Example:
    """The ``refused`` or ``accepted`` file of a rule."""
    folder = FORMATS / form.name / rule
    (path,) = folder.glob(f"{kind}.*")
    reading = form.read(read_source(path))
    beside = folder / "world.yaml"
    given = yaml.safe_load(beside.read_text(encoding="utf-8")) if beside.exists() else {}
    given = given.get(kind, given)
    decisions = {name: value.value for name, value in reading.decisions.items()}
    world = CheckContext(
        num_gpus=given.get("num_gpus") or decisions.get("num_gpus") or 8,
        decisions=decisions | given.get("decisions", {}),
        environment=given.get("environment", {}),
        vendor=given.get("vendor", ""),
    )
    return Example(path=path, reading=reading, world=world)
