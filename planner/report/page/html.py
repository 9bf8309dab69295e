"""HTML from parts: text is escaped, what was made here is not escaped again."""

from collections.abc import Iterable, Sequence
from html import escape

from planner.limits import printable


class Html(str):
    """Markup that was made here."""

    __slots__ = ()


def escaped(part: str) -> Html:
    """A part as markup: text has its special and control characters escaped."""
    return part if isinstance(part, Html) else Html(escape(printable(part)))


def joined(parts: Iterable[str]) -> Html:
    """Parts one after the other, a line each."""
    return Html("\n".join(map(escaped, parts)))


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element; ``kind`` is its class, underscores in names of attributes are hyphens."""
    names = {"kind": "class"}
    words = "".join(
        f' {names.get(key, key).replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{words}>{''.join(map(escaped, children))}</{name}>")


def section(title: str, *children: str) -> Html:
    """A part of the page under its heading."""
    return element("section", element("h2", title), joined(children))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Html:
    """A table whose first ``left`` columns are words, the others numbers."""

    def line(cells: Sequence[str], name: str) -> Html:
        kinds = ("word" if place < left else "number" for place in range(len(cells)))
        return element(
            "tr", *(element(name, cell, kind=kind) for cell, kind in zip(cells, kinds, strict=True))
        )

    body = joined(line(row, "td") for row in rows)
    filled = element("table", element("thead", line(head, "th")), element("tbody", body))
    return element("div", filled, kind="scroll")


def facts(rows: Iterable[tuple[str, str]]) -> Html:
    """Names and what they are."""
    return element(
        "dl", *(element("div", element("dt", name), element("dd", text)) for name, text in rows)
    )


def folded(title: str, *children: str) -> Html:
    """What a reader opens when it is wanted; printed it is open."""
    return element("details", element("summary", title), joined(children))
