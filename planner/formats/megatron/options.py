"""The options of Megatron-LM 0.19.2 by name, and values of the right kind for them.

``schema.json`` is written by scripts/megatron_options.py from Megatron-LM's own parser: attributes
of its arguments and configuration, each with the options that set it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from planner.documents.schema import Schema, load_schema
from planner.spelling import did_you_mean

VERSION = "0.19.2"
SettingValue = bool | int | float | str | tuple[int | float | str, ...]
MAX_DIGITS = 15
"""Of a number in a file; more is no setting of a training job."""
OWN_SCRIPTS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py", "train_rl.py")
"""Scripts of Megatron-LM that add no options of their own."""
_KINDS = {"integer": "int", "number": "float"}
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
    """The attribute it sets."""
    default: str

    @property
    def takes_values(self) -> bool:
        """Whether words after the option belong to it."""
        return self.kind not in _WITHOUT_VALUE


def _settings() -> Mapping[str, Schema]:
    found: Mapping[str, Schema] = load_schema(__package__)["properties"]
    return found


@cache
def load_options() -> dict[str, Option]:
    """All options by name, with the dashes, in order of the names."""
    found = {
        name: _option(name, attribute, entry)
        for attribute, entry in _settings().items()
        for name in entry.get("options", ())
    }
    return dict(sorted(found.items()))


def _option(name: str, attribute: str, entry: Schema) -> Option:
    is_list = "array" in entry.get("type", ())
    own = entry["items"] if is_list else entry
    return Option(
        name=name,
        kind=_kind(own, entry["options"]),
        nargs=_nargs(entry) if is_list else "",
        choices=tuple(str(each) for each in own.get("enum", ()) if each is not None),
        dest=attribute,
        default=str(entry.get("default", "")),
    )


def _kind(entry: Schema, options: Mapping[str, bool | None]) -> str:
    kinds = entry.get("type", ())
    kind = kinds if isinstance(kinds, str) else next(iter(kinds), "")
    if kind != "boolean":
        return _KINDS.get(kind, "str")
    values = set(options.values())
    return "bool" if len(values) > 1 else "flag" if True in values else "off"


def _nargs(entry: Schema) -> str:
    return str(entry.get("maxItems", "+" if "minItems" in entry else "*"))


@cache
def options_by_dest() -> dict[str, Option]:
    """Options by the attribute they set; of several the first by name."""
    return {option.dest: option for option in reversed(load_options().values())}


@cache
def field_names() -> frozenset[str]:
    """Attributes of the model's configuration that no option sets."""
    return frozenset(name for name, entry in _settings().items() if "options" not in entry)


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
    return f"unknown option; {hint}" if hint else f"unknown option of Megatron-LM {VERSION}"


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
