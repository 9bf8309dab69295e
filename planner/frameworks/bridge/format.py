"""The format ``bridge``: recipe overrides of Megatron-Bridge."""

from planner.frameworks.bridge.emit import TITLE, emit, problems
from planner.frameworks.bridge.read import NAME, read, recognise
from planner.frameworks.bridge.rules import RULES
from planner.frameworks.bridge.write import write_into
from planner.frameworks.format import Format
from planner.frameworks.megatron.reasons import SCHEDULE

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
