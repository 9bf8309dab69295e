"""The format ``trainer``."""

from planner.frameworks.format import Format
from planner.frameworks.trainer.emit import emit, write_into
from planner.frameworks.trainer.read import NAME, engine, part, read, recognise
from planner.frameworks.trainer.rules import RULES
from planner.frameworks.trainer.sections import SUPPORT, problems

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
