"""Changes to a YAML text touch what they name and nothing else; no text breaks the reader."""

from contextlib import suppress
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.documents.edit import YamlEditor
from planner.documents.file import REMOVED
from planner.documents.tree import parsed_yaml
from planner.errors import InputError


def edited(where: str, text: str, changes: dict[tuple[str, ...], Any]) -> str:
    return YamlEditor(where, text).changed(changes)


NAMES = st.sampled_from(["alpha", "beta", "gamma", "no", "8", "a b", "delta: x"])
SCALARS = st.one_of(
    st.integers(-(10**6), 10**6),
    st.booleans(),
    st.none(),
    st.sampled_from(["NO", "yes", "", "x: y", "# c", "1e3", "*a", "two words", "multi\nline", "é"]),
)
LEAVES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(LEAVES, inner), max_size=4),
    max_leaves=8,
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
CHANGES = st.dictionaries(PATHS, st.one_of(SCALARS, st.just(REMOVED)), max_size=4)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """YAML in flow or block style, with comments between top-level keys and at their ends."""
    tree = draw(TREES)
    parts = []
    for name, value in tree.items():
        flow = draw(st.sampled_from([None, True, False]))
        dumped = yaml.safe_dump({name: value}, default_flow_style=flow, allow_unicode=True)
        parts.append(dumped if dumped[0] != "{" else dumped.strip()[1:-1].replace("\n", " ") + "\n")
        parts.append(draw(st.sampled_from(["", "# between\n", "\n", "  # indented\n"])))
    text = "".join(parts)
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


def applied(tree: dict[str, Any], changes: dict[tuple[str, ...], Any]) -> dict[str, Any] | None:
    """The same changes to plain mappings; None where a path leads through a value."""
    for path, value in changes.items():
        at: Any = tree
        for name in path[:-1]:
            if at.get(name) is None:
                if value is REMOVED:
                    break
                at[name] = {}
            at = at[name]
            if not isinstance(at, dict):
                return None
        else:
            at.pop(path[-1], None) if value is REMOVED else at.__setitem__(path[-1], value)
    return tree


def pruned(value: Any) -> Any:
    """Without what holds nothing: a mapping whose last key went is null."""
    if not isinstance(value, dict):
        return value
    return {key: kept for key, item in value.items() if (kept := pruned(item)) not in ({}, None)}


@settings(max_examples=100)
@given(text=texts(), changes=CHANGES)
def test_changes_do_what_they_say_and_nothing_else(
    text: str, changes: dict[tuple[str, ...], Any]
) -> None:
    before = parsed_yaml("f", text)
    expected = applied(before.value or {}, changes)
    if expected is None:
        with suppress(InputError):
            edited("f", text, changes)
        return
    after = edited("f", text, changes)
    assert pruned(parsed_yaml("f", after).value or {}) == pruned(expected)
    assert after.count("# between") == text.count("# between")


@settings(max_examples=60)
@given(text=texts(), value=SCALARS)
def test_a_value_set_leaves_every_line_but_its_own(text: str, value: Any) -> None:
    after = edited("f", text, {("omega",): value})
    missing = [line for line in text.splitlines() if line not in after.splitlines()]
    assert missing == []


@settings(max_examples=100)
@given(
    text=st.text(alphabet=st.sampled_from("ab:-[]{}&*<!|>'\"#%@\n\r \t,0.~?\0é\x85"), max_size=60)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        parsed_yaml("f", text)
    with suppress(InputError):
        edited("f", text, {("a", "b"): 1})
