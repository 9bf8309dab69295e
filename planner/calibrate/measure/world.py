"""The processes that measure together: one alone, or those that torchrun started."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from planner.calibrate.measure.device import Device, this_device
from planner.errors import InputError

Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class World:
    """Ranks, and what each of them measures."""

    rank: int
    size: int
    per_node: int
    device: Device
    backend: str

    @property
    def is_first(self) -> bool:
        """Whether this process decides, shows and writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for the others, so that all do the same at once."""
        if self.size > 1:
            distributed.barrier()

    def gathered(self, value: Value) -> list[Value]:
        """A value of every rank, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Value] = [value] * self.size
        distributed.all_gather_object(found, value)
        return found

    def decided(self, decide: Callable[[], Value]) -> Value:
        """What the first rank decides, on every rank."""
        if self.size == 1:
            return decide()
        found = [decide() if self.is_first else None]
        distributed.broadcast_object_list(found, 0)
        return found[0]  # type: ignore[return-value]


def join() -> World:
    """Join the processes that torchrun started; raises InputError where devices are unlike."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    device = this_device(local, per_node)
    if device.is_gpu and per_node > torch.cuda.device_count():
        message = f"{per_node} processes on {torch.cuda.device_count()} GPUs; start one for each"
        raise InputError.single("command line", "--measure", message)
    backend = ""
    if size > 1:
        backend = "nccl" if device.is_gpu else "gloo"
        distributed.init_process_group(backend, timeout=TIMEOUT)
    world = World(rank=rank, size=size, per_node=per_node, device=device, backend=backend)
    check_alike(world)
    return world


def leave(world: World) -> None:
    """Part from the other processes."""
    if world.size > 1:
        distributed.destroy_process_group()


def check_alike(world: World) -> None:
    """Raise InputError where ranks have devices, threads or neighbours unlike the first one's."""
    own = (world.device.name, world.device.kind, torch.get_num_threads(), world.per_node)
    others = world.gathered(own)
    if len(set(others)) == 1:
        return
    rank, other = next((at, each) for at, each in enumerate(others) if each != others[0])
    texts = [f"{name}, {n} threads, {per} a node" for name, _, n, per in (others[0], other)]
    message = f"rank 0 has {texts[0]}; rank {rank} has {texts[1]}: measure machines of one kind"
    leave(world)
    raise InputError.single("command line", "--measure", message)
