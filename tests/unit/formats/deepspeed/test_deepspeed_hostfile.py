"""The hostfile of DeepSpeed's launcher."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.formats.deepspeed.format import read_hostfile
from planner.formats.format import Finding, SourceText


def read(text: str) -> tuple[Mapping[str, int], tuple[Finding, ...]]:
    return read_hostfile(SourceText(path="hostfile", text=text))


def test_hosts_and_slots_are_read_in_order() -> None:
    slots, findings = read("# two nodes\r\nworker-1 slots=8\r\n\r\n  worker-0\tslots=4  \r\n")
    assert list(slots.items()) == [("worker-1", 8), ("worker-0", 4)]
    assert not findings


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("a slots=8\na slots=8", "hostfile_duplicate", 2),
        ("a slots=8\nb 8", "hostfile_entry", 2),
        ("a slots=8\nb slots=", "hostfile_entry", 2),
        ("a slots=8\nb slots=eight", "hostfile_entry", 2),
        ("# none\n", "hostfile_empty", 0),
        ("a slots=0", "hostfile_slots", 1),
        ("a slots=8 max_slots=9", "hostfile_rest", 1),
    ],
)
def test_what_is_wrong_is_a_finding(text: str, rule: str, line: int) -> None:
    assert [(each.rule, each.line) for each in read(text)[1]] == [(f"deepspeed.{rule}", line)]


def test_words_behind_the_slots_are_ignored_and_a_warning() -> None:
    _, (finding,) = read("a slots=8 type=gpu")
    assert finding.severity == "warning"
    assert "ignored by the launcher" in finding.message


def test_a_file_of_bad_entries_alone_is_not_called_empty_too() -> None:
    assert [each.line for each in read("a slots=n\nb slots=n")[1]] == [1, 2]


@given(st.text(max_size=80))
def test_any_text_is_hosts_and_findings(text: str) -> None:
    assert any(read(text))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z0-9.-]{1,8}", fullmatch=True), st.integers(1, 64), min_size=1
    )
)
def test_hosts_with_slots_are_read_as_they_stand(slots: dict[str, int]) -> None:
    assert read("".join(f"{host} slots={slots[host]}\n" for host in slots)) == (slots, ())
