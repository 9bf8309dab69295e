"""The pages of Megatron's formats list every rule as the code has it."""

from pathlib import Path

import pytest

from planner.formats.registry import load_format

DOCS = Path(__file__).parents[4] / "docs" / "formats"


@pytest.mark.parametrize("name", ["megatron", "bridge"])
def test_the_page_lists_every_rule(name: str) -> None:
    rows = [
        f"| `{rule.name}` | {'yes' if rule.enforced else 'no'} | {rule.source} |"
        for rule in load_format(name).rules
    ]
    table = "\n".join(["| rule | refused at the start | source |", "|---|---|---|", *rows])
    assert table in (DOCS / f"{name}.md").read_text(encoding="utf-8")
