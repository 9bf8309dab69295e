"""The format ``trainer``."""

from planner.formats.format import Format
from planner.formats.trainer.emit import emit, write_into
from planner.formats.trainer.read import NAME, engine, part, read, recognise
from planner.formats.trainer.rules import RULES
from planner.formats.trainer.sections import SUPPORT, problems

FORMAT = Format(
    name=NAME,
    title="Hugging Face TrainingArguments in JSON",
    framework="accelerate",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    part=part,
    engine=engine,
    problems=problems,
    support=SUPPORT,
)
