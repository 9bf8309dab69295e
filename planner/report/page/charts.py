"""Charts as inline SVG whose colours are the page's, light or dark.

Matplotlib is optional (``pip install 'parallel-planner[plot]'``) and is loaded only here.
"""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from planner.report.page.html import Html, element, escaped
from planner.report.plot import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OPTION = "report"
"""What needs the library."""
INK = "ink"
ROLES = (
    INK,
    "paper",
    *("forward", "backward", "recompute", "weight", "gather", "host", "transfer"),
    *("tensor", "context", "expert"),
    *(
        "tail",
        "wait",
        "weights",
        "gradients",
        "optimizer",
        "buffers",
        "outputs",
        "activations",
        "transient",
    ),
    *("limit", "accent", "rule"),
)
"""Colours by what they stand for, as the style sheet names them."""
COLOURS: Mapping[str, str] = {role: f"#0a{place:02x}f1" for place, role in enumerate(ROLES)}
"""What matplotlib is told in their place: no two alike, none that it would use by itself."""
WIDTH_INCHES = 10.0
FONT_POINTS = 9.0
LEGEND_COLUMNS = 5
ONE_LINE = 6
_UNUSED = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_OPENING = re.compile(r'<svg[^>]*?(viewBox="[^"]*")[^>]*>')
_IDS = re.compile(r'(\bid="|url\(#|xlink:href="#)')


def style() -> AbstractContextManager[None]:
    """How all charts of a page are drawn; InputError where matplotlib is missing."""
    ink = COLOURS[INK]
    settings = {
        "font.size": FONT_POINTS,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "planner",
    }
    context: AbstractContextManager[None] = library("matplotlib", OPTION).rc_context(settings)
    return context


def figure(height_inches: float) -> "Figure":
    """An empty figure as wide as the page."""
    made: Figure = library("matplotlib.figure").Figure(
        figsize=(WIDTH_INCHES, height_inches), layout="constrained"
    )
    return made


def rectangles(axes: "Axes", spans: Sequence[tuple[float, float, float, float]], role: str) -> None:
    """Rectangles (left, right, bottom, top) of one colour, as a single path."""
    if not spans:
        return
    paths = library("matplotlib.path").Path
    corners = [
        point
        for left, right, bottom, top in spans
        for point in ((left, bottom), (left, top), (right, top), (right, bottom), (left, bottom))
    ]
    codes = [paths.MOVETO, paths.LINETO, paths.LINETO, paths.LINETO, paths.CLOSEPOLY] * len(spans)
    patch = library("matplotlib.patches").PathPatch(
        paths(corners, codes), facecolor=COLOURS[role], linewidth=0.0
    )
    axes.add_patch(patch)


def legend(drawn: "Figure", titles: Mapping[str, str]) -> None:
    """A legend of colours below the figure: title by role."""
    patches = library("matplotlib.patches")
    handles = [
        patches.Patch(facecolor=COLOURS[role], label=title) for role, title in titles.items()
    ]
    columns = len(handles) if len(handles) <= ONE_LINE else LEGEND_COLUMNS
    drawn.legend(handles=handles, loc="outside lower left", fontsize=8.0, ncols=columns)


def drawn_svg(drawn: "Figure", name: str, *, title: str, caption: str) -> Html:
    """The figure as an element of the page; ``name`` tells its ids from other figures'."""
    picture = io.StringIO()
    drawn.savefig(picture, format="svg", transparent=True, metadata={"Date": None})
    text = _UNUSED.sub("", picture.getvalue())
    text = _OPENING.sub(rf'<svg role="img" aria-label="{escaped(title)}" \1>', text, count=1)
    text = _IDS.sub(rf"\g<1>{name}-", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, "currentColor" if role == INK else f"var(--{role})")
    return element("figure", Html(text), element("figcaption", caption))
