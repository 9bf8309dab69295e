"""The format ``trainer``."""

from planner.formats.format import Format
from planner.formats.trainer.emit import emit, write_into
from planner.formats.trainer.mapping import SUPPORT, engine, part, problems
from planner.formats.trainer.read import launched, read, recognise
from planner.formats.trainer.rules import RULES
from planner.spec.training import MODES

FORMAT = Format(
    name="trainer",
    title="Hugging Face TrainingArguments in JSON or YAML",
    framework="accelerate",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    part=part,
    engine=engine,
    launched=launched,
    problems=problems,
    support=SUPPORT,
    trains=MODES,
    takes_adapters=True,
)
