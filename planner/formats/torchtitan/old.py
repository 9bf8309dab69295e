"""Files for torchtitan before 0.3, which took its settings from TOML."""

import re

from planner.errors import InputError
from planner.formats.torchtitan.words import Words

OLD = (
    "is for torchtitan before 0.3, which took its settings from a TOML file; "
    "0.3 takes --module and --config, and options for what differs"
)
_SECTIONS = ("job", "model", "training")
_OPTION = re.compile(r"--job\.config[-_]file(=|$)")


def is_old(text: str) -> bool:
    """Whether a file is such a TOML file, by the sections all of them have."""
    return all(re.search(rf"(?m)^\[{name}\]\s*(#.*)?$", text) for name in _SECTIONS)


def refuse_old(path: str, found: Words) -> None:
    """Raise InputError where words, or a variable of torchtitan's script, name such a file."""
    named = any(_OPTION.match(word.text) for word in found.words)
    if named or (found.is_wrapped and "CONFIG_FILE" in found.environment):
        raise InputError.single(path, "file", OLD)
