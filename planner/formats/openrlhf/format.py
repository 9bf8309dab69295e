"""The format ``openrlhf``: read and checked; a command's options are for its user to change."""

from typing import NoReturn

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Format, SourceText
from planner.formats.openrlhf.read import NAME, read, recognise
from planner.formats.openrlhf.rules import RULES
from planner.spec.strategy import Strategy


def _refuse(_context: Context, _strategy: Strategy) -> NoReturn:
    raise ExpressError("scripts that start OpenRLHF are read and checked, not written")


def _leave(source: SourceText, _context: Context, _strategy: Strategy) -> NoReturn:
    raise ExpressError(f"{source.path}: the options of a command are for you to change")


FORMAT = Format(
    name=NAME,
    title="a script that starts OpenRLHF's trainers",
    framework="deepspeed",
    versions="OpenRLHF 0.11, August 2026, and options of 0.6 to 0.9",
    emit=_refuse,
    recognise=recognise,
    read=read,
    rules=tuple(RULES),
    is_written=False,
    write_into=_leave,
)
