"""The format ``verl``: read and checked; a command's options are for its user to change."""

from collections.abc import Mapping
from typing import NoReturn

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Format, SourceText, Value
from planner.formats.settings import given
from planner.formats.verl.program import ENGINE, MEGATRON, NAME
from planner.formats.verl.read import read, recognise
from planner.formats.verl.rules import RULES
from planner.spec.strategy import Strategy
from planner.spec.training import MODES


def _refuse(_context: Context, _strategy: Strategy) -> NoReturn:
    raise ExpressError("scripts that start verl are read and checked, not written")


def _leave(source: SourceText, _context: Context, _strategy: Strategy) -> NoReturn:
    raise ExpressError(f"{source.path}: the overrides of a command are for you to change")


def _engine(settings: Mapping[str, Value]) -> str | None:
    """Megatron where it trains; else transformers' models under FSDP, as Accelerate runs them."""
    return MEGATRON if given(settings, ENGINE) == MEGATRON else None


FORMAT = Format(
    name=NAME,
    title="a script that starts verl's trainers with overrides",
    framework="accelerate",
    versions="verl 0.8.0.dev, January 2026",
    emit=_refuse,
    recognise=recognise,
    read=read,
    rules=tuple(RULES),
    is_written=False,
    trains=MODES,
    write_into=_leave,
    engine=_engine,
)
