"""Values against a JSON Schema (draft 2020-12): all that is wrong, in our own words."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib import resources
from itertools import takewhile
from operator import getitem
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
Path = tuple[str, ...]
_NAMES = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text in quotes",
    "array": "a list in brackets",
    "object": "an object in braces",
}
_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
}


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A key that is not known, or a value that is not allowed."""

    path: Path
    value: Any
    schema: Schema  # of the value; of an unknown key: of the mapping it stands in
    allowed: str = ""  # what is allowed, in words; empty of an unknown key


@cache
def load_schema(package: str) -> Schema:
    """The schema of a package's configuration files, from its schema.json."""
    text = resources.files(package).joinpath("schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def wrongs(schema: Schema, value: object) -> list[Wrong]:
    """Return what is wrong with a value, one for each place."""
    from jsonschema import Draft202012Validator

    errors = list(Draft202012Validator(schema).iter_errors(value))
    # what is said first of a value that is wrong in several ways
    errors.sort(key=lambda error: error.validator not in ("type", "enum"))
    found: dict[Path, Wrong] = {}
    for wrong in (each for error in errors for each in _of(error, value)):
        found.setdefault(wrong.path, wrong)
    return list(found.values())


def entry_of(schema: Schema, path: Path) -> Schema | None:
    """The schema of a key by its path; None where it is not known."""
    entry: Schema | None = schema
    for name in path:
        entry = entry.get("properties", {}).get(name) if entry is not None else None
    return entry


def _of(error: Any, value: Any) -> Iterator[Wrong]:  # noqa: ANN401
    """A validator's error in our words; elements of lists are told at the list."""
    whole = tuple(error.absolute_path)
    names = tuple(takewhile(lambda name: isinstance(name, str), whole))
    if error.validator == "additionalProperties":
        yield from (
            Wrong(path=(*names, name), value=error.instance[name], schema=error.schema)
            for name in error.instance
            if name not in error.schema["properties"]
        )
        return
    place = " in every place" if len(names) < len(whole) else ""
    yield Wrong(
        path=names,
        value=reduce(getitem, names, value),
        schema=error.schema,
        allowed=f"{_allowed(error.validator, error.validator_value)}{place}",
    )


def _allowed(keyword: str, value: Any) -> str:  # noqa: ANN401
    if keyword == "type":
        return f"{_NAMES[value if isinstance(value, str) else value[0]]} is allowed"
    if keyword == "enum":
        return f"allowed are {', '.join(str(each) for each in value if each is not None)}"
    return f"{_BOUNDS[keyword]} {value} is allowed"
