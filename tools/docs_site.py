"""What mkdocs.yml builds from docs/ beyond the pages as they stand: a hook of MkDocs.

Anchors are those of GitHub, files beside docs/ that readers ask for are pages, links to other files
of the repository become plain text, and a code block that is a file shows its name.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "agents.md": "skills/planner/SKILL.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "hardware-catalog.md": "hwdb/README.md",
    "recipe-catalog.md": "hwdb/recipes/README.md",
}
"""Pages of the site that lie beside docs/, and their files."""
PAGE_OF = {file: page for page, file in OUTSIDE.items()}
CODE_OR_LINK = re.compile(
    r"```.*?^```|`[^`\n]*`|\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)
FILE_BLOCK = re.compile(r"^```(\w+) +(\S+)$", re.MULTILINE)
ELSEWHERE = ("http://", "https://", "mailto:", "#")


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def for_site(markdown: str, page: str) -> str:
    """The text of a page of the site, its links as the site has them."""
    folder = posixpath.dirname(OUTSIDE.get(page, f"docs/{page}"))

    def moved(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or target.startswith(ELSEWHERE):
            return match[0]
        name, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(folder, name))
        found = PAGE_OF.get(file) or (file[5:] if file.startswith("docs/") else "")
        if not found:
            return match["text"]
        link = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"[{match['text']}]({link}{'#' * bool(anchor)}{anchor})"

    return FILE_BLOCK.sub(r'```\1 title="\2"', CODE_OR_LINK.sub(moved, markdown))


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Anchors as on GitHub."""
    config.mdx_configs["toc"]["slugify"] = lambda heading, _separator: slug(heading)
    return config


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages from beside docs/."""
    from mkdocs.structure.files import File

    for page, file in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(
    markdown: str,
    page: "Page",
    config: "MkDocsConfig",  # noqa: ARG001
    files: "Files",  # noqa: ARG001
) -> str:
    """Text as the site needs it."""
    return for_site(markdown, page.file.src_uri)
