"""Collectives by size and group, and messages between two ranks.

Groups are the first ranks, twice as many each time, and all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import distributed

from planner.calibrate.measure.task import Rates, Task, blank, filled
from planner.calibrate.measure.timing import timed_together
from planner.calibrate.measure.world import World
from planner.calibrate.measured import Measured

SIZES = tuple(2**power for power in range(12, 31, 2))
FIRST_BYTES = 2**16
"""Tried before anything is known of the rate."""
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def group_sizes(world: World) -> list[int]:
    """Ranks of each group: powers of two, and all."""
    sizes = [2**power for power in range(1, world.size.bit_length()) if 2**power < world.size]
    return [*sizes, world.size] if world.size > 1 else []


def collectives(world: World, rates: Rates) -> Iterator[Task]:
    """Every collective of every group, then messages inside a node and between two."""
    for size in group_sizes(world):
        group = distributed.new_group(list(range(size)))
        for kind in KINDS:
            for num_bytes in SIZES:
                run = partial(_collective, world, rates, kind, size, num_bytes, group)
                yield Task(label=f"{kind.replace('_', '-')} {_size(num_bytes)} of {size}", run=run)
    for size in sorted({min(2, world.size), world.size if world.size > world.per_node else 2}):
        for num_bytes in SIZES if world.size > 1 else ():
            run = partial(_message, world, rates, size, num_bytes)
            yield Task(label=f"send {_size(num_bytes)} of {size}", run=run)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:g} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:g} KiB"


def _collective(
    world: World,
    rates: Rates,
    kind: str,
    size: int,
    num_bytes: int,
    group: distributed.ProcessGroup,
) -> Measured | None:
    key = f"{kind} {size}"
    if not rates.fits(key, num_bytes, FIRST_BYTES):
        return None
    act = _ACTIONS[kind](num_bytes, size, world.device.torch, group)
    found = timed_together(act if world.rank < size else _nothing, world)
    rates.learn(key, num_bytes, found)
    return filled(blank(world, what=kind, dtype="fp32", ranks=size, num_bytes=num_bytes), found)


def _nothing() -> None:
    """What ranks outside the group do."""


def _floats(num_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(max(num_bytes // 4, 1), device=device)


def _all_reduce(
    num_bytes: int, _: int, device: torch.device, group: distributed.ProcessGroup
) -> Callable[[], object]:
    vector = _floats(num_bytes, device)
    return lambda: distributed.all_reduce(vector, group=group)


def _all_gather(
    num_bytes: int, size: int, device: torch.device, group: distributed.ProcessGroup
) -> Callable[[], object]:
    part = _floats(num_bytes // size, device)
    whole = part.new_zeros(len(part) * size)
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
    return lambda: gather(whole, part, group=group)


def _reduce_scatter(
    num_bytes: int, size: int, device: torch.device, group: distributed.ProcessGroup
) -> Callable[[], object]:
    part = _floats(num_bytes // size, device)
    whole = part.new_zeros(len(part) * size)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    return lambda: scatter(part, whole, group=group)


def _all_to_all(
    num_bytes: int, size: int, device: torch.device, group: distributed.ProcessGroup
) -> Callable[[], object]:
    sent = _floats(num_bytes // size * size, device)
    sent = sent[: len(sent) // size * size]
    received = torch.empty_like(sent)
    return lambda: distributed.all_to_all_single(received, sent, group=group)


_ACTIONS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


def _message(world: World, rates: Rates, size: int, num_bytes: int) -> Measured | None:
    """From the first rank to the last of ``size`` and back, half of which is one way."""
    key = f"p2p {size}"
    if not rates.fits(key, num_bytes, FIRST_BYTES):
        return None
    vector = _floats(num_bytes, world.device.torch)
    peer = size - 1

    def first() -> None:
        distributed.send(vector, peer)
        distributed.recv(vector, peer)

    def last() -> None:
        distributed.recv(vector, 0)
        distributed.send(vector, 0)

    act = {0: first, peer: last}.get(world.rank, _nothing)
    both = timed_together(act, world)
    rates.learn(key, num_bytes, both)
    one_way = replace(both, time_s=both.time_s / 2, spread_s=both.spread_s / 2)
    return filled(blank(world, what="p2p", dtype="fp32", ranks=size, num_bytes=num_bytes), one_way)
