"""What reports say about a rule, wherever it comes from."""

from pathlib import Path

import pytest

from planner.check.result import UNREADABLE
from planner.formats.format import SEVERITIES, Format
from planner.query.values import OWN, describe
from planner.search.space.legality import RULES


def test_own_rules_say_something_and_have_a_family() -> None:
    assert UNREADABLE in OWN
    for name, rule in OWN.items():
        assert rule.description.endswith(".")
        assert rule.severity in SEVERITIES
        assert name.count(".") == 1
        assert describe(name) == rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_of_the_search_bring_their_words(rule: object) -> None:
    name = f"legality.{rule.name}"  # type: ignore[attr-defined]
    assert describe(name).description == " ".join(rule.message.split())  # type: ignore[attr-defined]


def test_a_rule_of_a_format_brings_severity_and_source(demo_format: Format) -> None:
    info = describe("demo.log_every_is_positive")
    assert info.description == "Log every is positive"
    assert (info.severity, info.source) == ("warning", "demo/log.py")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("demo.unknown_key", "Every key"),
        ("other.some_thing", "Some thing"),
        ("bare", "Bare"),
    ],
)
def test_a_rule_of_every_reader_is_described_or_has_its_own_words(rule: str, words: str) -> None:
    assert describe(rule).description.startswith(words)


def test_the_page_names_every_own_rule_or_its_family() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "check.md").read_text(encoding="utf-8")
    families = {name: f"`{name.partition('.')[0]}.*`" for name in OWN}
    assert not [n for n, family in families.items() if f"`{n}`" not in page and family not in page]
