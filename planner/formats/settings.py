"""Contents of a file's settings: values of a kind, decisions with their place, what is wrong.

Below them how the rules of a format are declared: a function each, with its source above it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod, wraps
from itertools import islice
from math import isfinite, prod
from typing import Any, Generic, TypeAlias, TypeVar

from planner.documents.tree import Duplicate, load_own
from planner.expr import Functions, Names
from planner.formats.format import CheckContext, Finding, FormatRule, Located, Severity, Violation

Settings = Mapping[str, Located]
# As str_to_bool of accelerate/utils/environment.py takes them.
_FLAGS = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), True),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), False),
}


def model_named(name: str, place: Located) -> Located | None:
    """The catalog's model that a config or a recipe of this name trains; None where unknown."""
    table: Mapping[str, str] = load_own(__package__, "named_models.yaml")
    fits = [key for key in table if f"{name}_".startswith(f"{key}_")]
    return replace(place, value=table[max(fits, key=len)]) if fits else None


def as_flag(value: object) -> bool | None:
    """True or false, by any word for it; None where it is neither."""
    return _FLAGS.get(str(value).lower())


def is_on(value: object) -> bool:
    """Return True unless a value is none, empty, or a word for false."""
    return value not in (None, "", [], {}) and as_flag(value) is not False


def as_whole(value: object) -> int | None:
    """A whole number of at most 18 digits, as such, as ``5e8`` or in quotes; None for others."""
    # Longer numbers are no setting, and a million digits would take minutes to read.
    if isinstance(value, bool) or len(str(value)) > 18:
        return None
    if isinstance(value, float) and isfinite(value):
        return int(value) if value == int(value) else None
    try:
        return int(str(value))
    except ValueError:
        return None


def as_number(value: object) -> float | None:
    """A number; None for anything else, a number in quotes too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def as_counts(value: object) -> tuple[int | None, ...] | None:
    """Whole numbers of a list; None where it is none, or one is not whole."""
    counts = tuple(map(as_whole, value)) if isinstance(value, list) else (None,)
    return None if None in counts else counts


def as_texts(value: object) -> tuple[str, ...] | None:
    """Words of a list; None where it is none, or has others."""
    texts = tuple(value) if isinstance(value, list) else (None,)
    return texts if all(isinstance(each, str) for each in texts) else None


def given(settings: Settings, key: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """The value of a key, None where it is not there."""
    found = settings.get(key)
    return None if found is None else found.value


def whole(settings: Settings, key: str, default: int) -> int:
    """A whole number of the file, its default where it is missing or none."""
    found = as_whole(given(settings, key))
    return default if found is None else found


def flag(settings: Settings, key: str, *, default: bool = False) -> bool:
    """A flag of the file, its default where it is missing or neither true nor false."""
    found = as_flag(given(settings, key))
    return default if found is None else found


def word(settings: Settings, key: str, default: str = "") -> str:
    """A word of the file, its default where it is missing or null."""
    value = given(settings, key)
    return default if value is None else str(value)


def decided(settings: Settings, key: str, value: object) -> Located:
    """A decision with the place of the key it comes from, line 0 where that is missing."""
    return replace(settings.get(key, Located(key=key)), value=value)


def path_of(settings: Settings, key: str) -> tuple[str, ...]:
    """Return the path of a key, present or not, as the file spells what there is of it."""
    head, rest = key, tuple[str, ...]()
    while head and head not in settings:
        head, _, name = head.rpartition(".")
        rest = (name, *rest)
    above = settings[head].key.split(".") if head else []
    return (*above, *rest)


def one_of(words: Iterable[str]) -> str:
    """The words a message allows."""
    return f"allowed are {', '.join(words)}"


def finding_at(
    rule: str, path: str, place: Located, message: str, severity: Severity = "error"
) -> Finding:
    """A finding about a key, by the name of its rule with the format before it."""
    return Finding(
        rule=rule, severity=severity, message=message, path=path, key=place.key, line=place.line
    )


def repeated_keys(
    rule: str, path: str, duplicates: Iterable[Duplicate], says: str
) -> Iterator[Finding]:
    """Findings about keys that stand twice; ``says`` may name the ``first`` line."""
    for each in duplicates:
        key = ".".join(map(str, each.path))
        yield finding_at(
            rule, path, Located(key=key, line=each.line), says.format(first=each.first_line)
        )


# What is wrong, in words, by whether it is so.
Refused: TypeAlias = Mapping[str, object]
# Keys in full, with what is wrong, what was given, and what is allowed.
Violations: TypeAlias = Iterator[tuple[str, str]]


def which(refused: Refused) -> Iterator[str]:
    """Return the texts whose condition is true."""
    return (text for text, is_so in refused.items() if is_so)


def first_of(refused: Refused) -> Refused:
    """Keep only the first condition that holds: later ones follow from it."""
    return dict.fromkeys(islice(which(refused), 1), True)


@dataclass(frozen=True, kw_only=True)
class ConfigView:
    """A file as rules ask about it."""

    settings: Settings
    world: CheckContext = CheckContext(num_gpus=0, decisions={})  # noqa: RUF009 - frozen
    unresolved: set[str] = field(default_factory=set)
    """Keys that were asked for whose value the file leaves open; what rests on it is not said."""

    def named(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """Value of a name in conditions: an attribute of the view, else a setting."""
        return getattr(self, name) if name in dir(self) else self.setting(name)

    def setting(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of a key that conditions name so.

        ``has_`` before it: if it is given; ``model.``, ``seq_len``: a size of model or job.
        """
        key = name.removeprefix("has_")
        if name.startswith("has_"):
            return key in self.settings
        is_decided = key == "seq_len" or key.startswith("model.")
        return self.decided(key) if is_decided else self[key]

    def decided(self, name: str) -> int:
        """A number that the file or the model decides; 0: not known."""
        return as_whole(self.world.decisions.get(name)) or 0

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of a key, None where it is not there."""
        return given(self.settings, key)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return True if a flag is on."""
        return flag(self.settings, key, default=default)

    def whole(self, key: str, default: int = 1) -> int:
        """A whole number, or its default."""
        return whole(self.settings, key, default)

    def word(self, key: str, default: str = "") -> str:
        """A word, or its default."""
        return word(self.settings, key, default)

    @property
    def num_gpus(self) -> int:
        """Processes in all."""
        return self.world.num_gpus

    def spelled(self, key: str) -> str:
        """A key as the file spells it."""
        return self.settings[key].key if key in self.settings else key


class Whole:
    """A whole number of a view's file; where it is missing or smaller, the default."""

    def __init__(self, key: str, default: int = 1) -> None:
        self.key, self.default = key, default

    def __get__(self, file: ConfigView, _: type) -> int:
        """The number."""
        return max(file.whole(self.key, self.default), self.default)


# Conditions of data files have words for the kinds of values.
FUNCTIONS: Functions = {
    "any": any,
    "counts": as_counts,
    "len": len,
    "list": list,
    "min": min,
    # Words that are none of a list in words.
    "others": lambda words, known: tuple(each for each in words if each not in known.split(", ")),
    "product": lambda sizes: prod(map(int, sizes)),
    "on": is_on,
    "flag": as_flag,
    "whole": as_whole,
    "number": as_number,
    "lower": lambda value: str(value).lower(),
    "text": lambda value: value if isinstance(value, str) else None,
    "str": str,
    "sum": sum,
}
View = TypeVar("View", bound=ConfigView)
Check: TypeAlias = Callable[[View], Violations | Refused]


class Rules(list[FormatRule], Generic[View]):
    """Rules in the order they are written: called with a source, it takes the function below.

    Where one expression says it, ``when`` is that function, ``name`` its name, and ``holds`` what
    is wrong. ``view`` makes what functions ask; None: the rules say nothing of this file.

    A function returns all that may be wrong with ``key``, or violations, if flag ``on`` is set.
    """

    def __init__(self, view: Callable[..., View | None]) -> None:
        super().__init__()
        self._view = view

    def __call__(
        self,
        source: str,
        key: str = "",
        name: str = "",
        holds: str = "",
        when: Check[View] | None = None,
        *,
        on: str = "",
        enforced: bool = True,
        severity: Severity = "error",
    ) -> Callable[[Check[View]], Check[View]]:
        """Add a rule under the function's name."""

        def add(rule: Check[View]) -> Check[View]:
            @wraps(rule)
            def check(settings: Settings, world: CheckContext) -> list[Violation]:
                file = self._view(settings=settings, world=world)
                if file is None or (on and file[on] is not True):
                    return []
                wrong = rule(file)
                if isinstance(wrong, Mapping):
                    wrong = ((key, text) for text in which(wrong))
                found = [Violation(key=file.spelled(at), message=text) for at, text in wrong]
                # What was asked for is known only once the rule has run.
                return [] if file.unresolved else found

            check.__doc__ = holds or rule.__doc__
            self.append(
                FormatRule(
                    name=name or getattr(rule, "__name__", ""),
                    source=source,
                    check=check,
                    severity=severity,
                    enforced=enforced,
                )
            )
            return rule

        if when is not None:
            add(when)
        return add

    unenforced = partialmethod(__call__, enforced=False)

    def add_table(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the rules of a data file: what is wrong with a key, or some, by conditions.

        Under ``names`` stand values that they share.
        """
        rules = dict(table)
        names = rules.pop("names", {})
        for name, entry in rules.items():
            rest = {"holds": next(iter(entry["wrong"])), **entry}
            keys = rest.pop("keys", [rest.pop("key", "")])
            self(name=name, when=partial(_broken, rest.pop("wrong"), names, keys), **rest)


def _broken(
    conditions: Mapping[str, object],
    names: Mapping[str, str],
    keys: Sequence[str],
    file: ConfigView,
) -> Violations:
    """Yield key and message of every condition that holds of a file."""
    for key in keys:
        own = {"key": key, "given": file[key], "is_given": key in file.settings}
        named = Names(file.named, FUNCTIONS, names, **own)
        yield from ((key, text) for text in named.texts_that_hold(conditions))
