"""The notation of tools/schemas, and what it becomes."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tools import schemas


@dataclass(frozen=True, kw_only=True)
class Part:
    size_bytes: float
    """How large it is."""
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    by_name: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("string", {"type": "string"}),
        ("any", {}),
        ("number? (s), of a step, at most", {
            "type": ["number", "null"], "unit": "s", "description": "of a step, at most",
        }),
        ("list of map of integer", {
            "type": "array",
            "items": {"type": "object", "additionalProperties": {"type": "integer"}},
        }),
        ("does not fit | fits?", {"enum": ["does not fit", "fits", None]}),
        ("$plan?", {"anyOf": [{"$ref": "#/$defs/plan"}, {"type": "null"}]}),
    ],
)  # fmt: skip
def test_a_field_is_type_unit_and_meaning(text: str, schema: dict[str, Any]) -> None:
    assert schemas.field_of(text) == schema


def test_a_type_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no type: text"):
        schemas.field_of("text, of something")


def test_all_fields_are_needed_but_those_with_a_question_mark() -> None:
    made = schemas.field_of({"a": "string", "b?": "string"})
    assert made["required"] == ["a"]
    assert list(made["properties"]) == ["a", "b"]
    assert made["additionalProperties"] is False


def test_a_dataclass_gives_its_fields_with_units_and_docstrings() -> None:
    made = schemas.field_of({".class": f"{__name__}:Whole", ".without": ["name"]})
    assert made["required"] == ["parts", "best", "by_name"]
    part = made["properties"]["parts"]["items"]["properties"]
    said = {"description": "how large it is", "unit": "bytes"}
    assert part["size_bytes"] == {"type": "number"} | said
    assert part["kind"] == {"enum": ["a", "b"]}
    assert made["properties"]["best"]["type"] == ["object", "null"]


def test_what_has_no_json_is_an_error() -> None:
    with pytest.raises(TypeError, match="no JSON"):
        schemas.of_hint(complex)


def test_the_page_says_a_field_of_a_part_once() -> None:
    page = schemas.documents_section()
    assert page.count("| `mfu_full_square` |") == 1
    assert "| `plans[].weighed_s` | s |" in page
