"""The keys Accelerate knows, from keys.yaml, and what their values may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from planner.documents.yaml_text import load_data
from planner.formats.settings import as_flag, as_whole

_ALLOWED = {"flag": "true or false", "whole": "a whole number", "number": "a number"}


@dataclass(frozen=True, kw_only=True)
class SectionKeys:
    """The keys of a section, and what all of them may be written without."""

    prefix: str
    keys: Mapping[str, str]
    """Kind by key: flag, whole, number, text, any."""

    def full(self, key: str) -> str:
        """A key as ``accelerate launch`` spells it: its prefix put before where it lacks."""
        is_optional = self.prefix in ("fsdp_", "fp8_", "dynamo_")
        stem = self.prefix.rstrip("_")
        return key if not is_optional or key.startswith(stem) else self.prefix + key


@dataclass(frozen=True, kw_only=True)
class KnownKeys:
    """All keys of a configuration file."""

    source: str
    distributed_types: tuple[str, ...]
    top: Mapping[str, str]
    sections: Mapping[str, SectionKeys]


@cache
def known_keys() -> KnownKeys:
    """Read keys.yaml."""
    data = load_data(__package__, "keys.yaml")
    return KnownKeys(
        source=data["source"],
        distributed_types=tuple(data["distributed_types"]),
        top=data["top"],
        sections={name: SectionKeys(**keys) for name, keys in data["sections"].items()},
    )


def wrong_kind(kind: str, value: object) -> str | None:
    """What a value should be, where it is not of its kind; null always is."""
    if value is None or kind == "any":
        return None
    if kind == "section":
        return None if isinstance(value, dict) else "a mapping"
    if isinstance(value, dict | list):
        return _ALLOWED.get(kind, "one word")
    if kind == "flag":
        return None if as_flag(value) is not None else _ALLOWED[kind]
    if kind == "whole":
        return None if as_whole(value) is not None else _ALLOWED[kind]
    if kind == "number" and (isinstance(value, bool) or not _is_number(value)):
        return _ALLOWED[kind]
    return None


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except (ValueError, OverflowError):
        return False
    return True
