"""Collectives played with real vectors: ranks that pass pieces in rounds, every byte counted."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Message = tuple[int, int, slice, bool]
"""Sender, receiver, part of the vector, whether the receiver adds it."""


class Machine:
    """n ranks with a vector each; a round delivers its messages all at once."""

    def __init__(self, num_ranks: int, length: int) -> None:
        generator = np.random.default_rng(num_ranks)
        self.vectors = generator.integers(0, 1000, (num_ranks, length)).astype(float)
        self.expected = self.vectors.sum(axis=0)
        self.rounds = 0
        self.sent: dict[int, int] = defaultdict(int)
        self.path_elements = 0
        """Largest message of every round, added up: what the wire takes in sequence."""

    def round(self, messages: Iterable[Message]) -> None:
        batch = [(b, part, add, self.vectors[a, part].copy(), a) for a, b, part, add in messages]
        if not batch:
            return
        self.rounds += 1
        loads: dict[int, int] = defaultdict(int)
        for receiver, part, add, data, sender in batch:
            if add:
                self.vectors[receiver, part] += data
            else:
                self.vectors[receiver, part] = data
            self.sent[sender] += data.size
            loads[sender] += data.size
        self.path_elements += max(loads.values())

    @property
    def is_reduced(self) -> bool:
        return bool((self.vectors == self.expected).all())

    @property
    def busiest(self) -> int:
        return max(self.sent.values(), default=0)


def parts_of(length: int, count: int) -> list[slice]:
    step = length // count
    return [slice(i * step, (i + 1) * step) for i in range(count)]


def ring(n: int, length: int) -> Machine:
    machine, parts = Machine(n, length), parts_of(length, n)
    for step in range(n - 1):
        machine.round((r, (r + 1) % n, parts[(r - step) % n], True) for r in range(n))
    for step in range(n - 1):
        machine.round((r, (r + 1) % n, parts[(r + 1 - step) % n], False) for r in range(n))
    return machine


def _folded(n: int, length: int) -> tuple[Machine, int]:
    """Ranks beyond the power of two have given their vector to a partner."""
    machine, power = Machine(n, length), 2 ** (n.bit_length() - 1)
    machine.round((r, r - power, slice(0, length), True) for r in range(power, n))
    return machine, power


def _unfolded(machine: Machine, power: int, n: int, length: int) -> Machine:
    machine.round((r - power, r, slice(0, length), False) for r in range(power, n))
    return machine


def _halve_and_double(machine: Machine, power: int, length: int) -> None:
    mine = [slice(0, length)] * power
    distance, history = 1, []
    while distance < power:
        messages, kept = [], []
        for r in range(power):
            low, high = mine[r].start, mine[r].stop
            middle = (low + high) // 2
            keep, give = slice(low, middle), slice(middle, high)
            if r & distance:
                keep, give = give, keep
            messages.append((r, r ^ distance, give, True))
            kept.append(keep)
        machine.round(messages)
        history.append(mine)
        mine = kept
        distance *= 2
    for before in reversed(history):
        distance //= 2
        machine.round((r, r ^ distance, mine[r], False) for r in range(power))
        mine = before


def halving_doubling(n: int, length: int) -> Machine:
    machine, power = _folded(n, length)
    _halve_and_double(machine, power, length)
    return _unfolded(machine, power, n, length)


def rabenseifner(n: int, length: int) -> Machine:
    """Pairs beyond the power of two swap halves first, so that nobody adds a whole vector."""
    machine, power = Machine(n, length), 2 ** (n.bit_length() - 1)
    first, second = parts_of(length, 2)
    extra = range(power, n)
    given = [(r, r - power, first, True) for r in extra]
    machine.round([*given, *((r - power, r, second, True) for r in extra)])
    machine.round((r, r - power, second, False) for r in extra)
    _halve_and_double(machine, power, length)
    return _unfolded(machine, power, n, length)


def butterfly(n: int, length: int) -> Machine:
    machine, power = _folded(n, length)
    distance = 1
    while distance < power:
        machine.round((r, r ^ distance, slice(0, length), True) for r in range(power))
        distance *= 2
    return _unfolded(machine, power, n, length)


def tree(n: int, length: int) -> Machine:
    """Binomial reduce to rank 0, binomial broadcast from it."""
    machine, whole = Machine(n, length), slice(0, length)
    distances = [2**k for k in range((n - 1).bit_length())]
    for distance in distances:
        machine.round(
            (r, r - distance, whole, True) for r in range(n) if r % (2 * distance) == distance
        )
    for distance in reversed(distances):
        machine.round(
            (r, r + distance, whole, False)
            for r in range(n)
            if r % (2 * distance) == 0 and r + distance < n
        )
    return machine


def direct(n: int, length: int) -> Machine:
    machine, parts = Machine(n, length), parts_of(length, n)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    machine.round((a, b, parts[b], True) for a, b in pairs)
    machine.round((a, b, parts[a], False) for a, b in pairs)
    return machine


def naive(n: int, length: int) -> Machine:
    machine = Machine(n, length)
    own = machine.vectors.copy()
    for step in range(1, n):
        machine.rounds += 1
        machine.path_elements += length
        for r in range(n):
            machine.vectors[(r + step) % n] += own[r]
            machine.sent[r] += length
    return machine


def hierarchical(inner: int, outer: int, length: int) -> Machine:
    """Ring reduce-scatter inside, ring all-reduce of the parts across, ring all-gather inside."""
    n = inner * outer
    machine, parts = Machine(n, length), parts_of(length, inner)

    def across(u: int, r: int) -> int:
        return u * inner + r % inner

    every = [(u, r) for u in range(outer) for r in range(inner)]

    def inside(phase: int, *, adds: bool) -> None:
        for step in range(inner - 1):
            machine.round(
                (across(u, r), across(u, r + 1), parts[(r + phase - step) % inner], adds)
                for u, r in every
            )

    def piece(r: int, number: int) -> slice:
        start = parts[(r + 1) % inner].start
        part = parts_of(length // inner, outer)[number % outer]
        return slice(start + part.start, start + part.stop)

    inside(0, adds=True)
    for phase, adds in ((0, True), (1, False)):
        for step in range(outer - 1):
            machine.round(
                (across(u, r), across((u + 1) % outer, r), piece(r, u + phase - step), adds)
                for u, r in every
            )
    inside(1, adds=False)
    return machine
