"""The documentation's site: links and anchors lead where the repository's lead."""

import re

import pytest
import yaml

from tools.docs_site import OUTSIDE, ROOT, for_site, slug


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("README.md", "[a](emit.md)", "[a](emit.md)"),
        ("README.md", "[a](emit.md#plan-file)", "[a](emit.md#plan-file)"),
        ("README.md", "[a](../CONTRIBUTING.md#add)", "[a](contributing.md#add)"),
        ("formats/megatron.md", "[a](../fine-tuning.md#files)", "[a](../fine-tuning.md#files)"),
        ("contributing.md", "[a](docs/extending.md#a-rule)", "[a](extending.md#a-rule)"),
        ("hardware-catalog.md", "[a](recipes/README.md)", "[a](recipe-catalog.md)"),
        ("extending.md", "[`a`](../planner/formats/format.py)", "`a`"),
        ("emit.md", "![a](report.png)", "![a](report.png)"),
        ("how-it-works/time.md", "[a](https://example.org/../b)", "[a](https://example.org/../b)"),
        ("how-it-works/time.md", "[a](#mfu)", "[a](#mfu)"),
        ("how-it-works/time.md", "`[a](../planner/b.py)`", "`[a](../planner/b.py)`"),
    ],
)
def test_a_link_leads_to_the_same_file_from_the_site(page: str, link: str, there: str) -> None:
    assert for_site(link, page) == there


@pytest.mark.parametrize(
    ("block", "there"),
    [
        ("```text\n[a](../planner/b.py)\n```\n", "```text\n[a](../planner/b.py)\n```\n"),
        ("```yaml my.yaml\na: 1\n```\n", '```yaml title="my.yaml"\na: 1\n```\n'),
        ("```yaml\na: 1\n```\n", "```yaml\na: 1\n```\n"),
    ],
)
def test_a_block_keeps_its_text_and_shows_the_name_of_its_file(block: str, there: str) -> None:
    assert for_site(block, "how-it-works/time.md") == there


def test_files_from_beside_docs_are_there() -> None:
    assert slug("What does `--save` write?") == "what-does---save-write"  # as GitHub has it
    assert [file for file in OUTSIDE.values() if not (ROOT / file).is_file()] == []


def test_the_site_loads_nothing_from_elsewhere() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert "://" not in text
    assert yaml.safe_load(text)["theme"]["font"] is False


def test_every_page_has_a_place_in_the_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert isinstance(site["validation"]["nav"], dict)
    listed = re.findall(r"[\w/-]+\.md", str(site["nav"]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted({*pages, *OUTSIDE})
