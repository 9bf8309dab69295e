"""A front end as a format: read, checked and repaired as TrainingArguments are, not written."""

from functools import partial
from typing import NoReturn

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Format
from planner.formats.front_ends.read import read, recognise
from planner.formats.front_ends.rules import RULES
from planner.formats.front_ends.tools import load_tool
from planner.formats.front_ends.write import write_into
from planner.formats.trainer.mapping import SUPPORT, engine, part
from planner.formats.trainer.rules import RULES as OF_TRAINER
from planner.spec.strategy import Strategy
from planner.spec.training import MODES

NOT_HERE = (
    "mesh_is_no_mapping",
    "checkpointing_by_its_new_name",
    "fsdp_config_is_used",
    "fsdp2_is_used",
)
"""Rules of TrainingArguments of which a front end takes care itself."""


def front_end(name: str) -> Format:
    """The format of a program that hands its files to Trainer."""
    tool = load_tool(name)
    left = (*NOT_HERE, *(("optim_known",) if tool.optimizers else ()))
    return Format(
        name=name,
        title=tool.title,
        framework="accelerate",
        versions=tool.versions,
        emit=partial(_refuse, tool.program),
        recognise=partial(recognise, tool=tool),
        read=partial(read, tool=tool),
        rules=RULES.get(name, ()),
        borrowed={"trainer": tuple(rule for rule in OF_TRAINER if rule.name not in left)},
        is_written=False,
        trains=MODES,
        write_into=partial(write_into, tool=tool),
        part=part,
        engine=engine,
        support=SUPPORT,
    )


def _refuse(program: str, _context: Context, _strategy: Strategy) -> NoReturn:
    message = f"files of {program} are read, checked and repaired, not written"
    raise ExpressError(f"{message}; trainer writes the TrainingArguments behind them")
