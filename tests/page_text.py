"""A page read by the standard library's parser: what it holds, and what it would load."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
LOADING = ("src", "href", "xlink:href", "data", "action", "poster", "srcset")
"""Attributes whose value a browser may fetch."""


@dataclass
class Page:
    """Elements, texts and addresses of a page."""

    tags: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)  # Cells of every line of every table
    text: str = ""  # Without scripts and styles
    styles: str = ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page, self.open = Page(), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.page.rows.append([])
        if tag in ("td", "th"):
            self.page.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._seen(tag, attrs)

    def _seen(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append(tag)
        for name, value in attrs:
            self.page.attributes.append(name)
            if name == "id":
                self.page.ids.append(value or "")
            if name in LOADING:
                self.page.addresses.append(value or "")
            if name == "style":
                self.page.styles += value or ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.page.styles += data
            return
        self.page.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.page.rows[-1][-1] += data


def read_page(text: str) -> Page:
    """Parse a page; AssertionError where elements do not nest."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open, f"{reader.open} stay open"
    return reader.page
