"""The format ``nemo``: read, checked and repaired; plans are written for its successor."""

from typing import NoReturn

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Format
from planner.formats.megatron.decisions_layout import SCHEDULE
from planner.formats.nemo.keys import NAME
from planner.formats.nemo.read import read, recognise
from planner.formats.nemo.rules import RULES
from planner.formats.nemo.write import write_into
from planner.spec.strategy import Strategy


def _refuse(_context: Context, _strategy: Strategy) -> NoReturn:
    raise ExpressError("NeMo's YAML is read, checked and repaired; --format bridge writes a plan")


FORMAT = Format(
    name=NAME,
    title="YAML of NeMo 1.x for its Megatron language models",
    framework="megatron",
    versions="NeMo 1.9 to 2.0, its launcher up to 24.12",
    emit=_refuse,
    recognise=recognise,
    read=read,
    rules=RULES,
    is_written=False,
    write_into=write_into,
    support={"megatron": {"schedules": (SCHEDULE,)}},
)
