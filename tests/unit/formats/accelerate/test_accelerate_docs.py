"""The pages of both formats name every rule and every key that carries a decision."""

from pathlib import Path

import pytest

from planner.formats.accelerate import mapping as accelerate
from planner.formats.accelerate.rows import Section
from planner.formats.decision import UNCHANGED
from planner.formats.registry import load_format
from planner.formats.trainer import mapping as trainer

DOCS = Path(__file__).resolve().parents[4] / "docs" / "formats"


def rules_table(name: str) -> list[str]:
    """Rows of the table of rules, as the page must hold them."""
    rows = []
    for rule in load_format(name).rules:
        claim = " ".join((rule.check.__doc__ or "").split())
        by = "yes" if rule.enforced else "no"
        rows.append(f"| `{rule.name}` | {rule.severity} | {claim} | {by} | {rule.source} |")
    return rows


@pytest.mark.parametrize("name", ["accelerate", "trainer"])
def test_the_table_of_rules_is_that_of_the_code(name: str) -> None:
    lines = (DOCS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `") and line.count("|") == 6]
    assert rows == rules_table(name)


@pytest.mark.parametrize(
    ("name", "sections"), [("accelerate", accelerate.SECTIONS), ("trainer", trainer.SECTIONS)]
)
def test_every_key_that_carries_a_decision_is_named(
    name: str, sections: tuple[Section, ...]
) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    rows = [row for section in sections for row in section.table]
    owned = {key for row in rows for key in row.keys if row.off.get(key) is not UNCHANGED}
    assert owned
    assert [key for key in sorted(owned) if key.rpartition(".")[2] not in page] == []


@pytest.mark.parametrize("name", ["accelerate", "trainer"])
def test_no_two_rules_have_one_name(name: str) -> None:
    names = [rule.name for rule in load_format(name).rules]
    assert len(names) == len(set(names))
