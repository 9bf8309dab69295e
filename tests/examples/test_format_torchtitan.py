"""Every rule of torchtitan's format has a file that breaks it, and one that does not."""

from pathlib import Path

import pytest
import yaml

from planner.frameworks.format import Reading, SourceText, World
from planner.frameworks.torchtitan.format import FORMAT

FOLDER = Path(__file__).parent / "formats" / "torchtitan"
RULES = {rule.name: rule for rule in FORMAT.rules}


def example(rule: str, kind: str) -> tuple[Reading, World]:
    path = FOLDER / rule / f"{kind}.args"
    world_path = FOLDER / rule / "world.yaml"
    given = yaml.safe_load(world_path.read_text()) if world_path.exists() else {}
    given = given.get(kind, given)
    world = World(num_gpus=given.get("num_gpus", 8), decisions=given.get("decisions", {}))
    return FORMAT.read(SourceText(path=str(path), text=path.read_text())), world


def broken(reading: Reading, world: World) -> list[str]:
    return [name for name, rule in RULES.items() if list(rule.check(reading.settings, world))]


def test_every_rule_has_its_folder() -> None:
    assert sorted(each.name for each in FOLDER.iterdir()) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_refused_example_breaks_exactly_its_rule(rule: str) -> None:
    reading, world = example(rule, "refused")
    assert not reading.findings
    assert broken(reading, world) == [rule]
    (first, *_) = RULES[rule].check(reading.settings, world)
    assert first.key.startswith(("--", "activation-checkpoint:"))
    assert first.message.isprintable()


@pytest.mark.parametrize("rule", RULES)
def test_the_accepted_example_breaks_no_rule(rule: str) -> None:
    reading, world = example(rule, "accepted")
    assert not reading.findings
    assert broken(reading, world) == []
