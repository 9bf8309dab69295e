"""Line charts: a picture with matplotlib, or characters in the terminal with plotext.

Both libraries are optional (``pip install 'parallel-planner[plot]'``) and are loaded only here.
"""

import importlib
import io
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from planner.errors import InputError
from planner.report.files import check_writable, write_atomically

OPTION, FILE_OPTION = "--plot", "--plot-file"
SUFFIXES = (".png", ".svg")
MARKERS = "*o+x#@%&^v<>=~$ABCDEFGH"
"""One character a line: told apart without colour."""
COLOURS = 10
"""Of matplotlib's cycle; from the eleventh line on markers and dashes differ."""
PICTURE_MARKERS = "os^D"
LINE_STYLES = ("-", "--", ":", "-.")
TERMINAL_COLUMNS = 100
TERMINAL_ROWS = 24
MAX_TICKS = 9
DOTS_PER_INCH = 150
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


@dataclass(frozen=True, kw_only=True)
class _Chart:
    """Points that can be drawn, and what is written around them."""

    series: Series
    title: str
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool


def library(name: str, option: str = OPTION, extra: str = "plot") -> ModuleType:
    """Import an optional library; InputError says of what option it is, and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "protobuf" if name.startswith("google.protobuf") else name.partition(".")[0]
        message = f"{package} is not installed; pip install 'parallel-planner[{extra}]'"
        raise InputError.single("command line", option, message) from error


def check_chart(path: Path | None, *, force: bool = False, beside_json: bool = False) -> None:
    """Raise InputError when no chart can be made for ``path``, before any long work starts."""
    if path is None and beside_json:
        message = f"draws where --format json writes; {FILE_OPTION} FILE draws beside it"
        raise InputError.single("command line", OPTION, message)
    if path is None:
        library("plotext")
        return
    if path.suffix.lower() not in SUFFIXES:
        given = f"given {path.suffix!r}" if path.suffix else "given none"
        message = f"unknown picture format, {given}; allowed are {', '.join(SUFFIXES)}"
        raise InputError.single(str(path), FILE_OPTION, message)
    check_writable(path, force=force, option=FILE_OPTION)
    library("matplotlib")


def line_chart(
    series: Series,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    path: Path | None = None,
    force: bool = False,
) -> None:
    """Draw the lines into ``path`` (.png or .svg), or into the terminal without one.

    Points that are not finite, or not positive on a logarithmic axis, are left out. Raises
    InputError for another suffix, an existing file without ``force``, a missing library.
    """
    check_chart(path, force=force)
    chart = _Chart(
        series={name: _drawable(points, log_x, log_y) for name, points in series.items()},
        title=title,
        x_label=x_label,
        y_label=y_label,
        log_x=log_x,
        log_y=log_y,
    )
    if path is None:
        sys.stdout.write(_terminal(chart) + "\n")
    else:
        write_atomically(path, _picture(chart, path.suffix[1:].lower()), option=FILE_OPTION)


def _drawable(
    points: tuple[Sequence[float], Sequence[float]], log_x: bool, log_y: bool
) -> tuple[list[float], list[float]]:
    """The points both of whose coordinates have a place on their axis."""
    kept = [
        (float(x), float(y))
        for x, y in zip(*points, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x) and (y > 0 or not log_y)
    ]
    return [x for x, _ in kept], [y for _, y in kept]


def short_number(value: float) -> str:
    """Whole numbers in full up to five digits, else three digits and a prefix: 350G, 0.00125."""
    if float(value).is_integer() and abs(value) < 1e5:
        return f"{value:.0f}"
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def log_ticks(values: Sequence[float]) -> list[float]:
    """The values themselves where they are few, else powers of ten (or of more) among them."""
    distinct = sorted(set(values))
    if len(distinct) <= MAX_TICKS:
        return distinct
    low, high = (math.log10(distinct[i]) for i in (0, -1))
    powers = range(math.ceil(low), math.floor(high) + 1)
    if len(powers) < 2:
        return distinct[:: -(-len(distinct) // MAX_TICKS)]
    return [10.0**power for power in powers[:: -(-len(powers) // MAX_TICKS)]]


def _terminal(chart: _Chart) -> str:
    """The chart in characters, as wide as the terminal."""
    plotext = library("plotext")
    columns, _ = shutil.get_terminal_size((TERMINAL_COLUMNS, TERMINAL_ROWS))
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plot_size(columns, TERMINAL_ROWS)
    for index, (name, (x, y)) in enumerate(chart.series.items()):
        if x:
            plotext.plot(x, y, label=name, marker=MARKERS[index % len(MARKERS)])
    for is_log, axis, pick in ((chart.log_x, "x", 0), (chart.log_y, "y", 1)):
        values = [value for points in chart.series.values() for value in points[pick]]
        if is_log and values:
            ticks = log_ticks(values)
            getattr(plotext, f"{axis}scale")("log")
            getattr(plotext, f"{axis}ticks")(ticks, [short_number(tick) for tick in ticks])
    plotext.title(chart.title)
    plotext.xlabel(chart.x_label)
    plotext.ylabel(chart.y_label)
    lines = plotext.uncolorize(plotext.build()).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _picture(chart: _Chart, kind: str) -> bytes:
    """The chart as PNG or SVG; the same chart gives the same bytes."""
    matplotlib = library("matplotlib")
    figures = library("matplotlib.figure")
    tickers = library("matplotlib.ticker")
    figure = figures.Figure(figsize=(8.0, 5.0), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.add_subplot()
    for index, (name, (x, y)) in enumerate(chart.series.items()):
        shape = PICTURE_MARKERS[index // COLOURS % len(PICTURE_MARKERS)]
        line = LINE_STYLES[index // COLOURS % len(LINE_STYLES)]
        colour = f"C{index % COLOURS}"
        axes.plot(x, y, color=colour, marker=shape, linestyle=line, markersize=3, label=name)
    for is_log, axis, pick in ((chart.log_x, "x", 0), (chart.log_y, "y", 1)):
        values = [value for points in chart.series.values() for value in points[pick]]
        if is_log and values:
            getattr(axes, f"set_{axis}scale")("log")
            ticks = log_ticks(values)
            getattr(axes, f"set_{axis}ticks")(ticks, [short_number(tick) for tick in ticks])
            getattr(axes, f"{axis}axis").set_minor_locator(tickers.NullLocator())
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, alpha=0.3)
    if any(x for x, _ in chart.series.values()):
        figure.legend(loc="outside right upper", fontsize="small")
    picture = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.hashsalt": "planner"}):
        figure.savefig(picture, format=kind, metadata=metadata)
    return picture.getvalue()
