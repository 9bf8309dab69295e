"""The format ``torchtitan``: command-line words of release 0.3; older TOML files are read."""

from planner.formats.format import Format
from planner.formats.torchtitan.emit import emit, problems, write_into
from planner.formats.torchtitan.keys import NAME
from planner.formats.torchtitan.read import read, recognise
from planner.formats.torchtitan.rules import RULES

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
