"""Whoever answers, every task is answered once; what a killed process had is asked again."""

import socket
from pathlib import Path

import pytest
from sweep_answers import dies, dies_once, echoed, never_starts

from planner.errors import InputError, PlannerError
from planner.sweep import on_ray
from planner.sweep.cells import Task
from planner.sweep.on_ray import check_ray
from planner.sweep.processes import here, on_processes
from planner.sweep.retries import MOST_TRIES, Retries


def tasks(*words: str) -> list[Task]:
    return [Task(key=f"{place:02}", words=(word,)) for place, word in enumerate(words)]


def test_processes_answer_as_this_one_does() -> None:
    asked = tasks(*"abcdef")
    own = sorted((task.key, row["said"]) for task, row in here(asked, echoed))
    theirs = sorted((task.key, row["said"]) for task, row in on_processes(asked, echoed, 2))
    assert theirs == own == [(f"{place:02}", word) for place, word in enumerate("abcdef")]


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    marks = [tmp_path / name for name in "ab"]
    for mark in marks:
        mark.touch()
    asked = [*tasks("x", "y"), *(Task(key=m.name, words=(m.name, str(m))) for m in marks)]
    found = {task.key: row["said"] for task, row in on_processes(asked, dies_once, 2)}
    assert found == {"00": "x", "01": "y", "a": "a", "b": "b"}
    assert not any(mark.exists() for mark in marks)


def test_a_cell_that_kills_every_process_fails_alone() -> None:
    found = {t.words[0]: row for t, row in on_processes(tasks("a", "poison", "b"), dies, 2)}
    assert found["a"]["status"] == found["b"]["status"] == "plan"
    assert found["poison"]["status"] == "failed"
    assert found["poison"]["reason"] == f"tried {MOST_TRIES} times: its process ended, signal 9"


def test_processes_that_never_answer_are_not_started_for_ever() -> None:
    with pytest.raises(PlannerError, match=r"end before they answer \(exit code 7\)"):
        list(on_processes(tasks(*"abcdefgh"), never_starts, 1))


def test_every_task_comes_once_and_a_lost_one_again() -> None:
    queue = Retries(tasks("a", "b", "c"))
    seen = []
    while queue:
        seen.append(queue.next())
    assert [task.words[0] for task in seen] == ["a", "b", "c"]
    assert [queue.lost(seen[1], "x") is None for _ in range(MOST_TRIES)] == [True, True, False]
    assert queue.next() is seen[1]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "is no address; given 'nonsense'"),
        ("127.0.0.1:1", "nobody answers at 127.0.0.1:1"),
        ("ray://127.0.0.1:1", "nobody answers at ray://127.0.0.1:1"),
        ("127.0.0.1:99999", "is no address; given '127.0.0.1:99999'"),
    ],
)
def test_an_unreachable_ray_address_is_named(address: str, message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match="--ray") as error:
        check_ray(address)
    assert message in str(error.value)


def test_a_port_where_something_else_listens_is_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(on_ray, "JOIN_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address} within 2 s"):
            check_ray(address)
