"""The page of both formats names every key that carries a decision."""

from pathlib import Path

import pytest

from planner.formats.accelerate import mapping as accelerate
from planner.formats.accelerate.rows import Section
from planner.formats.decision import UNCHANGED
from planner.formats.registry import load_format
from planner.formats.trainer import mapping as trainer

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats" / "hugging-face.md"


@pytest.mark.parametrize("sections", [accelerate.SECTIONS, trainer.SECTIONS])
def test_every_key_that_carries_a_decision_is_named(sections: tuple[Section, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [row for section in sections for row in section.table]
    owned = {key for row in rows for key in row.keys if row.off.get(key) is not UNCHANGED}
    assert owned
    assert [key for key in sorted(owned) if key.rpartition(".")[2] not in page] == []


@pytest.mark.parametrize("name", ["accelerate", "trainer"])
def test_no_two_rules_have_one_name(name: str) -> None:
    names = [rule.name for rule in load_format(name).rules]
    assert len(names) == len(set(names))
