"""Measuring on the processor: one process, two over gloo, a disk; what cannot be measured."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from small import SIZES  # noqa: E402

import planner  # noqa: E402
from planner.calibrate.measure import disk  # noqa: E402
from planner.calibrate.measure.run import measure  # noqa: E402
from planner.calibrate.measure.task import Rates  # noqa: E402
from planner.calibrate.measure.timing import summary  # noqa: E402
from planner.calibrate.measure.world import World, check_alike, join  # noqa: E402
from planner.calibrate.measured import Table, read_table  # noqa: E402
from planner.errors import InputError  # noqa: E402

KINDS = {"product", "attention_forward", "attention_backward", "copy", "add", "norm", "launch"}
BETWEEN = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
PORT = 29631
ROOT = str(Path(planner.__file__).parents[1])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, values in SIZES.items():
        for name, value in values.items():
            monkeypatch.setattr(import_module(f"planner.calibrate.measure.{module}"), name, value)
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
    table = measure(join(), None, lambda _label, fraction: seen.append(fraction))
    assert {row.what for row in table.rows} == KINDS | {"host_adam"}
    assert seen == sorted(seen)
    assert 0 <= seen[0] < seen[-1] < 1
    check_sound(table)
    assert (table.machine.per_node, table.machine.backend) == (1, "")


def test_two_processes_measure_what_is_between_them(tmp_path: Path) -> None:
    program = Path(__file__).with_name("small.py")
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(tmp_path / "table")],
            env={
                **os.environ,
                **shared,
                "PYTHONPATH": ROOT,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            },
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


@pytest.mark.usefixtures("small")
def test_a_disk_is_written_and_read_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "file_system", lambda _: "ext4")
    disk.check_folder(tmp_path)
    rows = [task.run() for task in disk.disk(join(), tmp_path)]
    assert [row.what for row in rows if row] == ["nvme_write", "nvme_read"]
    assert all(row and row.time_s > 0 and row.num_bytes == 2**20 for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_disk_that_fails_midway_is_named_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> float:
        (tmp_path / disk.NAME).write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "_passed", full)
    with pytest.raises(InputError, match=r"cannot be measured: .*No space left"):
        next(iter(disk.disk(join(), tmp_path))).run()
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_no_disk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="is no folder that can be written"):
        disk.check_folder(tmp_path / "none")
    monkeypatch.setattr(disk, "file_system", lambda _: "tmpfs")
    with pytest.raises(InputError, match="is on tmpfs, which is memory; give a folder of"):
        disk.check_folder(tmp_path)
    monkeypatch.setattr(disk, "file_system", lambda _: "ext4")
    monkeypatch.setattr(disk, "FILE_BYTES", 2**60)
    with pytest.raises(InputError, match=r"GiB free; .* are needed"):
        disk.check_folder(tmp_path)


def test_the_nearest_mount_is_the_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "a / ext4 rw 0 0\nb /data xfs rw 0 0\nc /data/ram tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_kwargs: mounts)
    assert disk.file_system(Path("/data/disk")) == "xfs"
    assert disk.file_system(Path("/data/ram/x")) == "tmpfs"
    assert disk.file_system(Path("/other")) == "ext4"


def test_processes_on_unlike_devices_are_refused_by_their_names() -> None:
    class Unlike(World):
        def gathered(self, value: object) -> list[object]:  # type: ignore[override]
            return [value, ("Another Processor", "cpu", 4, 1)]

    own = join()
    world = Unlike(rank=0, size=1, per_node=1, device=replace(own.device, name="A"), backend="")
    with pytest.raises(InputError, match=r"rank 0 has A, .* rank 1 has Another Processor, 4 thr"):
        check_alike(world)


def test_work_that_would_take_too_long_is_left_out() -> None:
    rates = Rates(longest_s=0.1)
    assert rates.fits("product", 1e6, least=1e6)
    assert not rates.fits("product", 2e6, least=1e6)
    rates.learn("product", 1e6, summary([0.01, 0.01, 0.02]))
    assert rates.fits("product", 1e7)
    assert not rates.fits("product", 1.1e7)
    assert not rates.fits("other", 1e7)


def test_the_spread_is_half_the_distance_of_the_quartiles() -> None:
    found = summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.time_s, found.spread_s, found.repeats) == (3.0, 1.0, 5)
