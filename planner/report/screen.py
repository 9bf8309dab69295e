"""The screen: what a file says is shown, and moves no cursor."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from planner.limits import printable


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


def plain_table(*titles: str, gap: int = 2, shows_header: bool = True) -> Table:
    """A table without lines, ``gap`` characters between its columns."""
    return Table(
        *titles,
        box=None,
        padding=(0, gap, 0, 0),
        pad_edge=False,
        header_style="bold",
        show_header=shows_header,
    )
