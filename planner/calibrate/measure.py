"""Measures this machine with torch: all ranks do the same at once, as in training.

Launches, matrix products, attention, memory-bound kernels, host links, Adam on the host,
collectives. Kernels' results are allocated anew each time; operands rotate, so that a cache does
not hold all of them.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, product

import torch
from torch import distributed
from torch.nn import functional

from planner.calibrate.rows import Machine, Measured, Table, What
from planner.calibrate.world import (
    Action,
    Rates,
    Timed,
    World,
    context_bytes,
    host_memory_bytes,
    summary,
    timed,
)
from planner.units import KIB, MIB

Tensors = tuple[torch.Tensor, ...]
Progress = Callable[[str, float], None]
# What is measured, and its row; None where it would take too long.
Task = tuple[str, Callable[[], Measured | None]]

LONGEST_S = {"cpu": 0.12, "cuda": 0.02, "rocm": 0.02}  # of one kernel: larger sizes are left out
HIDDEN = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (128, 512, 2048, 8192)
# Outer and inner side of a weight over the hidden size: projections, the two of an MLP.
WIDENED = ((1, 1), (4, 1), (1, 4))
SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)  # of precisions that are not the usual one
FIRST_FLOPS = 2.0 * 128**3  # of a product that is tried before anything is known of its rate
ROTATED_BYTES, MOST_SETS = 2**26, 8
COPIED_BYTES = {"cpu": (2**22, 2**24, 2**26), "gpu": (2**28, 2**30)}
NORM_WIDTH = 1024
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (32, 64, 128)
TOKENS_OF_ATTENTION, MOST_HEADS = 8192, 16
SMALL = 64  # elements of a kernel that does next to nothing
LAUNCHES, LAUNCH_REPEATS = 200, 9
LINK_BYTES = 2**28
ADAM_PARAMS = {"cpu": 2**23, "gpu": 2**26}
COLLECTIVES: tuple[What, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVE_BYTES = tuple(2**power for power in range(12, 31, 2))
FIRST_BYTES = 2**16  # of a collective that is tried before anything is known of its rate


def measure(world: World, progress: Progress, check: Callable[[Machine], None]) -> Table:
    """What this machine takes for each kind of work; the same table on every rank.

    ``check`` may raise for the machine, before anything is measured.
    """
    # random operands: products of zeros draw less power and run faster
    torch.manual_seed(world.rank)
    machine = this_machine(world)
    check(machine)
    tasks = list(all_tasks(world))
    rows: list[Measured] = []
    for at, (label, run) in enumerate(tasks):
        progress(label, at / len(tasks))
        row = run()
        if row is not None:
            rows.append(row)
    return Table(machine=machine, rows=tuple(rows))


def this_machine(world: World) -> Machine:
    """The machine of all processes."""
    return Machine(
        date=datetime.now(UTC).date().isoformat(),
        device=world.kind,
        name=world.name,
        software=f"torch {torch.__version__}",
        backend=world.backend,
        nodes=world.size // world.per_node,
        per_node=world.per_node,
        threads=torch.get_num_threads(),
        memory_bytes=world.memory_bytes,
        context_bytes=context_bytes(world),
        host_memory_bytes=host_memory_bytes(),
        host_cores=len(os.sched_getaffinity(0)),
    )


def all_tasks(world: World) -> Iterator[Task]:
    """Everything, of each kind the smallest first."""
    rates = Rates(longest_s=LONGEST_S[world.kind])
    yield "launch", partial(_launch, world)
    for at, dtype in enumerate(world.dtypes()):
        shapes = [(m, a * h, b * h) for m, h, (a, b) in product(TOKENS, HIDDEN, WIDENED)]
        # precisions but the usual one only say their peak: squares are enough
        shapes = [(side, side, side) for side in SQUARES] if at else shapes
        for m, n, k in sorted(shapes, key=lambda shape: shape[0] * shape[1] * shape[2]):
            yield (
                f"product {m} x {n} x {k} {dtype}",
                partial(_product, world, rates, dtype, m, n, k),
            )
    passes: tuple[What, ...] = ("attention_forward", "attention_backward")
    for head_dim, seq_len, what in product(HEAD_DIMS, SEQ_LENS, passes):
        label = f"{what.replace('_', ' ')} {seq_len} x {head_dim}"
        yield label, partial(_attention, world, rates, what, head_dim, seq_len)
    streams: tuple[What, ...] = ("copy", "add", "norm")
    for num_bytes, what in product(COPIED_BYTES[world.sizes], streams):
        yield f"{what} {_size(num_bytes)}", partial(_stream, world, what, num_bytes)
    links: tuple[What, ...] = ("host_to_device", "device_to_host")
    for what in links if world.is_gpu else ():
        yield what.replace("_", " "), partial(_link, world, what)
    yield "Adam on the host", partial(_adam, world)
    yield from _collective_tasks(world, rates)


def _collective_tasks(world: World, rates: Rates) -> Iterator[Task]:
    """Groups of the first ranks, twice as many each time, and of all; messages near and far."""
    if world.size == 1:
        return
    powers = [2**power for power in range(1, world.size.bit_length())]
    for size in sorted({*powers, world.size}):
        group = distributed.new_group(list(range(size)))
        for kind, num_bytes in product(COLLECTIVES, COLLECTIVE_BYTES):
            label = f"{kind.replace('_', '-')} {_size(num_bytes)} of {size}"
            yield label, partial(_collective, world, rates, kind, size, num_bytes, group)
    for size in sorted({2, world.size if world.size > world.per_node else 2}):
        for num_bytes in COLLECTIVE_BYTES:
            label = f"send {_size(num_bytes)} of {size}"
            yield label, partial(_message, world, rates, size, num_bytes)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / MIB:g} MiB" if num_bytes >= MIB else f"{num_bytes / KIB:g} KiB"


def _row(world: World, what: What, found: Timed, dtype: str = "", **sizes: int) -> Measured:
    return Measured(
        what=what,
        dtype=dtype,
        ranks=sizes.pop("ranks", world.size),
        time_s=found.time_s,
        spread_s=found.spread_s,
        repeats=found.repeats,
        **sizes,
    )


def _rotating(make: Callable[[], Tensors]) -> Iterator[Tensors]:
    """Several sets of operands in turn."""
    first = make()
    size = sum(each.nbytes for each in first)
    # so many that caches do not hold them, so few that large ones do not fill the memory
    count = int(min(max(ROTATED_BYTES / size, 1), MOST_SETS))
    return cycle([first, *(make() for _ in range(count - 1))])


def _launch(world: World) -> Measured:
    """What the host takes to start a kernel; the device's own work is not waited for."""
    x = torch.zeros(SMALL, device=world.device)
    own = []
    for _ in range(LAUNCH_REPEATS):
        x.add_(1.0)
        world.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1.0)
        own.append((time.perf_counter() - start) / LAUNCHES)
        world.synchronize()
    return _row(world, "launch", summary([s for each in world.gathered(own) for s in each]))


def _product(world: World, rates: Rates, dtype: str, m: int, n: int, k: int) -> Measured | None:
    """``m`` tokens by a weight of ``k`` inputs and ``n`` outputs."""
    flops = 2.0 * m * n * k
    if not rates.fits(dtype, flops, FIRST_FLOPS):
        return None
    kind = world.dtypes()[dtype]

    def make() -> Tensors:
        inputs, weight = (torch.randn(side, k, device=world.device).to(kind) for side in (m, n))
        return inputs, weight

    operands = _rotating(make)
    with torch.no_grad():
        found = timed(lambda: functional.linear(*next(operands)), world)
    rates.learn(dtype, flops, found)
    return _row(world, "product", found, dtype, m=m, n=n, k=k)


def _attention(
    world: World, rates: Rates, what: What, head_dim: int, seq_len: int
) -> Measured | None:
    """Causal attention: of as many sequences and heads as take no longer than a kernel may."""
    of_head = 2.0 * seq_len**2 * head_dim
    least = 2.0 * SEQ_LENS[0] ** 2 * HEAD_DIMS[-1]
    batch, heads = max(TOKENS_OF_ATTENTION // seq_len, 1), MOST_HEADS
    while not rates.fits(what, of_head * batch * heads, least):
        if batch * heads == 1:
            return None
        # fewer sequences first: a batch of one is still a shape of training
        batch, heads = (batch // 2, heads) if batch > 1 else (batch, heads // 2)
    dtype, kind = next(iter(world.dtypes().items()))
    shape = (batch, heads, seq_len, head_dim)
    whole = [torch.randn(shape, device=world.device).to(kind) for _ in range(4)]
    *qkv, gradient = whole

    def forward() -> torch.Tensor:
        q, k, v = qkv
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if what == "attention_forward":
        with torch.no_grad():
            found = timed(forward, world)
    else:
        for each in qkv:
            each.requires_grad_()
        out = forward()
        found = timed(lambda: torch.autograd.grad(out, qkv, gradient, retain_graph=True), world)
    rates.learn(what, of_head * batch * heads, found)
    return _row(
        world, what, found, dtype, batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim
    )


def _stream(world: World, what: What, num_bytes: int) -> Measured:
    """A copy into a tensor that exists, an addition or norm into a new one."""
    dtype, kind = next(iter(world.dtypes().items()))
    rows = num_bytes // (NORM_WIDTH * kind.itemsize)

    def make() -> Tensors:
        first = torch.randn(rows, NORM_WIDTH, device=world.device).to(kind)
        return first, torch.zeros_like(first)

    operands = _rotating(make)

    def act() -> object:
        x, y = next(operands)
        if what == "copy":
            return y.copy_(x)
        return x + y if what == "add" else functional.layer_norm(x, (NORM_WIDTH,))

    with torch.no_grad():
        found = timed(act, world)
    # an addition reads two tensors and writes one; the others read one
    passes = 3 if what == "add" else 2
    return _row(world, what, found, dtype, num_bytes=passes * num_bytes)


def _link(world: World, what: What) -> Measured:
    """A copy between pinned host memory and the device."""
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(LINK_BYTES, dtype=torch.uint8, device=world.device)
    to, source = (device, host) if what == "host_to_device" else (host, device)
    found = timed(lambda: to.copy_(source, non_blocking=True), world)
    return _row(world, what, found, num_bytes=LINK_BYTES)


def _adam(world: World) -> Measured:
    """Torch's AdamW on parameters in host memory, fused into one pass."""
    count = ADAM_PARAMS[world.sizes]
    weight = torch.nn.Parameter(torch.zeros(count))
    weight.grad = torch.ones(count)
    optimizer = torch.optim.AdamW([weight], fused=True)
    return _row(world, "host_adam", timed(optimizer.step, world), "fp32", params=count)


def _collective(
    world: World,
    rates: Rates,
    kind: What,
    size: int,
    num_bytes: int,
    group: distributed.ProcessGroup,
) -> Measured | None:
    key = f"{kind} {size}"
    if not rates.fits(key, num_bytes, FIRST_BYTES):
        return None
    part = torch.zeros(max(num_bytes // size // 4, 1), device=world.device)
    whole = part.new_zeros(len(part) * size)
    received = torch.empty_like(whole)
    # newer names of the two where torch has them: the older ones warn there
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    actions: dict[str, Action] = {
        "all_reduce": lambda: distributed.all_reduce(whole, group=group),
        "all_gather": lambda: gather(whole, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(received, whole, group=group),
    }
    action = actions[kind] if world.rank < size else _nothing
    found = timed(action, world, together=True)
    rates.learn(key, num_bytes, found)
    return _row(world, kind, found, "fp32", ranks=size, num_bytes=num_bytes)


def _nothing() -> None:
    """What ranks outside the group do."""


def _message(world: World, rates: Rates, size: int, num_bytes: int) -> Measured | None:
    """From the first rank to the last of ``size`` and back, half of which is one way."""
    key, peer = f"p2p {size}", size - 1
    if not rates.fits(key, num_bytes, FIRST_BYTES):
        return None
    vector = torch.zeros(num_bytes // 4, device=world.device)

    def first() -> None:
        distributed.send(vector, peer)
        distributed.recv(vector, peer)

    def last() -> None:
        distributed.recv(vector, 0)
        distributed.send(vector, 0)

    action = {0: first, peer: last}.get(world.rank, _nothing)
    both = timed(action, world, together=True)
    rates.learn(key, num_bytes, both)
    one_way = Timed(time_s=both.time_s / 2, spread_s=both.spread_s / 2, repeats=both.repeats)
    return _row(world, "p2p", one_way, "fp32", ranks=size, num_bytes=num_bytes)
