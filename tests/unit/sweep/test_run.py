"""Every cell is answered once; what a killed process or run had is asked again, and only that."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from sweep_answers import dies, dies_once, echoed

from planner.errors import InputError, PlannerError
from planner.query.query import Query
from planner.sweep.run import (
    MAX_TRIES,
    Answers,
    Executor,
    Task,
    answer,
    on_processes,
    on_ray,
    read_results,
    results_text,
    run,
)
from planner.sweep.sweep import Sweep, key_of, read_sweep

FILE = "model: [gpt3-xl, llama3-8b]\ncluster: 1xa100-80\nglobal-batch: [8, 16]\n"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "q.yaml").write_text(FILE)
    return read_sweep(tmp_path / "q.yaml")


def tasks(*models: str, cluster: str = "") -> list[Task]:
    return [Task(key=model, query=Query.of(model, cluster)) for model in models]


def logged(log: list[str], *, until: int = 99) -> Executor:
    """Answers of this process; an interrupt after so many."""

    def ask(asked: Iterable[Task]) -> Answers:
        for task in asked:
            if len(log) == until:
                raise KeyboardInterrupt
            log.append(task.key)
            yield task, echoed(task)

    return ask


def ignored(answered: int, asked: int, known: int) -> None:
    return None


def test_cells_are_the_product_the_last_axis_fastest(sweep: Sweep) -> None:
    assert [cell.command for cell in sweep.cells()] == [
        f"planner plan {model} 1xa100-80 --global-batch {batch}"
        for model in ("gpt3-xl", "llama3-8b")
        for batch in (8, 16)
    ]
    assert sweep.size == "2 model × 2 global-batch"


def test_an_interrupted_run_goes_on_and_ends_with_the_same_results(
    sweep: Sweep, tmp_path: Path
) -> None:
    whole, _ = run(sweep, tmp_path / "whole.jsonl", logged([]), ignored)
    target, log = tmp_path / "q.jsonl", list[str]()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, target, logged(log, until=3), ignored)
    partial = target.with_suffix(".partial")
    partial.write_text(partial.read_text() + '{"key": "cut o')
    found, num_known = run(sweep, target, logged(log), ignored)
    assert num_known == 3
    assert log == [key_of(cell.query) for cell in sweep.cells()]
    assert found.rows == whole.rows
    target.write_text(results_text(found))
    assert read_results(target).rows == found.rows
    assert run(sweep, target, logged(log), ignored)[1] == 4
    assert len(log) == 4


def test_failed_cells_are_not_kept(sweep: Sweep, tmp_path: Path) -> None:
    def failing(asked: Iterable[Task]) -> Answers:
        yield from ((task, {"status": "failed", "reason": "x"}) for task in asked)

    run(sweep, tmp_path / "q.jsonl", failing, ignored)
    assert run(sweep, tmp_path / "q.jsonl", logged([]), ignored)[1] == 0


def test_another_planner_or_file_stops_the_run(sweep: Sweep, tmp_path: Path) -> None:
    row = answer(Task(key="of another planner", query=Query.of("gpt3-xl", "1xa100-80")))
    assert row["status"] == "differs"

    def differing(asked: Iterable[Task]) -> Answers:
        yield from ((task, row) for task in asked)

    with pytest.raises(PlannerError, match="has another planner"):
        run(sweep, tmp_path / "q.jsonl", differing, ignored)


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    marks = [tmp_path / name for name in "ab"]
    for mark in marks:
        mark.touch()
    killing = [*tasks("a", cluster=str(marks[0])), *tasks("b", cluster=str(marks[1]))]
    asked = [*tasks("x", "y"), *killing, *tasks("z")]
    found = {task.key: row["said"] for task, row in on_processes(asked, 2, dies_once)}
    assert found == {name: name for name in "xyabz"}
    assert not any(mark.exists() for mark in marks)


def test_a_cell_that_kills_every_process_fails_alone() -> None:
    found = {task.key: row for task, row in on_processes(tasks("a", "poison", "b"), 2, dies)}
    assert found["a"]["status"] == found["b"]["status"] == "plan"
    assert found["poison"]["status"] == "failed"
    assert f"ended {MAX_TRIES} times" in found["poison"]["reason"]


def test_the_key_is_of_what_files_hold_and_not_of_where_they_lie(tmp_path: Path) -> None:
    from planner.catalog.models import model_file

    text = model_file("gpt3-xl").read_text()
    layers = next(line for line in text.splitlines() if line.startswith("num_layers:"))
    for name, own in (("a", layers), ("b", layers), ("c", "num_layers: 12")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.yaml").write_text(text.replace(layers, own))

    def key(name: str, cluster: str = "1xa100-80", **given: object) -> str:
        return key_of(Query.of(str(tmp_path / name / "m.yaml"), cluster, **given))

    assert key("a") == key("b")
    assert len({key("a"), key("c"), key("a", "2xa100-80"), key("a", seq_len=1024)}) == 4


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:99999"])
def test_an_unreachable_ray_address_is_named(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=f"--ray: no Ray cluster at {address}"):
        list(on_ray(tasks("a"), address))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_local_ray_answers_as_this_process_does() -> None:
    pytest.importorskip("ray")
    query = Query.of("gpt3-xl", "1xa100-80", fix={"tp": 1, "pp": 1, "recompute": "none"})
    task = Task(key=key_of(query), query=query)
    assert [row for _, row in on_ray([task], "local")] == [answer(task)]


def test_only_results_of_a_sweep_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for text in ("", "precious", "{}", json.dumps({"axes": {}}) + "\n{}\n"):
        path.write_text(text)
        with pytest.raises(InputError, match="was not made by planner sweep"):
            read_results(path)
