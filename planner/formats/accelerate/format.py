"""The format ``accelerate``."""

from planner.formats.accelerate.decisions import SUPPORT, engine, part, problems
from planner.formats.accelerate.emit import emit, write_into
from planner.formats.accelerate.read import read, recognise
from planner.formats.accelerate.rules import RULES
from planner.formats.format import Format
from planner.spec.training import MODES

FORMAT = Format(
    name="accelerate",
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
    trains=MODES,
    takes_adapters=True,
)
