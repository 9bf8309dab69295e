"""JSON with comments: values as json and hjson give them, edits that touch nothing else."""

import contextlib
import json
import random
from typing import Any

import hjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.documents.edit import JsonEditor
from planner.documents.file import REMOVED
from planner.documents.tree import parsed_json
from planner.errors import InputError

Changes = dict[tuple[str, ...], Any]


def edited(text: str, changes: Changes) -> str:
    return JsonEditor("f", text).changed(changes)


KEYS = st.sampled_from(["a", "b", "stage", "zero optimization", "ä", 'q"uote', "//"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["# no comment", "/* none */", "// none"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)
INDENTS = st.sampled_from([None, 0, 1, 2, "\t"])
COMMENTS = ("// c\n", "# c, {\n", "/* c */", "/* c\n } */", "\r\n", " ", "")


def commented(value: Any, pick: random.Random) -> str:
    """The value with comments and white space between its parts."""

    def gap() -> str:
        return pick.choice(COMMENTS)

    if isinstance(value, dict):
        keys = ((f"{gap()}{json.dumps(key)}{gap()}:{gap()}", each) for key, each in value.items())
        members = [f"{key}{commented(each, pick)}{gap()}" for key, each in keys]
        comma = "," if members and pick.random() < 0.3 else ""
        return f"{{{','.join(members)}{comma}{gap()}}}"
    if isinstance(value, list):
        return "[" + ",".join(gap() + commented(v, pick) + gap() for v in value) + "]"
    return json.dumps(value)


@given(VALUES, INDENTS)
def test_valid_json_has_the_values_that_json_gives_it(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent)
    assert parsed_json("f", text).value == json.loads(text)


PICKS = st.randoms(use_true_random=False)


@given(OBJECTS, PICKS)
def test_comments_change_no_value(value: dict[str, Any], pick: random.Random) -> None:
    assert parsed_json("f", commented(value, pick)).value == value


HJSON_SAFE = st.recursive(
    st.booleans() | st.integers(-(10**9), 10**9) | st.sampled_from(["auto", "cpu", "#", "a//b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYS, HJSON_SAFE, max_size=4), PICKS)
def test_commented_texts_have_the_values_that_hjson_gives_them(
    value: dict[str, Any], pick: random.Random
) -> None:
    text = commented(value, pick)
    assert parsed_json("f", text).value == hjson.loads(text)


@given(st.text(alphabet='{}[],:"\\/*#01e.-tn \n\r\x00ä', max_size=60))
def test_what_python_json_takes_is_taken_and_the_rest_is_input_error(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with contextlib.suppress(InputError):
            parsed_json("f", text)
        return
    assert parsed_json("f", text).value == expected


def test_a_long_text_of_comment_starts_is_quick() -> None:
    for text in ("/*" * 200_000, "{" + "#\n" * 200_000):
        with pytest.raises(InputError):
            parsed_json("f", text)


def test_lines_and_duplicates_are_noted() -> None:
    text = '{\n "a": 1, // x\n "b": {"c": 2,\n  "c": 3},\n "d": [{"e": 1, "e": 2}]\n}'
    tree = parsed_json("f", text)
    assert {path: member.line for path, member in tree.members.items()} == {
        ("a",): 2, ("b",): 3, ("b", "c"): 4, ("d",): 5,
    }  # fmt: skip
    found = [(each.path, each.line, each.first_line) for each in tree.duplicates]
    assert found == [(("b", "c"), 4, 3), (("d", 0, "e"), 5, 5)]
    assert tree.value == {"a": 1, "b": {"c": 3}, "d": [{"e": 2}]}


PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)
CHANGES = st.dictionaries(PATHS, VALUES | st.just(REMOVED), max_size=4)


def with_changes(value: dict[str, Any], changes: Changes) -> dict[str, Any]:
    for path, new in changes.items():
        inner: Any = value
        if new is REMOVED:
            for key in path[:-1]:
                inner = inner.get(key) if isinstance(inner, dict) else None
            if isinstance(inner, dict):
                inner.pop(path[-1], None)
            continue
        for key in path[:-1]:
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[path[-1]] = json.loads(json.dumps(new))
    return value


@given(OBJECTS, CHANGES, INDENTS)
def test_edits_of_json_are_json_with_the_edited_values(
    value: dict[str, Any], changes: Changes, indent: Any
) -> None:
    text = edited(json.dumps(value, indent=indent), changes)
    assert json.loads(text) == with_changes(value, changes)


@given(OBJECTS, PATHS, VALUES, PICKS)
def test_a_replaced_value_leaves_the_text_around_it(
    value: dict[str, Any], path: tuple[str, ...], new: Any, pick: random.Random
) -> None:
    text = commented(value, pick)
    at = parsed_json("f", text).root
    for name in path:
        pair = at.find(name) if at and at.kind == "mapping" else None
        if pair is None:
            return
        at = pair[1]
    assert at
    after = edited(text, {path: new})
    assert after.startswith(text[: at.start])
    assert after.endswith(text[at.end :])


@given(OBJECTS, CHANGES, PICKS)
def test_edits_of_commented_texts_have_their_values_and_leave_comments_and_other_keys_in_order(
    value: dict[str, Any], changes: Changes, pick: random.Random
) -> None:
    text = commented(value, pick)
    heads = {path[0] for path in changes}
    root = parsed_json("f", text).root
    pairs = root.pairs if root else ()
    spans = [text[key.start : item.end] for key, item in pairs if key.text not in heads]
    after, position = edited(text, changes), 0
    for span in spans:
        position = after.find(span, position)
        assert position >= 0, span
        position += len(span)
    assert parsed_json("f", after).value == with_changes(value, changes)


def test_an_edit_keeps_comments_indentation_and_line_ends() -> None:
    text = '{\r\n    // batch\r\n    "a": 1, // one\r\n    "b": {"c": 2} // last\r\n}\r\n'
    changes = {("a",): 5, ("b", "d"): [1, 2], ("e", "f"): True}
    assert edited(text, changes) == (
        '{\r\n    // batch\r\n    "a": 5, // one\r\n    "b": {"c": 2, "d": [1, 2]}, // last\r\n'
        '    "e": {\r\n      "f": true\r\n    }\r\n}\r\n'
    )
    assert edited(text, {("b",): REMOVED}) == (
        '{\r\n    // batch\r\n    "a": 1 // one\r\n     // last\r\n}\r\n'
    )
    assert edited(text, {("a",): REMOVED}).startswith("{\r\n    // batch\r\n     // one")
    with pytest.raises(InputError, match="object in braces"):
        edited("[]", {("a",): 1})
