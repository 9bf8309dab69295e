"""Measures this machine with torch: all ranks do the same at once, as in training.

Launches, GEMMs, attention, memory-bound kernels, host links, Adam on the host,
collectives. Kernels' results are allocated anew each time; operands rotate, so that a cache does
not hold all of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

from planner.calibrate.rows import Machine, Measured, Table, What
from planner.calibrate.world import Action, World, timed

Tensors = tuple[torch.Tensor, ...]
Progress = Callable[[str, float], None]
# Work of a size, and the sizes as a row has them.
Choice = tuple[float, dict[str, int]]

LONGEST_S = {"cpu": 0.12, "cuda": 0.02, "rocm": 0.02}  # of one kernel: larger sizes are left out
HIDDEN = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (128, 512, 2048, 8192)
# Outer and inner side of a weight over the hidden size: projections, the two of an MLP.
WIDENED = ((1, 1), (4, 1), (1, 4))
SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)  # of precisions that are not the usual one
FIRST_FLOPS = 2.0 * 128**3  # of a product that is tried before anything is known of its rate
ROTATED_BYTES, MOST_SETS = 2**26, 8
COPIED_BYTES = {"cpu": (2**22, 2**24, 2**26), "gpu": (2**28, 2**30)}
# Tensors that are read and written: an addition reads two, the others one.
PASSES: dict[What, int] = {"copy": 2, "add": 3, "norm": 2}
NORM_WIDTH = 1024
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (32, 64, 128)
TOKENS_OF_ATTENTION, MOST_HEADS = 8192, 16
SMALL = 64  # elements of a kernel that does next to nothing
LINK_BYTES = 2**28
ADAM_PARAMS = {"cpu": 2**23, "gpu": 2**26}
COLLECTIVES: tuple[What, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVE_BYTES = tuple(2**power for power in range(12, 31, 2))
FIRST_BYTES = 2**16  # of a collective that is tried before anything is known of its rate


@dataclass(frozen=True, kw_only=True)
class Task:
    """One measurement: the sizes that it may be made at, and what is timed then."""

    what: What
    action: Callable[..., Action]  # what is timed, of sizes
    choices: Sequence[Choice] = ((0.0, {}),)  # the first that takes no longer than it may is made
    first: float = 0.0  # work that is tried before anything is known of its rate
    dtype: str = ""
    ranks: int | None = None  # of a group whose ranks need each other [all, each on its own]
    ways: int = 1  # of a message, there and back
    on_host: bool = False  # what the device does is not waited for


def measure(world: World, progress: Progress, check: Callable[[Machine], None]) -> Table:
    """What this machine takes for each kind of work; the same table on every rank.

    ``check`` may raise for the machine, before anything is measured.
    """
    # random operands: products of zeros draw less power and run faster
    torch.manual_seed(world.rank)
    check(world.machine)
    rows = rows_of(list(all_tasks(world)), world, progress)
    return Table(machine=world.machine, rows=tuple(rows))


def rows_of(tasks: Sequence[Task], world: World, progress: Progress) -> Iterator[Measured]:
    """The row of each task but of those that would take too long.

    What is left out follows from times that all ranks agreed on, so that all leave out the same.
    """
    # by the fastest so far of each kind
    most_work: dict[object, float] = {}
    for at, task in enumerate(tasks):
        progress(f"measuring {task.what.replace('_', ' ')} {task.dtype}", at / len(tasks))
        key = (task.what, task.dtype, task.ranks)
        most = most_work.get(key, task.first)
        work, sizes = next((each for each in task.choices if each[0] <= most), (0.0, None))
        if sizes is None:
            continue
        together = task.ranks is not None
        seconds = timed(task.action(**sizes), world, together=together, on_host=task.on_host)
        low, median, high = np.percentile(seconds, [25, 50, 75]) / task.ways
        most_work[key] = max(
            most_work.get(key, 0.0), LONGEST_S[world.machine.device] * work / median
        )
        yield Measured(
            what=task.what,
            dtype=task.dtype,
            ranks=task.ranks or world.size,
            time_s=float(median),
            spread_s=float(high - low) / 2,
            repeats=len(seconds),
            **sizes,
        )


def all_tasks(world: World) -> Iterator[Task]:
    """Everything, of each kind the smallest first."""
    dtypes = world.dtypes()
    usual, *others = dtypes
    device = "gpu" if world.is_gpu else "cpu"
    yield Task(what="launch", action=partial(_launch, world), on_host=True)
    shapes = {usual: [(m, a * h, b * h) for m, h, (a, b) in product(TOKENS, HIDDEN, WIDENED)]}
    # precisions but the usual one only say their peak: squares are enough
    shapes |= {dtype: [(side, side, side) for side in SQUARES] for dtype in others}
    for dtype, sides in shapes.items():
        works = [(2.0 * m * n * k, {"m": m, "n": n, "k": k}) for m, n, k in sides]
        for each in sorted(works, key=lambda choice: choice[0]):
            yield Task(
                what="product",
                action=partial(_product, world, dtypes[dtype]),
                choices=[each],
                first=FIRST_FLOPS,
                dtype=dtype,
            )
    passes: tuple[What, ...] = ("attention_forward", "attention_backward")
    for head_dim, seq_len, what in product(HEAD_DIMS, SEQ_LENS, passes):
        yield Task(
            what=what,
            action=partial(_attention, world, dtypes[usual], what),
            choices=list(_heads(head_dim, seq_len)),
            first=2.0 * SEQ_LENS[0] ** 2 * HEAD_DIMS[-1],
            dtype=usual,
        )
    for num_bytes, what in product(COPIED_BYTES[device], PASSES):
        yield Task(
            what=what,
            action=partial(_stream, world, dtypes[usual], what),
            choices=[(0.0, {"num_bytes": PASSES[what] * num_bytes})],
            dtype=usual,
        )
    links: tuple[What, ...] = ("host_to_device", "device_to_host")
    for what in links if world.is_gpu else ():
        yield Task(
            what=what,
            action=partial(_link, world, what),
            choices=[(0.0, {"num_bytes": LINK_BYTES})],
        )
    yield Task(
        what="host_adam",
        action=_adam,
        choices=[(0.0, {"params": ADAM_PARAMS[device]})],
        dtype="fp32",
    )
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
        yield Task(
            what=kind,
            action=act,
            choices=[(num_bytes, {"num_bytes": num_bytes})],
            first=FIRST_BYTES,
            dtype="fp32",
            ranks=size,
            ways=2 if kind == "p2p" else 1,
        )


def _rotating(world: World, kind: torch.dtype, *shapes: Sequence[int]) -> Iterator[Tensors]:
    """Several sets of random operands in turn."""
    num_bytes = kind.itemsize * sum(map(math.prod, shapes))
    # so many that caches do not hold them, so few that large ones do not fill the memory
    count = int(min(max(ROTATED_BYTES / num_bytes, 1), MOST_SETS))
    return cycle([_random(world, kind, *shapes) for _ in range(count)])


def _random(world: World, kind: torch.dtype, *shapes: Sequence[int]) -> Tensors:
    return tuple(torch.randn(shape, device=world.device).to(kind) for shape in shapes)


def _launch(world: World) -> Action:
    """What the host takes to start a kernel."""
    x = torch.zeros(SMALL, device=world.device)
    return partial(x.add_, 1.0)


def _product(world: World, kind: torch.dtype, m: int, n: int, k: int) -> Action:
    """``m`` tokens by a weight of ``k`` inputs and ``n`` outputs."""
    operands = _rotating(world, kind, (m, k), (n, k))
    return lambda: functional.linear(*next(operands))


def _attention(
    world: World,
    kind: torch.dtype,
    what: What,
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
) -> Action:
    """Causal attention, one pass."""
    *qkv, gradient = _random(world, kind, *[(batch, heads, seq_len, head_dim)] * 4)
    forward = partial(functional.scaled_dot_product_attention, *qkv, is_causal=True)
    if what == "attention_forward":
        return forward
    for each in qkv:
        each.requires_grad_()
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
    return actions[kind] if world.rank < size else _nothing


def _nothing() -> None:
    """What ranks outside the group do."""


def _message(world: World, peer: int, num_bytes: int) -> Action:
    """From the first rank to ``peer`` and back."""
    vector = torch.zeros(num_bytes // 4, device=world.device)
    other = peer if world.rank == 0 else 0
    steps: list[Action] = [
        partial(step, vector, other) for step in (distributed.send, distributed.recv)
    ]

    def act() -> None:
        # one side answers what the other has sent
        for step in steps if world.rank == 0 else reversed(steps):
            step()

    return act if world.rank in (0, peer) else _nothing
