"""Every rule of every format has a file that breaks it alone and one that breaks none.

Each is taken for a file of its own format, and of no other.
"""

import re
from pathlib import Path

import pytest
from rule_examples import FORMATS, load_example, rule_names

from planner.formats.format import DECISIONS, Format, FormatRule, read_source
from planner.formats.registry import format_names, load_format, recognised

RULES = [
    pytest.param(load_format(name), rule, id=f"{name}-{rule.name}")
    for name in format_names()
    for rule in load_format(name).rules
]


@pytest.mark.parametrize("name", format_names())
def test_every_rule_has_examples_and_every_example_a_rule(name: str) -> None:
    assert rule_names(name) == sorted(rule.name for rule in load_format(name).rules)


@pytest.mark.parametrize(("form", "rule"), RULES)
def test_the_refused_file_breaks_its_rule_alone_and_the_breach_says_where(
    form: Format, rule: FormatRule
) -> None:
    assert rule.source
    example = load_example(form, rule.name, "refused")
    assert not [each for each in example.reading.findings if each.severity == "error"]
    assert example.broken(form) == {rule.name}
    lines = example.path.read_text(encoding="utf-8").splitlines()
    for broken in example.broken_by(rule):
        assert len(broken.message) > 10
        assert broken.message.isprintable()
        assert broken.key
        line = example.reading.line_of(broken.key)
        name = re.compile(rf"(?<![\w-]){re.escape(broken.key.rpartition('.')[2])}(?![\w-])")
        named = [at for at, text in enumerate(lines, 1) if name.search(text.partition("#")[0])]
        assert line in named if named else line == 0


@pytest.mark.parametrize(("form", "rule"), RULES)
def test_the_accepted_file_breaks_no_rule(form: Format, rule: FormatRule) -> None:
    example = load_example(form, rule.name, "accepted")
    assert not [each for each in example.reading.findings if each.severity != "note"]
    assert set(example.reading.decisions) <= set(DECISIONS)
    assert example.broken(form) == set()


FILES = sorted(
    path
    for word in ("accepted", "refused")
    for path in FORMATS.glob(f"*/*/{word}*")
    if path.is_file()
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FORMATS)))
def test_an_example_is_recognised_as_its_format_only(path: Path) -> None:
    found = [each.name for each in recognised(read_source(path))]
    assert found == [path.relative_to(FORMATS).parts[0]]
