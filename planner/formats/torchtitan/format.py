"""The format ``torchtitan``: command-line words of release 0.3."""

from planner.formats.format import Format
from planner.formats.torchtitan.emit import emit, problems
from planner.formats.torchtitan.read import NAME, read, recognise
from planner.formats.torchtitan.rules import RULES
from planner.formats.torchtitan.write_into import write_into

FORMAT = Format(
    name=NAME,
    title="torchtitan 0.3 command-line words",
    framework="torchtitan",
    emit=emit,
    recognise=recognise,
    read=read,
    rules=RULES,
    write_into=write_into,
    problems=problems,
)
