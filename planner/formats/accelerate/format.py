"""The format ``accelerate``."""

from planner.formats.accelerate.emit import emit, write_into
from planner.formats.accelerate.read import NAME, engine, part, read, recognise
from planner.formats.accelerate.rules import RULES
from planner.formats.accelerate.sections import SUPPORT, problems
from planner.formats.format import Format

FORMAT = Format(
    name=NAME,
    title="Hugging Face Accelerate, configuration file in YAML",
    framework="accelerate",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    part=part,
    engine=engine,
    problems=problems,
    script_recomputes=True,
    support=SUPPORT,
)
