"""Measuring on the processor: one process, two over gloo; what cannot be measured."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from small import SIZES  # noqa: E402

import planner  # noqa: E402
from planner.calibrate.measure import (  # noqa: E402
    Task,
    World,
    check_alike,
    join,
    measure,
    rows_of,
)
from planner.calibrate.rows import Table, read_table  # noqa: E402
from planner.errors import InputError  # noqa: E402

KINDS = {"product", "attention_forward", "attention_backward", "copy", "add", "norm", "launch"}
BETWEEN = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
PORT = 29631
ROOT = str(Path(planner.__file__).parents[1])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in SIZES.items():
        monkeypatch.setattr(f"planner.calibrate.measure.{name}", value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check_sound(table: Table) -> None:
    assert all(row.time_s > 0 and row.repeats >= 2 for row in table.rows)
    assert table.machine.memory_bytes > 2**28
    for row in table.of("product"):
        assert row.m * row.n * row.k > 0


@pytest.mark.usefixtures("small")
def test_one_process_measures_itself_and_says_how_far_it_is() -> None:
    seen: list[float] = []
    table = measure(join(), lambda _, fraction: seen.append(fraction))
    assert {row.what for row in table.rows} == KINDS | {"host_adam"}
    assert seen == sorted(seen)
    assert 0 <= seen[0] < seen[-1] < 1
    check_sound(table)
    assert (table.machine.per_node, table.machine.backend) == (1, "")


def test_two_processes_measure_what_is_between_them(tmp_path: Path) -> None:
    program = Path(__file__).with_name("small.py")
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT), "PYTHONPATH": ROOT}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(tmp_path / "table")],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    first, second = ((tmp_path / f"table.{rank}").read_text() for rank in range(2))
    table = read_table("table.0", first)
    assert {row.what for row in table.rows} == KINDS | {"host_adam"} | BETWEEN
    assert (table.machine.per_node, table.machine.threads) == (2, 1)
    assert first.split("\nwhat,")[1] == second.split("\nwhat,")[1]
    check_sound(table)


def test_processes_on_unlike_devices_are_refused_by_their_names() -> None:
    class Unlike(World):
        def gathered(self, value: object) -> list[object]:  # type: ignore[override]
            return [value, ("Another Processor", "cpu", 4, 1)]

    world = join()
    world = Unlike(**{**vars(world), "machine": replace(world.machine, name="A")})
    with pytest.raises(InputError, match=r"ranks have A, .*; Another Processor, 4 thr"):
        check_alike(world)


@pytest.mark.usefixtures("small")
def test_work_that_would_take_too_long_is_left_out() -> None:
    # a cpu's kernel takes 0.12 s at most: 1,200 of what takes 0.01 s a hundred
    works = (200, 100, 1000, 2000)
    tasks = [
        Task(
            what="copy",
            action=lambda num_bytes: partial(time.sleep, num_bytes * 1e-4),
            choices=[(work, {"num_bytes": work})],
            first=100,
        )
        for work in works
    ]
    rows = list(rows_of(tasks, join(), lambda _label, _fraction: None))
    assert [row.num_bytes for row in rows] == [100, 1000]


@pytest.mark.usefixtures("small")
def test_the_spread_is_half_the_distance_of_the_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "planner.calibrate.measure.timed", lambda *_, **__: [1.0, 2.0, 3.0, 4.0, 100.0]
    )
    (found,) = rows_of([Task(what="launch", action=lambda: None)], join(), lambda *_: None)
    assert (found.time_us, found.spread_us, found.repeats) == (3e6, 1e6, 5)
