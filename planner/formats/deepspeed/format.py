"""The format ``deepspeed``: a JSON file for deepspeed.initialize, and its launcher's hostfile."""

from planner.formats.deepspeed.decisions import problems
from planner.formats.deepspeed.emit import emit, write_into
from planner.formats.deepspeed.hostfile import HOSTFILE
from planner.formats.deepspeed.read import read, recognise
from planner.formats.deepspeed.rules import RULES
from planner.formats.format import Format

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
