"""Values of a file that OmegaConf makes of others: ``${.encoder_seq_length}`` and their kin."""

import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

from planner.formats.format import Value
from planner.formats.settings import as_whole

MISSING = "???"
"""What the user has to give on the command line."""
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
_DEPTH = 8
_CALL = re.compile(r"\$\{(\w+):(.*)\}")
_CALLS: Mapping[str, Callable[[Iterable[Any]], Any]] = {"multiply": prod, "sum": sum}
"""Resolvers that NeMo's examples and launcher register, of whole numbers."""
_MOST = 10**15
"""A product beyond it is no setting of a training job."""


def resolved(places: Mapping[str, Value]) -> tuple[dict[str, Value], frozenset[str]]:
    """The settings with references followed, and keys whose values nobody knows."""
    found = {key: _followed(places, key, each) for key, each in places.items()}
    unknown = frozenset(key for key, each in places.items() if _hides(each, found[key]))
    return found, unknown


def _hides(before: Value, after: Value) -> bool:
    return before.value is not None and after.value is None and not _null(before.value)


def _null(value: object) -> bool:
    return isinstance(value, str) and value.lower() in ("null", "none")


def _followed(places: Mapping[str, Value], key: str, each: Value) -> Value:
    value = _value(places, key, each.value, _DEPTH)
    return Value(value=value, key=each.key, line=each.line)


def _value(places: Mapping[str, Value], key: str, value: object, depth: int) -> Any:  # noqa: ANN401
    """The value; None where it is missing, computed, another file's, or a loop."""
    if not isinstance(value, str):
        return value
    if value == MISSING or _null(value):
        return None
    if "${" not in value:
        return value
    call = _CALL.fullmatch(value.strip())
    if call and call[1] in _CALLS and depth:
        return _called(places, key, call[1], call[2], depth - 1)
    found = _REFERENCE.fullmatch(value.strip())
    target = _target(places, key, found[1], found[2]) if found else None
    if target is None or not depth:
        return None
    return _value(places, target, places[target].value, depth - 1)


def _called(places: Mapping[str, Value], key: str, name: str, text: str, depth: int) -> int | None:
    """What a resolver makes of its arguments; None where one is not known."""
    parts = [part.strip() for part in text.split(",")]
    values = [as_whole(_value(places, key, part, depth)) for part in parts]
    known = [each for each in values if each is not None]
    found = _CALLS[name](known) if len(known) == len(values) else None
    return found if found is not None and abs(found) < _MOST else None


def _target(places: Mapping[str, Value], key: str, dots: str, name: str) -> str | None:
    """The key that is meant; NeMo's launcher has the file under a name that stands before it."""
    if dots:
        parts = key.split(".")
        name = ".".join((*parts[: max(0, len(parts) - len(dots))], name))
    within = name.partition(".")[2]
    return name if name in places else within if within in places else None
