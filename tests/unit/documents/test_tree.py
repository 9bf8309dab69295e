"""YAML as text: places, duplicates, refusals, and changes in place."""

from typing import Any

import pytest
import yaml

from planner.documents.edit import YamlEditor
from planner.documents.file import REMOVED
from planner.documents.tree import parsed_yaml
from planner.errors import InputError


def edited(text: str, changes: dict[tuple[str, ...], Any]) -> str:
    return YamlEditor("f.yaml", text).changed(changes)


TEXT = """\
# who wrote this
compute_environment: LOCAL_MACHINE  # here
fsdp_config:
  # inside
  fsdp_version: 2   # the second
  fsdp_offload_params: no
parallelism_config: {}
empty:
items: [1, {a: 2}]
# the end
"""


CHANGED = """\
# who wrote this
compute_environment: LOCAL_MACHINE  # here
fsdp_config:
  # inside
  fsdp_version: 1   # the second
  fsdp_new: 'NO'
parallelism_config: {a: 1, b: 2}
empty: {inner: true}
items: 3
num_processes: 8
# the end
"""
ALIASES = "base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\n"
SCALAR = "a:\n  b: |\n    one\n\n    two\n"


def test_values_are_those_of_safe_load_with_their_lines() -> None:
    found = parsed_yaml("f.yaml", TEXT)
    assert found.value == yaml.safe_load(TEXT)
    assert parsed_yaml("f.yaml", ALIASES).value == yaml.safe_load(ALIASES)
    assert found.entries[("fsdp_config", "fsdp_offload_params")].value is False
    assert found.entries[("fsdp_config", "fsdp_offload_params")].line == 6
    assert found.entries[("items", 1, "a")].line == 9


def test_a_change_leaves_comments_order_and_other_keys() -> None:
    changes = {
        ("fsdp_config", "fsdp_version"): 1,
        ("fsdp_config", "fsdp_offload_params"): REMOVED,
        ("fsdp_config", "fsdp_new"): "NO",
        ("num_processes",): 8,
        ("parallelism_config", "a"): 1,
        ("parallelism_config", "b"): 2,
        ("empty", "inner"): True,
        ("items",): 3,
    }
    assert edited(TEXT, changes) == CHANGED


@pytest.mark.parametrize(
    ("text", "changes", "changed"),
    [
        ("", {("a", "b"): 1, ("a", "c"): None}, "a:\n  b: 1\n  c: null\n"),
        ("a: 1\nb:\n  c: 2\n", {("b", "d"): 3, ("a",): REMOVED}, "b:\n  c: 2\n  d: 3\n"),
        (
            "a: 1\r\nb:\r\n  c: 2\r\n",
            {("b", "d"): 3, ("a",): REMOVED},
            "b:\r\n  c: 2\r\n  d: 3\r\n",
        ),
        ("a: 1", {("b",): 2}, "a: 1\nb: 2"),
        (f"{SCALAR}# end\n", {("a", "c"): 1}, f"{SCALAR}  c: 1\n# end\n"),
        ("a: 1\nb: 2\na: 3\n", {("a",): REMOVED}, "b: 2\n"),
        (f"{ALIASES}same: *b\n", {("own", "x"): 7, ("same",): 5}, f"{ALIASES}  x: 7\nsame: 5\n"),
    ],
)
def test_edits_keep_line_ends_and_what_they_do_not_name(
    text: str, changes: dict[tuple[str, ...], Any], changed: str
) -> None:
    assert edited(text, changes) == changed


def test_duplicates_are_noted_and_the_last_one_counts() -> None:
    found = parsed_yaml("f", "a: 1\nb: 2\na: 3\n")
    assert found.value == {"a": 3, "b": 2}
    assert [(each.path, each.line) for each in found.duplicates] == [(("a",), 3)]


def test_what_others_refer_to_is_not_changed() -> None:
    with pytest.raises(InputError, match="anchors, tags or merge keys stand in the way"):
        edited("a: &x {k: 1}\nb: *x\n", {("a", "k"): 2})
    with pytest.raises(InputError, match="stand in the way"):
        edited("a: &x {k: 1}\nb:\n  <<: *x\n", {("b", "k"): REMOVED})
