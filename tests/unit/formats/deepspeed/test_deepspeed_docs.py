"""The page of the format: its table of rules is the table of rules.

`python tests/unit/formats/deepspeed/test_deepspeed_docs.py` writes it anew.
"""

from pathlib import Path

from planner.documents.schema import entry_of
from planner.formats.deepspeed.decisions import TABLE
from planner.formats.deepspeed.format import FORMAT
from planner.formats.deepspeed.keys import SCRIPT, schema

PAGE = Path(__file__).resolve().parents[4] / "docs" / "formats" / "deepspeed.md"
START, END = "<!-- rules -->\n", "<!-- end -->\n"


def rules_table() -> str:
    lines = ["| rule | what must hold | refused by | severity |", "|---|---|---|---|"]
    for rule in FORMAT.rules:
        what = (rule.check.__doc__ or "").strip().rstrip(".")
        by = f"config: {rule.source}" if rule.enforced else rule.source
        lines.append(f"| `{rule.name}` | {what} | {by} | {rule.severity} |")
    return "\n".join(lines) + "\n"


def page_with_table(text: str) -> str:
    before, _, rest = text.partition(START)
    return f"{before}{START}{rules_table()}{END}{rest.partition(END)[2]}"


def test_the_table_of_rules_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with_table(text)


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


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
