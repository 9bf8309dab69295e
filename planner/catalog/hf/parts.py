"""Which family a ``config.json`` is of, and which part of it says the shape."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from planner.catalog.hf.family import families
from planner.catalog.names import did_you_mean
from planner.errors import InputError

_PART = "text_config"
_OUTER_KEYS = ("tie_word_embeddings",)
"""Keys that stand outside the part too."""
_REQUIRED = "num_layers, hidden_size, num_heads, vocab_size, max_seq_len"


class Part(NamedTuple):
    """The keys that give the shape, where they stand, and what they are read as."""

    kind: str
    """A type of families.yaml."""
    name: str
    """The part's key; empty: the whole file."""
    keys: Mapping[str, Any]
    notes: tuple[str, ...]


def find_part(data: Mapping[str, Any], where: str) -> Part:
    """Return the part of a file that is of a known family; raises InputError without one."""
    model_type, inner = data.get("model_type"), data.get(_PART)
    family = families().get(model_type) if isinstance(model_type, str) else None
    if family and family.text_part_only:
        inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise InputError.single(where, _PART, f"must be an object; given {str(inner)[:60]!r}")
        return _nested(data, inner, str(model_type))
    if not family and isinstance(inner, dict) and (kind := _kind(inner)):
        return _nested(data, inner, kind)
    kind = _kind(data)
    if kind is None:
        raise InputError.single(where, "model_type", _unknown(data))
    return Part(kind, "", data, _read_as(data, kind))


def _nested(data: Mapping[str, Any], inner: Mapping[str, Any], kind: str) -> Part:
    outer = {key: data[key] for key in _OUTER_KEYS if key in data}
    note = f"{_PART}.* only: the text part of {_word(data.get('model_type'))}"
    notes = () if data.get("model_type") == kind else _read_as(inner, kind)
    return Part(kind, _PART, {**outer, **inner}, (note, *notes))


def _kind(keys: Mapping[str, Any]) -> str | None:
    """The family by type, or by the class that the file says it is of."""
    model_type, names = keys.get("model_type"), keys.get("architectures")
    if isinstance(model_type, str):
        for kind, family in families().items():
            if model_type == kind or model_type in family.read_as_this:
                return kind
    elif model_type is not None:
        return None
    name = names[0] if isinstance(names, list) and names else None
    whole = (kind for kind, family in families().items() if not family.text_part_only)
    return next((kind for kind in whole if name == families()[kind].class_name), None)


def _read_as(keys: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """How the type was understood where it is not that of the family."""
    model_type = keys.get("model_type")
    if model_type == kind:
        return ()
    if model_type in families()[kind].read_as_this:
        of_whole = " its language model only," if "vision_config" in keys else ""
        return (f"{model_type}:{of_whole} read as {kind}",)
    missing = "no model_type" if model_type is None else f"model_type {_word(model_type)}"
    return (f"{missing}: read as {kind}, whose class its architectures name",)


def _word(value: object) -> str:
    """A value of the file, fit for a note: short and without control characters."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:60])


def _unknown(data: Mapping[str, Any]) -> str:
    """What to do about a model_type that is missing or of no family here."""
    known = f"known are {', '.join(families())}"
    other = f"or write a model file in YAML with at least {_REQUIRED} (docs/models.md)"
    if "model_type" not in data:
        return f"is missing; give it: {known}; {other}"
    model_type = data["model_type"]
    if not isinstance(model_type, str):
        return f"must be a word; given {str(model_type)[:60]!r}; {known}"
    hint = "" if data.get("architectures") else did_you_mean(model_type, families())
    parts = (f"unknown; given {model_type[:60]!r}", hint, known, other)
    return "; ".join(part for part in parts if part)
