"""One description of a table: for the terminal, as CSV and for HTML.

A column says of a row what stands in its cell, so one list of columns serves every output.
"""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from planner.limits import printable

R = TypeVar("R")


class Screen(Console):
    """A console on which control characters of names and texts stand escaped."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is shown."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def drawn(screen: Callable[..., None], width: int) -> str:
    """Render a screen as text of a given width, without colours."""
    text = io.StringIO()
    console = Screen(
        width=width,
        file=text,
        color_system=None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    screen(console=console)
    return text.getvalue()


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column: its title and what it says of a row."""

    title: str
    cell: str | Callable[[R], str]  # the name of a row's field, or what makes the text
    right: bool = True
    wraps: bool = False  # a long text takes several lines; else it is cut where space lacks
    spare: int = 0  # 0: always shown; where space lacks, the largest is left out first

    def text(self, row: R) -> str:
        """What stands in the cell of a row."""
        cell = self.cell
        return str(attrgetter(cell)(row)) if isinstance(cell, str) else cell(row)


@dataclass(frozen=True)
class Table(Generic[R]):
    """Rows and the columns that describe them."""

    rows: Sequence[R]
    columns: Sequence[Column[R]]
    title: str = ""
    style: Callable[[R], str] | None = None  # of a row in the terminal

    def cells(self) -> list[list[str]]:
        """The texts of all cells, row by row."""
        return [[column.text(row) for column in self.columns] for row in self.rows]


def differing(columns: Sequence[Column[R]], rows: Sequence[R]) -> list[Column[R]]:
    """The columns in which rows differ."""
    return [column for column in columns if len({column.text(row) for row in rows}) > 1]


def fitting_table(table: Table[R], width: int) -> RichTable:
    """The table for a terminal of this width: spare columns leave, then columns stand closer."""
    # These would rather stand close, or wrap, than be left out.
    matters = [column for column in table.columns if column.spare <= 2]
    # Close columns and wrapped ones are harder to read: only where one that matters would leave.
    for gap, may_wrap in ((2, False), (1, False), (1, True)):
        # Spare ones are left out in turn, and before a text that matters is cut into words.
        kept = list(matters if may_wrap else table.columns)
        while _total(kept, table.rows, gap, may_wrap=may_wrap) > width:
            spare = max(kept, key=lambda column: column.spare)
            if not spare.spare:
                break
            kept.remove(spare)
        if all(column in kept for column in matters):
            break
    return _drawn(replace(table, columns=kept), gap)


def _drawn(table: Table[R], gap: int) -> RichTable:
    """A table without lines, ``gap`` characters between its columns."""
    made = RichTable(
        title=table.title or None,
        title_justify="left",
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style="bold",
        show_header=any(column.title for column in table.columns),
    )
    for column in table.columns:
        made.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row, cells in zip(table.rows, table.cells(), strict=True):
        style = table.style(row) if table.style else None
        # Text, not str: square brackets of names are no markup.
        made.add_row(*(Text(cell) for cell in cells), style=style)
    return made


def _total(
    columns: Sequence[Column[R]],
    rows: Sequence[R],
    gap: int,
    *,
    may_wrap: bool,
) -> int:
    """Characters of a row: of columns the longest lines, or the longest words where they wrap."""
    total = gap * (len(columns) - 1)
    for column in columns:
        texts = [column.title, *(column.text(row) for row in rows)]
        lines = [line for text in texts for line in text.split("\n")]
        if may_wrap and column.wraps:
            lines = [word for line in lines for word in line.split()]
        total += max(map(len, lines), default=0)
    return total


def text_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> Table[Sequence[str]]:
    """A table of texts; the first column and those titled ``left`` are words, which wrap."""
    words = [place == 0 or title in left for place, title in enumerate(titles)]
    columns = [
        Column[Sequence[str]](title, itemgetter(place), right=not words[place], wraps=words[place])
        for place, title in enumerate(titles)
    ]
    return Table(list(rows), columns)


def pairs(rows: Iterable[tuple[str, str]]) -> Table[Sequence[str]]:
    """Table of names and values, without headings."""
    return text_table(("", ""), rows, left=("",))


ON_SCREEN = 20  # lines of a text that is long


def whole(text: str, style: str = "") -> Text:
    """A line that is neither wrapped nor cut: a path, or a command to be pasted."""
    return Text(text, style, no_wrap=True)


Part = RenderableType | Table[Any]


def show(console: Console, *parts: Part) -> None:
    """Print the parts of a screen, one below the other; empty texts are left out."""
    for part in parts:
        if part == "":
            continue
        drawn = fitting_table(part, console.width) if isinstance(part, Table) else part
        drawn = Text(drawn) if isinstance(drawn, str) else drawn  # brackets are no markup
        console.print(drawn, soft_wrap=isinstance(drawn, Text) and bool(drawn.no_wrap))


def show_first(console: Console, most: int | None, *parts: Part) -> None:
    """Print the first lines of the parts, as many as fit a screen, and how to see the others."""
    if most is None:
        show(console, *parts)
        return
    with console.capture() as captured:
        show(console, *parts)
    lines = captured.get().splitlines(keepends=True)
    console.file.write("".join(lines[:most]))
    if len(lines) > most:
        show(console, Text(f"--all shows {len(lines) - most} more lines.", "dim"))


def csv_text(rows: Iterable[Mapping[str, object]], names: Sequence[str]) -> str:
    """Rows of data as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
