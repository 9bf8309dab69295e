"""Whether a script starts one of the programs that are read: verl's and OpenRLHF's."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.verl.program import programs

ENDS = (".yaml", ".yml", ".json", ".toml", ".md", ".py")
"""Files that are none of the shell's."""


@dataclass(frozen=True, kw_only=True)
class Starts:
    """How scripts name a package's programs."""

    package: str
    """Which has the table of the programs."""
    mentions: tuple[str, ...]
    """A script without any of these starts none."""
    module: re.Pattern[str]
    """Of a word that names a program: its module's last part."""


VERL = Starts(
    package=__package__,
    mentions=("verl", "recipe"),
    module=re.compile(r"(?:verl|recipe)(?:[./]\w+)*[./](?!py\b)(\w+)(?:\.py)?(?![\w./])"),
)
OPENRLHF = Starts(
    package="planner.formats.openrlhf",
    mentions=("openrlhf",),
    module=re.compile(r"\Aopenrlhf(?:[./]\w+)*[./](train_\w+?)(?:\.py)?\Z"),
)


def is_started(source: SourceText, starts: Starts, read: Callable[[SourceText], object]) -> bool:
    """Whether a script names a program, outside comments, in a command that ``read`` takes."""
    is_other = source.path.lower().endswith(ENDS)
    if is_other or not any(each in source.text for each in starts.mentions):
        return False
    names = {name for each in programs(starts.package) for name in each.modules}
    lines = (line for line in source.text.splitlines() if not line.lstrip().startswith("#"))
    words = (word.strip("\"'") for line in lines for word in line.split())
    if not any(found[1] in names for word in words for found in starts.module.finditer(word)):
        return False
    try:
        read(source)
    except InputError:
        return False
    return True
