"""Measures this machine with torch: all ranks do the same at once, as in training.

Launches, GEMMs, attention, memory-bound kernels, host links, Adam on the host, collectives; by one
process alone or by those that torchrun started. Kernels' results are allocated anew each time;
operands rotate, so that a cache does not hold all of them.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle, product
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

from planner.calibrate.rows import Machine, Measured, Table, What
from planner.errors import InputError
from planner.units import KIB, US

Value = TypeVar("Value")
Action = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]
Progress = Callable[[str, float], None]
# Work of a size, and the sizes as a row has them.
Choice = tuple[float, dict[str, int]]

# Of one repeat: shorter actions are done several times in it, so that waiting for a device, some
# 10 us, is no part of a time worth naming.
LEAST_S = 2e-3
BUDGET_S = 0.25  # of the repeats of one action together
REPEATS = (5, 25)  # fewest and most
HIDDEN = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (128, 512, 2048, 8192)
SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)  # of precisions that are not the usual one
ROTATED_BYTES, MOST_SETS = 2**26, 8
COPIED_BYTES = {"cpu": (2**22, 2**24, 2**26), "gpu": (2**28, 2**30)}
# Tensors that are read and written: an addition reads two, the others one.
PASSES: dict[What, int] = {"copy": 2, "add": 3, "norm": 2}
NORM_WIDTH = 1024
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (32, 64, 128)
TOKENS_OF_ATTENTION, MOST_HEADS = 8192, 16
ADAM_PARAMS = {"cpu": 2**23, "gpu": 2**26}
COLLECTIVES: tuple[What, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVE_BYTES = tuple(2**power for power in range(12, 31, 2))


class Task(NamedTuple):
    """One measurement: the sizes that it may be made at, and what is timed then."""

    what: What
    action: Callable[..., Action]  # what is timed, of sizes
    choices: Sequence[Choice] = ((0.0, {}),)  # the first that takes no longer than it may is made
    dtype: str = ""
    first: float = 0.0  # work that is tried before anything is known of its rate
    ranks: int | None = None  # of a group whose ranks need each other [all, each on its own]


@dataclass(frozen=True, kw_only=True)
class World:
    """The processes that measure together, and the device of this one."""

    rank: int
    size: int
    device: torch.device
    machine: Machine  # of all processes

    @property
    def is_gpu(self) -> bool:
        """True if kernels run on a device besides the host."""
        return self.machine.device != "cpu"

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
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    host_memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # of the control group that holds the process back, "max" where it does not
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.is_file() else ""
    host_memory = min(host_memory, float(text)) if text.isdecimal() else host_memory
    # without a GPU every process is an accelerator with its share of the host's memory
    kind: Literal["cpu", "cuda", "rocm"] = "cpu"
    memory, device = host_memory / per_node, torch.device("cpu")
    processor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*: (.+)", processor, re.MULTILINE)
    name = model[1].strip() if model else "processor"
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if per_node > count:
            message = f"{per_node} processes on {count} GPUs; start one for each"
            raise InputError.single("command line", "--measure", message)
        device = torch.device("cuda", local % count)
        torch.cuda.set_device(device)
        properties = torch.cuda.get_device_properties(device)
        kind = "rocm" if torch.version.hip else "cuda"
        name, memory = properties.name, float(properties.total_memory)
    backend = ""
    if size > 1:
        backend = "nccl" if kind != "cpu" else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(minutes=10))
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
        host_memory_bytes=host_memory,
        host_cores=len(os.sched_getaffinity(0)),
    )
    world = World(rank=rank, size=size, device=device, machine=machine)
    check_alike(world)
    # what the process holds before its first tensor, with what a backend allocates for its first
    # message, as in training: of a GPU its context with kernels; Linux counts the host's in KiB
    held = float(getrusage(RUSAGE_SELF).ru_maxrss * KIB)
    if world.is_gpu:
        free, total = torch.cuda.mem_get_info(device)
        held = float(total - free - torch.cuda.memory_reserved(device))
    return replace(world, machine=replace(machine, context_bytes=held))


def leave(world: World) -> None:
    """Part from the other processes."""
    if world.size > 1:
        distributed.destroy_process_group()


def check_alike(world: World) -> None:
    """Raise InputError where ranks have devices, threads or neighbours unlike the first one's."""
    own = world.machine
    kinds = dict.fromkeys(world.gathered((own.name, own.device, own.threads, own.per_node)))
    if len(kinds) == 1:
        return
    texts = [f"{name}, {n} threads, {per} a node" for name, _, n, per in kinds]
    message = f"ranks have {'; '.join(texts)}: measure machines of one kind"
    # every rank raises: all of them compared the same list
    leave(world)
    raise InputError.single("command line", "--measure", message)


def timed(task: Task, action: Action, world: World) -> list[float]:
    """Seconds of an action that all ranks do at once, of one message where it goes there and back.

    Of each rank as many repeats as fit in BUDGET_S, after two that are not counted. Where ranks
    need each other for it, of each repeat the slowest counts. Of launches what the device does is
    not waited for.
    """
    if world.size > 1:
        distributed.barrier()
    # allocates and compiles: not counted
    _once(task, action, world, 1)
    # as many on every rank, by the second trial of the slowest
    first_s = max(*world.gathered(_once(task, action, world, 1)), 1e-9)
    # a device takes some thousand launches before the host has to wait for it
    inner = int(min(max(LEAST_S / first_s, 1.0), 1000))
    fewest, most = REPEATS
    repeats = min(max(int(BUDGET_S / (inner * first_s)), fewest), most)
    every = world.gathered([_once(task, action, world, inner) for _ in range(repeats)])
    if task.ranks is None:
        return [value for each in every for value in each]
    return [max(each) for each in zip(*every, strict=True)]


def _once(task: Task, action: Action, world: World, inner: int) -> float:
    """Seconds of one of so many in a row."""
    world.synchronize()
    start = time.perf_counter()
    for _ in range(inner):
        action()
    if task.what != "launch":
        world.synchronize()
    ways = 2 if task.what == "p2p" else 1
    return (time.perf_counter() - start) / inner / ways


def measure(world: World, progress: Progress) -> Table:
    """Return the time of each kind of work on this machine; the same table on every rank."""
    # random operands: products of zeros draw less power and run faster
    torch.manual_seed(world.rank)
    rows = rows_of(list(all_tasks(world)), world, progress)
    return Table(machine=world.machine, rows=tuple(rows))


def rows_of(tasks: Sequence[Task], world: World, progress: Progress) -> Iterator[Measured]:
    """The row of each task but of those that would take too long.

    What is left out follows from times that all ranks agreed on, so that all leave out the same.
    """
    # of one kernel: larger sizes are left out
    longest_s = 0.02 if world.is_gpu else 0.12
    # what would take that long by the fastest so far of each kind
    most_work: dict[object, float] = {}
    for at, task in enumerate(tasks):
        progress(f"measuring {task.what.replace('_', ' ')} {task.dtype}", at / len(tasks))
        key = (task.what, task.dtype, task.ranks)
        most = most_work.get(key, task.first)
        choices = (choice for choice in task.choices if choice[0] <= most)
        work, sizes = next(choices, (0.0, None))
        if sizes is None:
            continue
        seconds = timed(task, task.action(**sizes), world)
        low, median, high = np.percentile(seconds, [25, 50, 75])
        most_work[key] = max(most_work.get(key, 0.0), longest_s * work / median)
        yield Measured(
            what=task.what,
            dtype=task.dtype,
            ranks=task.ranks or world.size,
            time_us=float(median) / US,
            spread_us=float(high - low) / 2 / US,
            repeats=len(seconds),
            **sizes,
        )


def all_tasks(world: World) -> Iterator[Task]:
    """Everything, of each kind the smallest first."""
    device = "gpu" if world.is_gpu else "cpu"
    # the usual precision first
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if world.is_gpu:
        first_dtype = {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported() else {}
        dtypes = {**first_dtype, "fp16": torch.float16, "fp32": torch.float32}
    usual, *others = dtypes
    # a kernel of 64 elements does next to nothing
    yield Task("launch", lambda: partial(torch.zeros(64, device=world.device).add_, 1.0))
    # outer and inner side of a weight over the hidden size: projections, the two of an MLP
    widened = product(TOKENS, HIDDEN, ((1, 1), (4, 1), (1, 4)))
    shapes = {usual: [(m, outer * h, inner * h) for m, h, (outer, inner) in widened]}
    # precisions but the usual one only say their peak: squares are enough
    shapes |= {dtype: [(side, side, side) for side in SQUARES] for dtype in others}
    for dtype, sides in shapes.items():
        shaped = [{"m": m, "n": n, "k": k} for m, n, k in sides]
        works = [(2.0 * math.prod(each.values()), each) for each in shaped]
        action = partial(_product, world, dtypes[dtype])
        for each in sorted(works, key=lambda choice: choice[0]):
            yield Task("product", action, [each], dtype, first=2.0 * 128**3)
    passes: tuple[What, ...] = ("attention_forward", "attention_backward")
    # one head of the shortest sequence
    first = 2.0 * SEQ_LENS[0] ** 2 * HEAD_DIMS[-1]
    for head_dim, seq_len, what in product(HEAD_DIMS, SEQ_LENS, passes):
        action = partial(_attention, world, dtypes[usual], what)
        yield Task(what, action, list(_heads(head_dim, seq_len)), usual, first)
    for num_bytes, what in product(COPIED_BYTES[device], PASSES):
        action = partial(_stream, world, dtypes[usual], what)
        sizes = {"num_bytes": PASSES[what] * num_bytes}
        yield Task(what, action, [(0.0, sizes)], usual)
    links: tuple[What, ...] = ("host_to_device", "device_to_host")
    for what in links if world.is_gpu else ():
        yield Task(what, partial(_link, world, what), [(0.0, {"num_bytes": 2**28})])
    yield Task("host_adam", _adam, [(0.0, {"params": ADAM_PARAMS[device]})], "fp32")
    if world.size > 1:
        yield from _collective_tasks(world)


def _heads(head_dim: int, seq_len: int) -> Iterator[Choice]:
    """Sequences and heads of attention, from as many as fill a batch down to one head."""
    batch, heads = max(TOKENS_OF_ATTENTION // seq_len, 1), MOST_HEADS
    while heads:
        sizes = {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": head_dim}
        yield 2.0 * seq_len**2 * head_dim * batch * heads, sizes
        # fewer sequences first: a batch of one is still a shape of training
        batch, heads = (batch // 2, heads) if batch > 1 else (batch, heads // 2)


def _collective_tasks(world: World) -> Iterator[Task]:
    """Groups of the first ranks, twice as many each time, and of all; messages near and far."""
    powers = [2**power for power in range(1, world.size.bit_length())]
    far = world.size if world.size > world.machine.per_node else 2
    found: list[tuple[What, int, Callable[..., Action]]] = []
    for size in sorted({*powers, world.size}):
        group = distributed.new_group(list(range(size)))
        found += [
            (kind, size, partial(_collective, world, kind, size, group)) for kind in COLLECTIVES
        ]
    found += [("p2p", size, partial(_message, world, size - 1)) for size in sorted({2, far})]
    for (kind, size, act), num_bytes in product(found, COLLECTIVE_BYTES):
        choices = [(num_bytes, {"num_bytes": num_bytes})]
        yield Task(kind, act, choices, "fp32", 2.0**16, size)


def _rotating(world: World, kind: torch.dtype, *shapes: Sequence[int]) -> Iterator[Tensors]:
    num_bytes = kind.itemsize * sum(map(math.prod, shapes))
    # so many that caches do not hold them, so few that large ones do not fill the memory
    count = int(min(max(ROTATED_BYTES / num_bytes, 1), MOST_SETS))
    return cycle([_random(world, kind, *shapes) for _ in range(count)])


def _random(world: World, kind: torch.dtype, *shapes: Sequence[int]) -> Tensors:
    made = (torch.randn(shape, device=world.device) for shape in shapes)
    return tuple(each.to(kind) for each in made)


def _product(world: World, kind: torch.dtype, m: int, n: int, k: int) -> Action:
    """``m`` tokens by a weight of ``k`` inputs and ``n`` outputs."""
    operands = _rotating(world, kind, (m, k), (n, k))
    return lambda: functional.linear(*next(operands))


def _attention(world: World, kind: torch.dtype, what: What, **sizes: int) -> Action:
    """Causal attention, one pass; ``sizes`` are batch, heads, seq_len and head_dim."""
    query, key, value, gradient = _random(world, kind, *[tuple(sizes.values())] * 4)
    forward = partial(functional.scaled_dot_product_attention, query, key, value, is_causal=True)
    if what == "attention_forward":
        return forward
    qkv = [each.requires_grad_() for each in (query, key, value)]
    return partial(torch.autograd.grad, forward(), qkv, gradient, retain_graph=True)


def _stream(world: World, kind: torch.dtype, what: What, num_bytes: int) -> Action:
    """A copy into a tensor that exists, an addition or norm into a new one."""
    shape = (num_bytes // PASSES[what] // (NORM_WIDTH * kind.itemsize), NORM_WIDTH)
    operands = _rotating(world, kind, shape, shape)

    def act() -> object:
        x, y = next(operands)
        if what == "copy":
            return y.copy_(x)
        return x + y if what == "add" else functional.layer_norm(x, (NORM_WIDTH,))

    return act


def _link(world: World, what: What, num_bytes: int) -> Action:
    """A copy between pinned host memory and the device."""
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(num_bytes, dtype=torch.uint8, device=world.device)
    to, source = (device, host) if what == "host_to_device" else (host, device)
    return partial(to.copy_, source, non_blocking=True)


def _adam(params: int) -> Action:
    """Torch's AdamW on parameters in host memory, fused into one pass."""
    weight = torch.nn.Parameter(torch.zeros(params))
    weight.grad = torch.ones(params)
    return partial(torch.optim.AdamW([weight], fused=True).step)


def _collective(
    world: World, kind: What, size: int, group: distributed.ProcessGroup, num_bytes: int
) -> Action:
    """One collective of the first ``size`` ranks; the others do nothing."""
    part = torch.zeros(max(num_bytes // size // 4, 1), device=world.device)
    whole = part.new_zeros(len(part) * size)
    received = torch.empty_like(whole)
    # newer names of the two where torch has them: the older ones warn there
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    actions: dict[str, Action] = {
        "all_reduce": partial(distributed.all_reduce, whole, group=group),
        "all_gather": partial(gather, whole, part, group=group),
        "reduce_scatter": partial(scatter, part, whole, group=group),
        "all_to_all": partial(distributed.all_to_all_single, received, whole, group=group),
    }
    return actions[kind] if world.rank < size else lambda: None


def _message(world: World, peer: int, num_bytes: int) -> Action:
    """Return the action that sends from the first rank to ``peer`` and back."""
    vector = torch.zeros(num_bytes // 4, device=world.device)
    other = peer if world.rank == 0 else 0
    steps: list[Action] = [
        partial(step, vector, other) for step in (distributed.send, distributed.recv)
    ]

    def act() -> None:
        # one side answers what the other has sent
        for step in steps if world.rank == 0 else reversed(steps):
            step()

    return act if world.rank in (0, peer) else lambda: None
