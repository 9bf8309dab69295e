"""YAML as text: places, duplicates, refusals, and changes in place."""

from typing import Any

import pytest
import yaml

from planner.documents.edit import YamlEditor
from planner.documents.file import REMOVED
from planner.documents.tree import parsed_yaml
from planner.errors import InputError


def edited(where: str, text: str, changes: dict[tuple[str, ...], Any]) -> str:
    return YamlEditor(where, text).changed(changes)


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


def test_values_are_those_of_safe_load_with_their_lines() -> None:
    found = parsed_yaml("f.yaml", TEXT)
    assert found.value == yaml.safe_load(TEXT)
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
    assert (
        edited("f.yaml", TEXT, changes)
        == """\
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
    )


def test_a_text_is_made_from_nothing() -> None:
    assert edited("f", "", {("a", "b"): 1, ("a", "c"): None}) == "a:\n  b: 1\n  c: null\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_stay_as_they_are(newline: str) -> None:
    text = newline.join(["a: 1", "b:", "  c: 2", ""])
    changed = edited("f", text, {("b", "d"): 3, ("a",): REMOVED})
    assert changed == newline.join(["b:", "  c: 2", "  d: 3", ""])


def test_a_text_without_a_last_line_end_keeps_none() -> None:
    assert edited("f", "a: 1", {("b",): 2}) == "a: 1\nb: 2"


def test_a_block_scalar_before_the_new_key_keeps_its_text() -> None:
    text = "a:\n  b: |\n    one\n\n    two\n# end\n"
    changed = edited("f", text, {("a", "c"): 1})
    assert parsed_yaml("f", changed).value == {"a": {"b": "one\n\ntwo\n", "c": 1}}
    assert changed.endswith("# end\n")


def test_duplicates_are_noted_and_the_last_one_counts() -> None:
    found = parsed_yaml("f", "a: 1\nb: 2\na: 3\n")
    assert found.value == {"a": 3, "b": 2}
    assert [(each.path, each.line) for each in found.duplicates] == [(("a",), 3)]
    assert edited("f", "a: 1\nb: 2\na: 3\n", {("a",): REMOVED}) == "b: 2\n"


def test_merge_keys_and_aliases_read_as_safe_load_reads_them() -> None:
    text = "base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\nsame: *b\n"
    assert parsed_yaml("f", text).value == yaml.safe_load(text)
    changed = edited("f", text, {("own", "x"): 7, ("same",): 5})
    assert changed == "base: &b {x: 1, y: 2}\nown:\n  <<: *b\n  y: 3\n  x: 7\nsame: 5\n"


def test_what_others_refer_to_is_not_changed() -> None:
    with pytest.raises(InputError, match="anchors, tags or merge keys stand in the way"):
        edited("f", "a: &x {k: 1}\nb: *x\n", {("a", "k"): 2})
    with pytest.raises(InputError, match="stand in the way"):
        edited("f", "a: &x {k: 1}\nb:\n  <<: *x\n", {("b", "k"): REMOVED})


REFUSED = {
    "a: [1": "not YAML",
    "a: 1\n---\nb: 2\n": "second document",
    "a: \0": "not YAML",
    "a: !!python/object/apply:os.system [ls]": "asks for an object",
    "a: !!python/name:os.system": "cannot be read",
    "a: 2001-99-99": "cannot be read",
    "a: \x07\n": "not YAML",
    "{[1]: 2}": "as key",
    "a: *a": "stands for nothing",
    "a: 1\n<<: 3\n": "merge key takes",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=REFUSED[text]):
        parsed_yaml("f.yaml", text)


def test_the_line_of_a_mistake_is_named() -> None:
    with pytest.raises(InputError, match=r"f\.yaml::line 3: "):
        parsed_yaml("f.yaml", "a: 1\nb: 2\n  c: [\n")
