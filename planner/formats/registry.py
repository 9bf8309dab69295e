"""Finds the formats of configuration files.

One per folder with a module ``format.py``, and one per table of a front end.
"""

from functools import cache
from importlib import import_module, resources

from planner.errors import InputError
from planner.formats.format import Beside, Format, SourceText
from planner.formats.front_ends.tools import tool_names
from planner.spec.traits import FrameworkTraits


@cache
def format_names() -> tuple[str, ...]:
    """Names of all formats, sorted; none is imported."""
    folder = resources.files("planner.formats")
    own = (entry.name for entry in folder.iterdir() if entry.joinpath("format.py").is_file())
    return tuple(sorted((*own, *tool_names())))


@cache
def load_format(name: str) -> Format:
    """Return a format by name; InputError where there is none."""
    if name not in format_names():
        allowed = ", ".join(format_names())
        raise InputError.single("command line", name, f"unknown format; allowed are {allowed}")
    if name in tool_names():
        from planner.formats.front_ends.made import front_end

        return front_end(name)
    found: Format = import_module(f"planner.formats.{name}.format").FORMAT
    return found


def written_names() -> tuple[str, ...]:
    """Names of the formats that plans are written in."""
    return tuple(name for name in format_names() if load_format(name).is_written)


def format_of(traits: FrameworkTraits) -> Format:
    """The framework's own format; where its files cannot say what is trained, one that can."""
    own, mode = load_format(traits.name), traits.training.mode
    if mode in own.trains:
        return own
    others = map(load_format, written_names())
    can = (each for each in others if each.framework == traits.name and mode in each.trains)
    return next(can, own)


def recognised(source: SourceText) -> list[Format]:
    """All formats that take the file for theirs."""
    return [each for each in map(load_format, format_names()) if each.recognise(source)]


def recognised_beside(source: SourceText) -> tuple[Format, Beside] | None:
    """The file that a launcher takes beside a configuration, and whose it is."""
    found = ((kind, each) for kind in map(load_format, format_names()) for each in kind.beside)
    return next(((kind, each) for kind, each in found if each.recognise(source)), None)
