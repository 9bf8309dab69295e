"""The format ``bridge``: recipe overrides of Megatron-Bridge."""

from planner.formats.bridge.emit import TITLE, emit, problems, write_into
from planner.formats.bridge.read import NAME, read, recognise
from planner.formats.bridge.rules import RULES
from planner.formats.format import Format
from planner.formats.megatron.decisions_layout import SCHEDULE

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
    trains=("full", "lora"),
    support={"megatron": {"schedules": (SCHEDULE,)}},
)
