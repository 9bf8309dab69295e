"""The options of Megatron-LM 0.19.2 by name, and values of the right kind for them.

``options.csv`` is written by scripts/megatron_options.py from Megatron-LM's own parser.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.spelling import did_you_mean

SettingValue = bool | int | float | str | tuple[int | float | str, ...]
MAX_DIGITS = 15
"""Of a number in a file; more is no setting of a training job."""
OWN_SCRIPTS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py", "train_rl.py")
"""Scripts of Megatron-LM that add no options of their own."""
_NUMBERS: Mapping[str, type[int] | type[float]] = {"int": int, "float": float}
_WITHOUT_VALUE = ("flag", "off", "bool")
_NUMBER_LIKE = re.compile(r"-\d+$|-\d*\.\d+$")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option as the parser knows it."""

    name: str
    kind: str
    """``flag`` sets, ``off`` clears, ``bool`` has a ``--no-`` twin, else int, float or str."""
    nargs: str
    """Empty: one value; ``+`` one or more, ``*`` any number, else how many."""
    choices: tuple[str, ...]
    dest: str
    default: str

    @property
    def takes_values(self) -> bool:
        """Whether words after the option belong to it."""
        return self.kind not in _WITHOUT_VALUE


@cache
def load_options() -> dict[str, Option]:
    """All options by name, with the dashes."""
    path = resources.files("planner.formats.megatron").joinpath("options.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {
        row["option"]: Option(
            name=row["option"],
            kind=row["kind"],
            nargs=row["nargs"],
            choices=tuple(row["choices"].split()),
            dest=row["dest"],
            default=row["default"],
        )
        for row in rows
    }


@cache
def options_by_dest() -> dict[str, Option]:
    """Options by the attribute they set; of several the first by name."""
    return {option.dest: option for option in reversed(load_options().values())}


def is_own_script(path: str) -> bool:
    """Whether a training script is one of Megatron-LM's, or its name is not known."""
    name = path.rpartition("/")[2]
    return not name.endswith(".py") or name in OWN_SCRIPTS


def is_option(word: str) -> bool:
    """Whether the parser takes a word for an option and not for a value."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER_LIKE.match(word)


def unknown_option(name: str) -> str:
    """What is wrong with an option that is none, with the nearest known one."""
    hint = did_you_mean(name[:100], load_options())
    return f"unknown option; {hint}" if hint else "unknown option of Megatron-LM 0.19.2"


def typed(option: Option, words: Sequence[str]) -> SettingValue:
    """The value of an option from its words; ValueError says what is wrong."""
    if not option.takes_values:
        if words:
            raise ValueError(f"takes no value; given {_shown(words)}")
        return not option.name.startswith("--no-") if option.kind == "bool" else True
    _check_count(option, words)
    values = [_one(option, word) for word in words]
    return tuple(values) if option.nargs else values[0]


def _check_count(option: Option, words: Sequence[str]) -> None:
    wanted = {"": "1", "+": "1 or more", "*": "any number"}.get(option.nargs, option.nargs)
    given = len(words)
    is_right = {"": given == 1, "+": given >= 1, "*": True}.get(
        option.nargs, option.nargs == str(given)
    )
    if not is_right:
        raise ValueError(f"takes {wanted} of {option.kind}; given {_shown(words)}")


def _one(option: Option, word: str) -> int | float | str:
    if option.choices and word not in option.choices:
        allowed = ", ".join(option.choices)
        raise ValueError(f"unknown value; given {word[:60]!r}, allowed are {allowed}")
    if option.kind not in _NUMBERS:
        return word
    try:
        if sum(map(str.isdigit, word)) > MAX_DIGITS and option.kind == "int":
            raise ValueError
        return _NUMBERS[option.kind](word)
    except ValueError:
        raise ValueError(f"must be a number ({option.kind}); given {word[:60]!r}") from None


def _shown(words: Sequence[str]) -> str:
    return " ".join(words)[:60] or "none"
