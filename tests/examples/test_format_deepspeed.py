"""Two files for every rule of DeepSpeed files: one breaks exactly that rule, one breaks none.

``world.yaml`` beside them says on how many GPUs and for which model; without it, 8 GPUs.
"""

from pathlib import Path

import pytest
import yaml

from planner.frameworks.format import Format, FormatRule, Reading, SourceText, World
from planner.frameworks.formats import load_format

FOLDER = Path(__file__).parent / "formats" / "deepspeed"
FORMAT: Format = load_format("deepspeed")
RULES = [rule.name for rule in FORMAT.rules]


def world_of(name: str) -> World:
    path = FOLDER / name / "world.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return World(**{"num_gpus": 8, "decisions": {}, **content})


def read(name: str, kind: str) -> Reading:
    path = FOLDER / name / f"{kind}.json"
    source = SourceText(path=str(path), text=path.read_text(encoding="utf-8"))
    assert FORMAT.recognise(source) or name == "batch_size_given"
    return FORMAT.read(source)


def broken_rules(name: str, kind: str) -> list[str]:
    reading, world = read(name, kind), world_of(name)
    decisions = {key: value.value for key, value in reading.decisions.items()}
    world = World(num_gpus=world.num_gpus, decisions={**decisions, **world.decisions})
    return [rule.name for rule in FORMAT.rules if list(rule.check(reading.settings, world))]


def test_every_rule_has_its_examples_and_every_example_a_rule() -> None:
    assert sorted(RULES) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", RULES)
def test_the_refused_file_breaks_that_rule_alone(name: str) -> None:
    assert broken_rules(name, "refused") == [name]


@pytest.mark.parametrize("name", RULES)
def test_the_accepted_file_breaks_none(name: str) -> None:
    assert broken_rules(name, "accepted") == []


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", ["refused", "accepted"])
def test_rules_are_broken_by_known_keys_with_good_values(name: str, kind: str) -> None:
    assert read(name, kind).findings == ()


@pytest.mark.parametrize("rule", FORMAT.rules, ids=RULES)
def test_a_broken_rule_says_what_is_allowed(rule: FormatRule) -> None:
    reading, world = read(rule.name, "refused"), world_of(rule.name)
    for broken in rule.check(reading.settings, world):
        assert any(word in broken.message for word in ("given", "allowed", "needed", "neither"))
        assert broken.key
