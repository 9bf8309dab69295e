"""The format ``megatron``: Megatron-LM's argument list and launch scripts."""

from planner.formats.format import Format
from planner.formats.megatron.decisions import problems
from planner.formats.megatron.decisions_layout import SCHEDULE
from planner.formats.megatron.emit import TITLE, emit, write_into
from planner.formats.megatron.read import FORMAT as NAME
from planner.formats.megatron.read import read, recognise
from planner.formats.megatron.rules import RULES

FORMAT = Format(
    name=NAME,
    title=TITLE,
    framework="megatron",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
    support={"megatron": {"schedules": (SCHEDULE,)}},
)
