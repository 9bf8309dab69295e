"""All measurements, one after the other."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from planner.calibrate.measure import collectives, disk, host, kernels
from planner.calibrate.measure.device import host_cores, host_memory_bytes
from planner.calibrate.measure.task import LONGEST_S, Rates, Task
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Machine, Measured, Table

Progress = Callable[[str, float], None]


def measure(
    world: World,
    nvme: Path | None,
    progress: Progress,
    check: Callable[[Machine], None] = lambda _machine: None,
) -> Table:
    """What this machine takes for each kind of work; the same table on every rank.

    Raises InputError where the folder of ``nvme`` cannot be measured; ``check`` may, before
    anything is measured.
    """
    torch.manual_seed(world.rank)
    machine = _machine(world, nvme)
    check(machine)
    tasks = list(_tasks(world, nvme))
    rows: list[Measured] = []
    for at, task in enumerate(tasks):
        progress(task.label, at / len(tasks))
        row = task.run()
        if row is not None:
            rows.append(row)
    return Table(machine=machine, rows=tuple(rows))


def _tasks(world: World, nvme: Path | None) -> Iterator[Task]:
    rates = Rates(longest_s=LONGEST_S[world.device.kind])
    yield from kernels.launches(world)
    yield from kernels.products(world, rates)
    yield from kernels.attention(world, rates)
    yield from kernels.memory_bound(world)
    yield from host.links(world)
    yield from host.adam(world)
    yield from collectives.collectives(world, rates)
    if nvme is not None:
        yield from disk.disk(world, nvme)


def _machine(world: World, nvme: Path | None) -> Machine:
    where = "" if nvme is None else f"{nvme} ({disk.file_system(nvme) or 'not known'})"
    return Machine(
        date=datetime.now(UTC).date().isoformat(),
        device=world.device.kind,
        name=world.device.name,
        software=f"torch {torch.__version__}",
        backend=world.backend,
        nodes=world.size // world.per_node,
        per_node=world.per_node,
        threads=torch.get_num_threads(),
        memory_bytes=world.device.memory_bytes,
        context_bytes=world.device.context_bytes(),
        host_memory_bytes=host_memory_bytes(),
        host_cores=host_cores(),
        disk=where,
        disk_bytes=0.0 if nvme is None else disk.disk_bytes(nvme),
    )
