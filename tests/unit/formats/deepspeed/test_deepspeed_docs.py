"""The page of the format, and what its rules and keys say of themselves."""

from pathlib import Path

from planner.documents.schema import entry_of
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.deepspeed.format import FORMAT
from planner.formats.deepspeed.keys import SCRIPT, schema

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats" / "deepspeed.md"


def test_every_rule_says_what_must_hold_and_where_that_is_known_from() -> None:
    assert all(rule.check.__doc__ and rule.source for rule in FORMAT.rules)
    assert len({rule.name for rule in FORMAT.rules}) == len(FORMAT.rules)


def test_every_key_of_the_block_for_the_script_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{key}`" in text for key in schema()["properties"][SCRIPT]["properties"])


def test_every_key_of_a_decision_is_known() -> None:
    keys = [key for row in TABLE for key in row.keys if "params" not in key]
    assert keys
    assert all(entry_of(schema(), tuple(key.split("."))) is not None for key in keys)
