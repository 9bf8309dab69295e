"""The format ``deepspeed``: a JSON file for deepspeed.initialize, and its launcher's hostfile."""

from planner.frameworks.deepspeed.emit import emit, write_into
from planner.frameworks.deepspeed.express import problems
from planner.frameworks.deepspeed.hostfile import HOSTFILE
from planner.frameworks.deepspeed.read import read, recognise
from planner.frameworks.deepspeed.rules import RULES
from planner.frameworks.format import Format

FORMAT = Format(
    name="deepspeed",
    title="DeepSpeed JSON",
    framework="deepspeed",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    beside=(HOSTFILE,),
    problems=problems,
    script_recomputes=True,
)
