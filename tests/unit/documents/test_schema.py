"""Values against a JSON Schema: all that is wrong at once, each in our own words."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import planner
from planner.documents.schema import entry_of, wrongs

SCHEMAS = sorted(Path(planner.__file__).parent.glob("formats/*/schema.json"))
SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 8},
        "rate": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "device": {"type": ["string", "null"], "enum": ["cpu", "nvme", None]},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "inner": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "free": {}},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.parent.name)
def test_shipped_schemas_are_schemas(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("value", "path", "allowed"),
    [
        ({"size": "x"}, "size", "a whole number is allowed"),
        ({"size": True}, "size", "a whole number is allowed"),
        ({"size": 0}, "size", "at least 1 is allowed"),
        ({"size": 9}, "size", "at most 8 is allowed"),
        ({"rate": 0}, "rate", "more than 0 is allowed"),
        ({"rate": "1"}, "rate", "a number is allowed"),
        ({"device": "disk"}, "device", "allowed are cpu, nvme"),
        ({"device": 3}, "device", "a text in quotes is allowed"),
        ({"sizes": [1, "a", "b"]}, "sizes", "a whole number is allowed in every place"),
        ({"inner": {"on": 1}}, "inner.on", "true or false is allowed"),
        ({"inner": {"off": 1}}, "inner.off", ""),
        ({"outer": 1}, "outer", ""),
        ([], "", "an object in braces is allowed"),
    ],
)
def test_what_is_wrong_is_told_once_with_what_is_allowed(
    value: object, path: str, allowed: str
) -> None:
    (wrong,) = wrongs(SCHEMA, value)
    assert (".".join(wrong.path), wrong.allowed) == (path, allowed)
    for name in wrong.path:
        value = value[name]  # type: ignore[index]
    assert wrong.value == value


def test_all_is_told_at_once_and_what_fits_is_not() -> None:
    found = wrongs(SCHEMA, {"size": 0, "outer": 1, "inner": {"on": 1, "off": 2}})
    assert {".".join(each.path) for each in found} == {"size", "outer", "inner.on", "inner.off"}
    assert not wrongs(SCHEMA, {"size": 8.0, "rate": None, "device": None, "inner": {"free": []}})


def test_the_schema_of_a_key_is_found_by_its_path() -> None:
    assert entry_of(SCHEMA, ("inner", "free")) == {}
    assert entry_of(SCHEMA, ("inner", "off")) is None
    assert entry_of(SCHEMA, ("off", "on")) is None
