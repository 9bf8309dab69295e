"""The format ``megatron``: Megatron-LM's argument list, launch scripts and YAML files."""

from planner.frameworks.format import Format
from planner.frameworks.megatron.emit import TITLE, emit
from planner.frameworks.megatron.entries import FORMAT as NAME
from planner.frameworks.megatron.read import read, recognise
from planner.frameworks.megatron.reasons import SCHEDULE, problems
from planner.frameworks.megatron.rules import RULES
from planner.frameworks.megatron.write import write_into

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
