"""Schemas of the documents: valid, whole, and closed to fields that they do not have."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from planner.errors import InputError
from planner.report.document import KINDS, document, schema, serialise


def objects(part: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object in a schema."""
    if isinstance(part, dict):
        if isinstance(part.get("properties"), dict):
            yield part
        for inner in part.values():
            yield from objects(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from objects(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_valid_and_closed_and_documents_begin_as_it_says(kind: str) -> None:
    made = schema(kind)
    Draft202012Validator.check_schema(made)
    for each in objects(made):
        assert each["additionalProperties"] is False
        assert set(each["required"]) <= each["properties"].keys()
    head = document(kind, {})
    assert made["required"][:3] == list(head)
    assert head["schema"] == made["properties"]["schema"]["const"] == kind
    assert head["schema_version"] == made["properties"]["schema_version"]["const"]


def test_a_field_that_is_missing_strange_or_of_another_kind_is_found() -> None:
    validator = Draft202012Validator(schema("frameworks"))
    assert validator.is_valid(document("frameworks", {"profiles": [], "facts": {}}))
    assert not validator.is_valid(document("frameworks", {}))
    assert not validator.is_valid(document("frameworks", {"profiles": [], "facts": {}, "more": 1}))
    assert not validator.is_valid(document("frameworks", {"profiles": None}))


def test_what_json_has_no_word_for_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        serialise("frameworks", {"profiles": [float("inf")]})


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean memory"):
        schema("memori")
