"""The processes that measure together, their devices, and how an action is timed.

One process alone, or those that torchrun started. Only this file and ``measure`` import torch.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Literal, TypeVar

import torch
from torch import distributed

from planner.calibrate.rows import Machine
from planner.errors import InputError
from planner.units import KIB

Value = TypeVar("Value")
Action = Callable[[], object]
TIMEOUT = timedelta(minutes=10)
LEAST_S = 1e-3  # of one repeat: shorter actions are done several times in it, and shared out
BUDGET_S = 0.25  # of the repeats of one action together
REPEATS = (5, 25)  # fewest and most
MOST_INNER = 1000


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes that measure together, and the device of this one."""

    rank: int
    size: int
    device: torch.device
    machine: Machine  # of all processes

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run beside the host."""
        return self.machine.device != "cpu"

    def dtypes(self) -> dict[str, torch.dtype]:
        """Precisions to measure products in, the usual one first."""
        if self.is_gpu:
            first = {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported() else {}
            return {**first, "fp16": torch.float16, "fp32": torch.float32}
        return {"fp32": torch.float32, "bf16": torch.bfloat16}

    def synchronize(self) -> None:
        """Wait until all that was launched is done."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def gathered(self, value: Value) -> list[Value]:
        """A value of every rank, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Value] = [value] * self.size
        distributed.all_gather_object(found, value)
        return found


def join() -> World:
    """Join the processes that torchrun started; raises InputError where devices are unlike."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    # without a GPU every process is an accelerator with its share of the host's memory
    kind: Literal["cpu", "cuda", "rocm"] = "cpu"
    name, device, memory = processor_name(), torch.device("cpu"), host_memory_bytes() / per_node
    if torch.cuda.is_available():
        if per_node > torch.cuda.device_count():
            message = (
                f"{per_node} processes on {torch.cuda.device_count()} GPUs; start one for each"
            )
            raise InputError.single("command line", "--measure", message)
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
        properties = torch.cuda.get_device_properties(device)
        kind = "rocm" if torch.version.hip else "cuda"
        name, memory = properties.name, float(properties.total_memory)
    backend = ""
    if size > 1:
        backend = "nccl" if kind != "cpu" else "gloo"
        distributed.init_process_group(backend, timeout=TIMEOUT)
    machine = Machine(
        date=datetime.now(UTC).date().isoformat(),
        device=kind,
        name=name,
        software=f"torch {torch.__version__}",
        backend=backend,
        nodes=size // per_node,
        per_node=per_node,
        threads=torch.get_num_threads(),
        memory_bytes=memory,
        context_bytes=0.0,
        host_memory_bytes=host_memory_bytes(),
        host_cores=len(os.sched_getaffinity(0)),
    )
    world = World(rank=rank, size=size, device=device, machine=machine)
    check_alike(world)
    # with what a backend allocates for its first message, as in training
    return replace(world, machine=replace(machine, context_bytes=context_bytes(world)))


def leave(world: World) -> None:
    """Part from the other processes."""
    if world.size > 1:
        distributed.destroy_process_group()


def check_alike(world: World) -> None:
    """Raise InputError where ranks have devices, threads or neighbours unlike the first one's."""
    own = world.machine
    others = world.gathered((own.name, own.device, own.threads, own.per_node))
    if len(set(others)) == 1:
        return
    rank, other = next((at, each) for at, each in enumerate(others) if each != others[0])
    texts = [f"{name}, {n} threads, {per} a node" for name, _, n, per in (others[0], other)]
    message = f"rank 0 has {texts[0]}; rank {rank} has {texts[1]}: measure machines of one kind"
    # every rank raises: all of them compared the same list
    leave(world)
    raise InputError.single("command line", "--measure", message)


def processor_name() -> str:
    """What the system calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "processor"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "processor")


def host_memory_bytes() -> float:
    """Of the host, or of the control group that holds it back."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdecimal() else total


def context_bytes(world: World) -> float:
    """What the process holds before its first tensor: of a GPU its context with kernels."""
    if world.is_gpu:
        free, total = torch.cuda.mem_get_info(world.device)
        return float(total - free - torch.cuda.memory_reserved(world.device))
    # Linux counts in KiB
    return float(getrusage(RUSAGE_SELF).ru_maxrss * KIB)


def timed(
    action: Action, world: World, *, together: bool = False, on_host: bool = False
) -> list[float]:
    """Seconds of an action that all ranks do at once: by events on a GPU, by the clock elsewhere.

    Of each rank as many repeats as fit in BUDGET_S, after two that are not counted. ``together``:
    ranks need each other for it, and of each repeat the slowest counts. ``on_host``: by the clock,
    what the device does is not waited for.
    """
    if world.size > 1:
        distributed.barrier()
    once = partial(_by_clock if on_host or not world.is_gpu else _by_events, action, world)
    # allocates and compiles: not counted
    once(1)
    # as many on every rank, by the second trial of the slowest
    first_s = max(*world.gathered(once(1)), 1e-9)
    inner = int(min(max(LEAST_S / first_s, 1.0), MOST_INNER))
    repeats = min(max(int(BUDGET_S / (inner * first_s)), REPEATS[0]), REPEATS[1])
    every = world.gathered([once(inner) / inner for _ in range(repeats)])
    if together:
        return [max(each) for each in zip(*every, strict=True)]
    return [value for each in every for value in each]


def _by_clock(action: Action, world: World, inner: int) -> float:
    world.synchronize()
    start = time.perf_counter()
    for _ in range(inner):
        action()
    return time.perf_counter() - start


def _by_events(action: Action, world: World, inner: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    world.synchronize()
    begin.record()
    for _ in range(inner):
        action()
    end.record()
    # an event has a time only when the device has passed it; elapsed_time is in ms
    world.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
