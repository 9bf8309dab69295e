"""Contents of a file's settings: values of a kind, decisions with their place, what is wrong."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from planner.documents.tree import Duplicate, load_own
from planner.formats.format import Finding, Located, Severity

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
    place = settings.get(key, Located(key=key))
    return replace(place, value=value)


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
        place = Located(key=key, line=each.line)
        yield finding_at(rule, path, place, says.format(first=each.first_line))
