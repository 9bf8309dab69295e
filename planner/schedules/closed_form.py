"""Operations of a device, their order, and GPipe, 1F1B and interleaved 1F1B.

Of the three: makespan, micro-batches in flight, order of operations. Sources: GPipe, arXiv
1811.06965, section 2.3; 1F1B, PipeDream-Flush, arXiv 2006.09503 and Megatron-LM's default;
interleaved 1F1B, where every stage holds v chunks of layers, arXiv 2104.04473, section 2.2.2.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from planner.units import Array


class Operation(NamedTuple):
    """Forward (F), gradient of the input (B) or of the weights (W) of a chunk and micro-batch.

    Chunks are numbered from embedding to loss.
    """

    kind: Literal["F", "B", "W"]
    chunk: int
    micro_batch: int


# Operations a device runs as one: all inputs before it starts, all outputs when it ends. A whole
# backward is (B, W); a forward overlapped with another micro-batch's backward is (F, B, W).
Slot = tuple[Operation, ...]
# What one device runs, one slot after the other.
Order = tuple[Slot, ...]


def alternating(
    work: Sequence[tuple[int, int]],
    backward_work: Sequence[tuple[int, int]],
    *,
    num_warmup: int,
    num_deferred: int | None = None,
) -> Order:
    """``num_warmup`` forwards, then a forward and a backward in turn, then the other backwards.

    ``work``: (chunk, micro-batch) in the order of forwards, ``backward_work`` in that of backwards.
    With ``num_deferred`` weight gradients run of their own behind the backward of as many later.
    """

    def weight(position: int) -> Slot:
        return (Operation("W", *backward_work[position]),)

    total, slots = len(work), list[Slot]()
    slots += [(Operation("F", *item),) for item in work[:num_warmup]]
    for position, item in enumerate(backward_work):
        if num_warmup + position < total:
            slots.append((Operation("F", *work[num_warmup + position]),))
        if num_deferred is None:
            slots.append((Operation("B", *item), Operation("W", *item)))
            continue
        slots.append((Operation("B", *item),))
        if position >= num_deferred:
            slots.append(weight(position - num_deferred))
    if num_deferred is not None:
        slots += [weight(position) for position in range(max(total - num_deferred, 0), total)]
    return tuple(slots)


def in_groups(
    chunks: Sequence[int], num_micro_batches: int, group: int
) -> Iterator[tuple[int, int]]:
    """(chunk, micro-batch) group by group: all chunks run one group before the next starts."""
    for start in range(0, num_micro_batches, group):
        yield from product(chunks, range(start, min(start + group, num_micro_batches)))


@dataclass(kw_only=True)
class OrderBuilder:
    """Appends slots of a device that holds two chunks, each taking its micro-batches in turn."""

    chunks: tuple[int, int]
    first_micro_batches: tuple[int, int] = (0, 0)
    slots: list[Slot] = field(default_factory=list)
    _counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    _deferred: list[tuple[int, Operation]] = field(default_factory=list)
    """Weight gradients not yet appended, by local chunk."""

    def _next(self, kind: Literal["F", "B"], local: int) -> int:
        number = self.first_micro_batches[local] + self._counts[kind, local]
        self._counts[kind, local] += 1
        return number

    def _backward(self, local: int) -> tuple[Operation, Operation]:
        micro_batch, chunk = self._next("B", local), self.chunks[local]
        return (Operation("B", chunk, micro_batch), Operation("W", chunk, micro_batch))

    def forward(self, local: int) -> None:
        """Append the next forward of a chunk."""
        self.slots.append((Operation("F", self.chunks[local], self._next("F", local)),))

    def backward(self, local: int) -> None:
        """Append the next whole backward of a chunk."""
        self.slots.append(self._backward(local))

    def together(self, forward: int, backward: int) -> None:
        """Append a forward of one chunk overlapped with a whole backward of the other."""
        ahead = Operation("F", self.chunks[forward], self._next("F", forward))
        self.slots.append((ahead, *self._backward(backward)))

    def input_gradient(self, local: int) -> None:
        """Append the next backward of a chunk without its weight gradient."""
        operation, weight = self._backward(local)
        self._deferred.append((local, weight))
        self.slots.append((operation,))

    def weight_gradient(self, local: int | None = None) -> None:
        """Append the oldest deferred weight gradient (of a chunk)."""
        found = next(item for item in self._deferred if local in (None, item[0]))
        self._deferred.remove(found)
        self.slots.append((found[1],))

    def split_backward(self, local: int) -> None:
        """Append the next backward of a chunk and its weight gradient, one after the other."""
        self.slots += [(operation,) for operation in self._backward(local)]

    def remaining_weight_gradients(self, local: int | None = None) -> None:
        """Append all deferred weight gradients (of a chunk)."""
        while any(local in (None, item[0]) for item in self._deferred):
            self.weight_gradient(local)


def gpipe_in_flight(num_micro_batches: Array) -> Array:
    """Micro-batches whose activations every stage holds at its peak: all m."""
    return num_micro_batches * 1.0


def one_f_one_b_makespan_s(
    slowest_s: Array, sum_s: Array, num_micro_batches: Array, vpp: Array | int = 1
) -> Array:
    """``m · max_i T_i + (Σ_i T_i - max_i T_i) / v``, with T_i forward plus backward of stage i.

    For equal stages this is m·T·(1 + (p-1)/(m v)): interleaving divides the bubble by v, not the
    work (arXiv 2104.04473, sections 2.2.1 and 2.2.2). GPipe has the bubble of v = 1, for which it
    holds more micro-batches. For unequal stages it is the time of the slowest stage's steady phase
    plus one pass through the others: never less than the event simulation's time (without
    transfers), exact where the last stage is the slowest, and more where an earlier one is, since
    part of the pass then runs beside the steady phase. Over random pipelines (p 4 to 16, m from p
    to 4p, 300 each): stages spread by 5 %, +0.6 % on average, at most +3.3 %; stages and their
    ratio of forward to backward by 20 %, +2.6 %, at most +15.5 %; both by 50 %, +4.7 %, at most
    +22.8 %. GPipe's unequal stages take ``(m - 1)(max_i F_i + max_i B_i) + Σ_i T_i``, with F_i
    forward and B_i whole backward: more where two stages share the two maxima.
    """
    return num_micro_batches * slowest_s + (sum_s - slowest_s) / vpp


def one_f_one_b_in_flight(stage: Array, pp: Array | float, num_micro_batches: Array) -> Array:
    """Micro-batches whose activations stage i holds at its peak: min(p - i, m)."""
    return np.minimum(pp - stage, num_micro_batches) * 1.0


def interleaved_in_flight(
    stage: Array, pp: Array | float, num_micro_batches: Array, vpp: Array
) -> Array:
    """Whole-stage activations held at the peak, in units of one micro-batch of all v chunks.

    ``min((2 (p - i - 1) + (v - 1) p + 1) / v, m)``; for the first stage
    ``p (1 + (p - 1) / (p v))`` (arXiv 2205.05198, section 4.2.3).
    """
    chunks = 2.0 * (pp - stage - 1.0) + (vpp - 1.0) * pp + 1.0
    return np.minimum(chunks / vpp, num_micro_batches)


def interleaved_order(
    device: int,
    num_devices: int,
    num_micro_batches: int,
    vpp: int,
    *,
    ahead: int = 2,
    num_deferred: int | None = None,
) -> Order:
    """Return a device's order: groups of p micro-batches through chunks c·p + i, c < v, in turn.

    ``ahead (p - i - 1) + (v - 1) p`` forwards come first, then a forward and a backward in turn,
    then backwards; of one chunk ``ahead`` is 1. Raises ValueError where p does not divide m when
    interleaved. Source: megatron/core/pipeline_parallel/schedules.py,
    ``forward_backward_pipelining_with_interleaving``.
    """
    if vpp > 1 and num_micro_batches % num_devices:
        raise ValueError(
            f"interleaving needs micro-batches in multiples of {num_devices} devices; "
            f"given {num_micro_batches}"
        )
    chunks = range(device, num_devices * vpp, num_devices)
    num_warmup = ahead * (num_devices - device - 1) + (vpp - 1) * num_devices
    return alternating(
        list(in_groups(chunks, num_micro_batches, num_devices)),
        list(in_groups(chunks[::-1], num_micro_batches, num_devices)),
        num_warmup=min(num_warmup, num_micro_batches * vpp),
        num_deferred=num_deferred,
    )


def chunk_layers(layers_per_stage: tuple[int, ...], vpp: int) -> tuple[int, ...]:
    """Layers of every chunk from embedding to head; chunk c is on stage c mod p.

    Of M layers on the largest stage, its chunk c holds ``ceil((M - c) / v)``. Each stage starts
    from those and gives up what it lacks: the first stage from its first chunk, the last stage
    from its last one, others from their largest ones.
    """
    largest = max(layers_per_stage)
    full = [-(-(largest - chunk) // vpp) for chunk in range(vpp)]
    last = len(layers_per_stage) - 1
    stages = [list(full) for _ in layers_per_stage]
    for stage, chunks in enumerate(stages):
        lacking = largest - layers_per_stage[stage]
        if stage in (0, last):
            chunks[0 if stage == 0 else -1] -= lacking
            continue
        for _ in range(lacking):
            largest_chunk = max(zip(chunks, range(vpp), strict=True))[1]
            chunks[largest_chunk] -= 1
    return tuple(chunks[chunk] for chunk in range(vpp) for chunks in stages)
