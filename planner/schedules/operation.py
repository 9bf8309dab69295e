"""Operations of a pipeline schedule, and the order in which one device runs them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple


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
    With ``num_deferred`` weight gradients are operations of their own and run behind the backward
    of that many later.
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
        operation = Operation("F", self.chunks[local], self._next("F", local))
        self.slots.append((operation,))

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
