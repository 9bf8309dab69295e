"""The format ``torchtitan``: command-line words of release 0.3."""

from planner.frameworks.format import Format
from planner.frameworks.torchtitan.emit import emit, problems
from planner.frameworks.torchtitan.read import NAME, read, recognise
from planner.frameworks.torchtitan.rules import RULES
from planner.frameworks.torchtitan.write_into import write_into

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
