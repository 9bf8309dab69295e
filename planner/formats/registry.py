"""Finds the formats of configuration files.

One per folder with a module ``format.py``, and one per table of a front end.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module, resources
from typing import Any

from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.errors import InputError
from planner.formats.format import Format, Hosts, Located, ParsedConfig, SourceText
from planner.formats.trainer.keys import load_tool, tool_names

# Front ends whose files are another program's arguments.
_MODULES = {"megatron-swift": "trainer.megatron"}


@cache
def format_names() -> tuple[str, ...]:
    """Names of all formats, sorted; none is imported."""
    folder = resources.files("planner.formats")
    formats = (each for each in folder.iterdir() if each.joinpath("format.py").is_file())
    return tuple(sorted([*tool_names(), *(each.name for each in formats)]))


@cache
def load_format(name: str) -> Format:
    """Return a format by name; InputError where there is none."""
    if name not in format_names():
        allowed = ", ".join(format_names())
        raise InputError.single(
            "command line",
            name,
            f"unknown format; allowed are {allowed}",
        )
    if name in tool_names() and name not in _MODULES:
        from planner.formats.trainer.format import front_end

        return front_end(name)
    module = import_module(f"planner.formats.{_MODULES.get(name, f'{name}.format')}")
    found: Format = module.FORMAT
    return found


def written_names() -> tuple[str, ...]:
    """Names of the formats that plans are written in."""
    return tuple(name for name in format_names() if load_format(name).is_written)


def format_for(context: Context) -> Format:
    """The framework's own format; where its files cannot say a plan, one that can."""
    name, mode = context.traits.name, context.traits.training.mode
    own = load_format(name)
    if mode in own.trains and not any(own.refused(context)):
        return own
    formats = (own, *map(load_format, written_names()))
    able = [each for each in formats if each.framework == name and mode in each.trains]
    fitting = (each for each in able if not any(each.refused(context)))
    return next(fitting, [*able, own][0])


def words_file(source: SourceText) -> str:
    """The file whose words a script reads, ``eval "words=($(< FILE))"``; empty: none."""
    # Kubernetes writes $$ for $.
    found = re.search(r"=\(\${1,2}\(<\s*([\w.-]+)\s*\)\)", source.text)
    return found[1] if found else ""


def _of_frameworks(source: SourceText) -> list[Format]:
    """Formats of no front end that a file may be in."""
    # Scripts and TOML are never JSON; loading their formats would take a tenth of a check.
    others = ("bridge", "megatron", "torchtitan") if source.path.endswith(".json") else ()
    return [load_format(name) for name in format_names() if name not in (*others, *tool_names())]


def recognised(source: SourceText) -> list[Format]:
    """All formats that take the file for theirs; none of a script whose words stand elsewhere."""
    from planner.formats.trainer.format import recognise

    if words_file(source):
        return []
    found = [each for each in _of_frameworks(source) if each.recognise(source)]
    # Tables tell files of front ends, of which one loads Megatron's format.
    found += [load_format(name) for name in tool_names() if recognise(source, load_tool(name))]
    return sorted(found, key=lambda each: each.name)


def hosts_in(source: SourceText) -> tuple[Format, Hosts] | None:
    """Read a launcher's hostfile: the format it belongs to, and its hosts; None if it is none."""
    for kind in _of_frameworks(source):
        if hosts := kind.hosts(source):
            return kind, hosts
    return None


def programs() -> tuple[Mapping[str, Any], ...]:
    """Programs that are not covered, a row of ``programs.yaml`` each."""
    return tuple(load_own(__package__, "programs.yaml"))


def program_of(source: SourceText) -> Mapping[str, Any] | None:
    """The program that is not covered whose configuration a file is; None: none that is known."""
    # They are named lest their files are taken for something else.
    for each in programs():
        ends, holds = tuple(each["ends"]), each["holds"]
        if source.path.lower().endswith(ends) and re.search(holds, source.text, re.MULTILINE):
            return each
    return None


def own_texts(table: str, name: str) -> Mapping[str, str]:
    """A format's texts of a table.

    ``left_open``: what is left to its user, and the keys for it. ``not_priced``: keys that change
    memory or time beside what plans price, and how; under ``.idle`` the keys that undo that.
    """
    return dict(load_own(__package__, f"{table}.yaml").get(name, {}))


def not_priced(reading: ParsedConfig) -> tuple[Located, str] | None:
    """Place of the first setting that plans do not price, and a note on all of them; else None."""
    table, off = own_texts("not_priced", reading.format), ("false", "0", "0.0", "none", "null")
    idle = own_texts("not_priced", f"{reading.format}.idle")
    found = [
        (place, table[key])
        for key, place in reading.settings.items()
        if key in table
        and str(place.value).lower() not in off
        and reading.settings.keys().isdisjoint(idle.get(key, "").split())
    ]
    named = ", ".join(f"{place.key} ({what})" for place, what in found)
    return (found[0][0], f"not priced: {named}") if found else None
