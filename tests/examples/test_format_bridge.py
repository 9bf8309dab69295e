"""Every rule of Megatron-Bridge has a file that breaks it alone and one that breaks none."""

import pytest
from megatron_examples import load_example, rule_names

from planner.frameworks.format import FormatRule
from planner.frameworks.formats import load_format

BRIDGE = load_format("bridge")


def test_every_rule_has_examples() -> None:
    assert rule_names("bridge") == sorted(rule.name for rule in BRIDGE.rules)


@pytest.mark.parametrize("name", rule_names("bridge"))
def test_the_refused_file_breaks_the_rule_and_no_other(name: str) -> None:
    example = load_example(BRIDGE, name, "refused")
    assert not [each for each in example.reading.findings if each.severity == "error"]
    assert example.broken(BRIDGE) == {name}


@pytest.mark.parametrize("name", rule_names("bridge"))
def test_the_accepted_file_breaks_no_rule(name: str) -> None:
    example = load_example(BRIDGE, name, "accepted")
    assert not example.reading.findings
    assert example.broken(BRIDGE) == set()


@pytest.mark.parametrize("rule", BRIDGE.rules, ids=lambda rule: rule.name)
def test_a_breach_names_a_key_and_says_what_is_wrong(rule: FormatRule) -> None:
    example = load_example(BRIDGE, rule.name, "refused")
    for broken in rule.check(example.reading.settings, example.world):
        assert broken.key
        assert len(broken.message) > 10
