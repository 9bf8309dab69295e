"""Pages of docs/: the prose is theirs, the tables between markers are made here."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DATA = ROOT / "tests" / "validation"
MARKED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, the first column to the left, the others to the right."""
    rule = ["---" if index == 0 else "---:" for index in range(len(titles))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (titles, rule, *rows))


def places(page: str) -> list[str]:
    """Names of the generated parts of a page, in order."""
    return [match[2] for match in MARKED.finditer(page)]


def filled(path: Path, parts: Mapping[str, Callable[[], str]]) -> str:
    """The page with its generated parts anew; ValueError where one has no place, or no maker."""
    page = path.read_text(encoding="utf-8")
    if places(page) != list(parts):
        raise ValueError(f"{path.name} must hold the parts {', '.join(parts)}")
    return MARKED.sub(lambda match: f"{match[1]}{parts[match[2]]()}\n{match[3]}", page)
