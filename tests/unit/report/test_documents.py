"""Schemas of the documents: valid, whole, and closed to fields that they do not have."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from planner.errors import InputError
from planner.report.documents import document, render, schema_names, schema_text


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object in a schema."""
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            yield schema
        for inner in schema.values():
            yield from objects(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from objects(inner)


@pytest.mark.parametrize("kind", schema_names())
def test_a_schema_is_valid_stands_alone_and_is_closed(kind: str) -> None:
    schema = json.loads(schema_text(kind))
    Draft202012Validator.check_schema(schema)
    used = set(re.findall(r'"\$ref": "#/\$defs/(\w+)"', schema_text(kind)))
    assert used == schema["$defs"].keys()
    for each in objects(schema):
        assert each["additionalProperties"] is False
        assert set(each["required"]) <= each["properties"].keys()


@pytest.mark.parametrize("kind", schema_names())
def test_a_document_says_by_which_schema_it_is(kind: str) -> None:
    schema = json.loads(schema_text(kind))["properties"]
    head = document(kind, {})
    assert head["schema"] == schema["schema"]["const"] == kind
    assert head["schema_version"] == schema["schema_version"]["const"]


def test_a_field_that_is_missing_strange_or_of_another_kind_is_found() -> None:
    validator = Draft202012Validator(json.loads(schema_text("frameworks")))
    assert validator.is_valid(document("frameworks", {"profiles": []}))
    assert not validator.is_valid(document("frameworks", {}))
    assert not validator.is_valid(document("frameworks", {"profiles": [], "more": 1}))
    assert not validator.is_valid(document("frameworks", {"profiles": None}))


def test_what_json_has_no_word_for_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        render("frameworks", {"profiles": [float("inf")]})


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean memory"):
        schema_text("memori")
