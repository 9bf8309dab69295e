"""The page on torchtitan's format lists its rules."""

from pathlib import Path

from planner.formats.torchtitan.format import FORMAT

PAGE = Path(__file__).parents[4] / "docs" / "formats" / "torchtitan.md"


def test_the_page_lists_every_rule_with_its_source() -> None:
    section = PAGE.read_text().split("## Rules")[1].split("\n\n")[1]
    wanted = [
        f"| {rule.name} | {'refuses' if rule.enforced else 'misses it'} | {rule.source} |"
        for rule in FORMAT.rules
    ]
    assert section.splitlines()[2:] == wanted
