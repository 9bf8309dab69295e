"""Matrix products, attention, memory-bound kernels and launches, as training uses them.

Results are allocated anew each time, as in training; operands rotate, so that a cache does not
hold all of them.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, product

import torch
from torch.nn import functional

from planner.calibrate.measure.task import Rates, Task, blank, filled
from planner.calibrate.measure.timing import Timed, launch_s, summary, timed
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Measured

HIDDEN = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (128, 512, 2048, 8192)
WIDENED = ((1, 1), (4, 1), (1, 4))
"""Outer and inner side of a weight over the hidden size: projections, the two of an MLP."""
SQUARES = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Of precisions that are not the usual one."""
FIRST_FLOPS = 2.0 * 128 * 128 * 128
"""Of a product that is tried before anything is known of its rate."""
ROTATED_BYTES, MOST_SETS = 2**26, 8
COPIED_BYTES = {"cpu": (2**22, 2**24, 2**26), "gpu": (2**28, 2**30)}
NORM_WIDTH = 1024
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (32, 64, 128)
TOKENS_OF_ATTENTION, MOST_HEADS = 8192, 16
SMALL = 64
"""Elements of a kernel that does next to nothing."""

LAUNCH_REPEATS = 9

Tensors = tuple[torch.Tensor, ...]


def _rotating(make: Callable[[], Tensors]) -> Iterator[Tensors]:
    first = make()
    size = sum(each.nbytes for each in first)
    count = int(min(max(ROTATED_BYTES / size, 1), MOST_SETS))
    return cycle([first, *(make() for _ in range(count - 1))])


def products(world: World, rates: Rates) -> Iterator[Task]:
    """``m`` tokens by a weight of ``k`` inputs and ``n`` outputs; smallest first."""
    for at, dtype in enumerate(world.device.dtypes()):
        shapes = [(m, a * h, b * h) for m, h, (a, b) in product(TOKENS, HIDDEN, WIDENED)]
        shapes = [(side,) * 3 for side in SQUARES] if at else shapes
        for sides in sorted(shapes, key=lambda shape: shape[0] * shape[1] * shape[2]):
            yield _product(world, rates, dtype, sides)


def _product(world: World, rates: Rates, dtype: str, sides: tuple[int, ...]) -> Task:
    m, n, k = sides
    flops = 2.0 * m * n * k

    def run() -> Measured | None:
        if not rates.fits(dtype, flops, FIRST_FLOPS):
            return None
        kind, device = world.device.dtypes()[dtype], world.device.torch

        def make() -> Tensors:
            inputs = torch.randn(m, k, device=device).to(kind)
            return inputs, torch.randn(n, k, device=device).to(kind)

        operands = _rotating(make)
        with torch.no_grad():
            found = timed(lambda: functional.linear(*next(operands)), world)
        rates.learn(dtype, flops, found)
        return filled(blank(world, what="product", dtype=dtype, m=m, n=n, k=k), found)

    return Task(label=f"product {m} x {n} x {k} {dtype}", run=run)


def attention(world: World, rates: Rates) -> Iterator[Task]:
    """Causal attention forward and backward, by length and size of heads."""
    for head_dim, seq_len in product(HEAD_DIMS, SEQ_LENS):
        for is_backward in (False, True):
            yield _attention(world, rates, head_dim, seq_len, is_backward=is_backward)


def _shape(rates: Rates, kind: str, seq_len: int, head_dim: int) -> tuple[int, int] | None:
    """Batch and heads: as many as take no longer than a kernel may; None where one head does."""
    least = 2.0 * SEQ_LENS[0] ** 2 * HEAD_DIMS[-1]
    each = 2.0 * seq_len**2 * head_dim
    batch, heads = max(TOKENS_OF_ATTENTION // seq_len, 1), MOST_HEADS
    while batch * heads > 1 and not rates.fits(kind, each * batch * heads, least):
        batch, heads = (batch // 2, heads) if batch > 1 else (batch, heads // 2)
    return (batch, heads) if rates.fits(kind, each * batch * heads, least) else None


def _attention(
    world: World, rates: Rates, head_dim: int, seq_len: int, *, is_backward: bool
) -> Task:
    what = "attention_backward" if is_backward else "attention_forward"
    device = world.device
    dtype = next(iter(device.dtypes()))

    def run() -> Measured | None:
        shape = _shape(rates, what, seq_len, head_dim)
        if shape is None:
            return None
        batch, heads = shape
        size = (batch, heads, seq_len, head_dim)
        whole = [torch.randn(size, device=device.torch) for _ in range(4)]
        q, k, v, gradient = (each.to(device.dtypes()[dtype]) for each in whole)
        found = _attend((q, k, v), gradient, world, is_backward=is_backward)
        rates.learn(what, 2.0 * seq_len**2 * head_dim * batch * heads, found)
        sizes = {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": head_dim}
        return filled(blank(world, what=what, dtype=dtype, **sizes), found)

    return Task(label=f"{what.replace('_', ' ')} {seq_len} x {head_dim}", run=run)


def _attend(qkv: Tensors, gradient: torch.Tensor, world: World, *, is_backward: bool) -> Timed:
    def attend() -> torch.Tensor:
        q, k, v = qkv
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if not is_backward:
        with torch.no_grad():
            return timed(attend, world)
    for each in qkv:
        each.requires_grad_()
    out = attend()
    return timed(lambda: torch.autograd.grad(out, qkv, gradient, retain_graph=True), world)


def memory_bound(world: World) -> Iterator[Task]:
    """Copies, additions and norms of tensors that are new each time; the copy's is not."""
    sizes = COPIED_BYTES["gpu" if world.device.is_gpu else "cpu"]
    for num_bytes in sizes:
        for what, passes in (("copy", 2), ("add", 3), ("norm", 2)):
            yield _streamed(world, what, passes, num_bytes)


def _streamed(world: World, what: str, passes: int, num_bytes: int) -> Task:
    device = world.device
    dtype = next(iter(device.dtypes()))
    kind = device.dtypes()[dtype]

    def run() -> Measured:
        rows = num_bytes // (NORM_WIDTH * kind.itemsize)

        def make() -> Tensors:
            first = torch.randn(rows, NORM_WIDTH, device=device.torch).to(kind)
            return first, torch.zeros_like(first)

        operands = _rotating(make)

        def act() -> object:
            x, y = next(operands)
            if what == "copy":
                return y.copy_(x)
            return x + y if what == "add" else functional.layer_norm(x, (NORM_WIDTH,))

        with torch.no_grad():
            found = timed(act, world)
        return filled(blank(world, what=what, dtype=dtype, num_bytes=passes * num_bytes), found)

    return Task(label=f"{what} {num_bytes / 2**20:.0f} MiB", run=run)


def launches(world: World) -> Iterator[Task]:
    """A kernel that does next to nothing: what the host takes to start it."""

    def run() -> Measured:
        x = torch.zeros(SMALL, device=world.device.torch)
        own = [launch_s(lambda: x.add_(1.0), world) for _ in range(LAUNCH_REPEATS)]
        found = summary([value for each in world.gathered(own) for value in each])
        return filled(blank(world, what="launch"), found)

    yield Task(label="launch", run=run)
