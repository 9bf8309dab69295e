"""A run asks what is not known, each cell once, and keeps every answer at once."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sweep_answers import echoed

from planner.errors import PlannerError
from planner.sweep.cells import Answers, Axis, Cell, Sweep, Task
from planner.sweep.processes import here
from planner.sweep.run import run
from planner.sweep.store import Store


def axis(name: str, *values: str) -> Axis:
    return Axis(name=name, values=values, words=tuple((value,) for value in values))


SWEEP = Sweep(axes=(axis("model", "m", "n"), axis("cluster", "c"), axis("x", "1", "2", "3")))


def key_of(cell: Cell) -> str:
    """Of both models the same for the first value."""
    (x,) = cell.options
    return f"{x}{'' if x == '1' else cell.places[0]}-key"


def never(state: object) -> None:
    return None


def ask(store: Store, log: list[str]) -> tuple[dict[str, object], int]:
    def counted(tasks: Iterable[Task]) -> Answers:
        for task, row in here(tasks, echoed):
            log.append(task.key)
            yield task, row

    found, keys, state = run(SWEEP, store, key_of, counted, never)
    assert list(keys) == [key_of(cell) for cell in SWEEP.cells()]
    return dict(found), state.known


def test_cells_are_the_product_the_last_axis_fastest() -> None:
    assert len(SWEEP) == 6
    assert [(cell.places[0], *cell.options) for cell in SWEEP.cells()] == [
        (model, x) for model in "mn" for x in "123"
    ]
    assert SWEEP.size == "2 model × 3 x"


def test_two_cells_of_one_key_are_asked_once_and_never_again(tmp_path: Path) -> None:
    store = Store(folder=tmp_path / "cells")
    store.open()
    log: list[str] = []
    first, known = ask(store, log)
    assert (sorted(log), known) == (["1-key", "2m-key", "2n-key", "3m-key", "3n-key"], 0)
    again, known = ask(store, log)
    assert (again, known, len(log)) == (first, 5, 5)


def test_what_was_answered_before_an_interrupt_is_known_afterwards(tmp_path: Path) -> None:
    store = Store(folder=tmp_path)

    def interrupted(tasks: Iterable[Task]) -> Answers:
        for number, task in enumerate(tasks):
            if number == 2:
                raise KeyboardInterrupt
            yield task, echoed(task)

    with pytest.raises(KeyboardInterrupt):
        run(SWEEP, store, key_of, interrupted, never)
    log: list[str] = []
    assert ask(store, log)[1] == 2
    assert len(log) == 3


@pytest.mark.parametrize("text", ['{"status": "pl', "[]", "{}", ""])
def test_an_answer_that_was_cut_off_is_asked_again(text: str, tmp_path: Path) -> None:
    store = Store(folder=tmp_path)
    log: list[str] = []
    ask(store, log)
    (path,) = tmp_path.glob("*/2m-key.json")
    path.write_text(text)
    ask(store, log)
    assert log[5:] == ["2m-key"]


@pytest.mark.parametrize("status", ["failed", "differs"])
def test_failures_are_not_kept_and_another_planner_stops_the_run(
    tmp_path: Path, status: str
) -> None:
    store = Store(folder=tmp_path)

    def failing(tasks: Iterable[Task]) -> Iterator[tuple[Task, dict[str, str]]]:
        for task in tasks:
            yield task, {"status": status, "reason": "elsewhere"}

    if status == "differs":
        with pytest.raises(PlannerError, match="elsewhere"):
            run(SWEEP, store, key_of, failing, never)  # type: ignore[arg-type]
    else:
        run(SWEEP, store, key_of, failing, never)  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*.json"))
