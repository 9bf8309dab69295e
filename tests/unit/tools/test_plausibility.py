"""The page of published set-ups: its data, its cells, and that it is what the code writes."""

from pathlib import Path

import pytest

from planner.errors import InputError
from tools.pages import DATA
from tools.plausibility import (
    PAGE,
    TITLES,
    SetUp,
    agrees,
    asked,
    compared,
    is_same,
    read_set_ups,
    row_line,
    section,
    summary_line,
)
from tools.validation.records import Record, read_records

ROWS = read_set_ups(DATA / "plausibility.yaml")
CHEAP = [row for row in ROWS if row.cheap]
LEAST_SET_UPS = 40


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_records(DATA / "published_runs.jsonl")}


def test_there_are_enough_set_ups_each_once(records: dict[str, Record]) -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) >= LEAST_SET_UPS
    assert {row.run for row in ROWS if row.run} <= set(records)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert all(any(line.startswith(f"| {name} |") for line in lines) for name in names)


def test_every_published_run_can_be_asked_about(records: dict[str, Record]) -> None:
    for row in ROWS:
        if row.run:
            question = asked(row, records)
            assert question.strategy is not None, row.name
            assert question.context.margin_fraction > 0.0, row.name


@pytest.mark.parametrize("row", CHEAP, ids=[row.name for row in CHEAP])
def test_the_page_is_what_the_code_writes(row: SetUp, records: dict[str, Record]) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert row_line(compared(row, records)) in lines, "run `python -m tools.plausibility`"


def test_a_set_up_needs_a_question_or_a_run(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text("- {name: nothing}\n- {name: other, rum: x}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_set_ups(path)
    assert [(one.where, one.key) for one in caught.value.problems] == [
        (f"{path}:1", "run"),
        (f"{path}:2", "rum"),
    ]


def test_lines_say_what_was_found(records: dict[str, Record]) -> None:
    (row,) = (one for one in CHEAP if one.layout == "cp=2")
    found = compared(row, records)
    assert is_same(found.first.strategy, found.first.strategy)
    line = row_line(found)
    assert line.startswith(f"| {row.name} | ")
    assert line.count(" | ") == 5
    assert "GiB free" in line
    assert line in section(TITLES, [line])
    assert agrees(line) is (found.place is not None or (found.gain or 0.0) <= 0.05)


def test_agreeing_is_counted_from_the_lines() -> None:
    cells = ("first, +0.0 %", "row 3, +9.9 %", "not among them, +5.0 %", "not among them, -9.0 %")
    lines = [f"| a | b | c | d | {cell} |  |" for cell in (*cells, "not among them, +5.1 %", "-")]
    assert [agrees(line) for line in lines] == [True, True, True, True, False, None]
    assert summary_line(lines).startswith("4 of 5 ")
