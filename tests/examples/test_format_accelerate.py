"""Every rule of accelerate and trainer has a file that breaks it alone, and one without fault."""

from pathlib import Path

import pytest
import yaml

from planner.frameworks.format import Format, Reading, SourceText, World
from planner.frameworks.formats import load_format

ROOT = Path(__file__).parent / "formats"
NAMES = ("accelerate", "trainer")
RULES = [(name, rule.name) for name in NAMES for rule in load_format(name).rules]


def example(name: str, rule: str, which: str) -> Path:
    """``refused`` or ``accepted``, whatever it ends with."""
    (found,) = (ROOT / name / rule).glob(f"{which}.*")
    return found


def world_of(folder: Path, reading: Reading) -> World:
    path = folder / "world.yaml"
    given = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    decisions = {key: value.value for key, value in reading.decisions.items()}
    return World(
        num_gpus=given.get("num_gpus", decisions.get("num_gpus", 8)),
        decisions=decisions | given.get("decisions", {}),
        environment=given.get("environment", {}),
        accelerator=given.get("accelerator", ""),
    )


def broken_rules(chosen: Format, path: Path) -> tuple[Reading, set[str]]:
    reading = chosen.read(SourceText(path=path.name, text=path.read_text(encoding="utf-8")))
    world = world_of(path.parent, reading)
    found = {rule.name for rule in chosen.rules if list(rule.check(reading.settings, world))}
    return reading, found


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_the_refused_file_breaks_its_rule_alone(name: str, rule: str) -> None:
    _, broken = broken_rules(load_format(name), example(name, rule, "refused"))
    assert broken == {rule}


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_the_accepted_file_breaks_none_and_has_no_findings(name: str, rule: str) -> None:
    path = example(name, rule, "accepted")
    reading, broken = broken_rules(load_format(name), path)
    assert broken == set()
    assert reading.findings == ()
    assert load_format(name).recognise(SourceText(path=path.name, text=path.read_text()))


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_a_rule_says_which_key_and_what_is_allowed(name: str, rule: str) -> None:
    chosen = load_format(name)
    path = example(name, rule, "refused")
    reading = chosen.read(SourceText(path=path.name, text=path.read_text(encoding="utf-8")))
    (one,) = (each for each in chosen.rules if each.name == rule)
    for found in one.check(reading.settings, world_of(path.parent, reading)):
        assert found.key
        assert len(found.message) > 10
    assert one.source
    assert one.check.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_every_example_belongs_to_a_rule(name: str) -> None:
    folders = {path.name for path in (ROOT / name).iterdir()}
    assert folders == {rule.name for rule in load_format(name).rules}
