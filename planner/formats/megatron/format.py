"""The format ``megatron``: Megatron-LM's argument list, launch scripts and YAML files."""

from planner.formats.format import Format
from planner.formats.megatron.emit import TITLE, emit
from planner.formats.megatron.entries import FORMAT as NAME
from planner.formats.megatron.read import read, recognise
from planner.formats.megatron.reasons import SCHEDULE, problems
from planner.formats.megatron.rules import RULES
from planner.formats.megatron.write import write_into

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
