"""The largest micro-batch and the longest sequence that some layout fits, and what binds them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.memory_items import memory_estimate
from planner.cost.subject import subjects_of
from planner.errors import InputError
from planner.limits import MAX_BATCH, MAX_SEQ_LEN
from planner.plans.clock import LEAST_S
from planner.plans.limits import (
    HBM,
    HOST,
    NOTHING_OFFLOADED,
    UNLIMITED_BYTES,
    narrowing_of,
    with_host_factor,
    with_usable,
)
from planner.plans.plan import Plan
from planner.search.explaining.feasible import OutOfTimeError, first_fit
from planner.search.search import Progress, search
from planner.search.space.legality import violations
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import Strategy

MICRO_BATCH, SEQUENCE = "micro-batch", "sequence"
BATCH = "global batch"
STEPS_PER_DOUBLING = 16
"""Lengths between powers of two that are looked at: 6 % apart, as sure as peaks are known."""
LEAST_LENGTH = 128
LEAST_BATCHES = 2
"""Micro-batches of every replica at least: gradients are then accumulated."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Contexts of one value, and the part of the space that is searched."""

    contexts: tuple[Context, ...]
    narrowing: Narrowing


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest value of one quantity at which some layout fits, and the best plan there."""

    quantity: str
    value: int
    """Sequences of a micro-batch, or tokens of a sequence; 0 where not even the least fits."""
    plan: Plan | None
    """The fastest there; None where nothing fits."""
    beyond: int | None
    """The next value looked at, at which nothing fits; None where time or range ended first."""
    binds: tuple[str, ...]
    """Memories any of which, were it without limit, would let ``beyond`` fit; or the batch."""
    fixed: int
    """The other quantity: tokens of a sequence, or sequences of a micro-batch."""
    is_cut: bool = False
    """The time was over before a larger value was decided."""
    resident: "Largest | None" = None
    """With nothing offloaded, where this plan offloads."""


@dataclass(frozen=True, kw_only=True)
class LargestAnswer:
    """What was asked, and the largest value of each quantity."""

    contexts: tuple[Context, ...]
    narrowing: Narrowing
    found: tuple[Largest, ...]
    notes: tuple[str, ...] = ()
    is_tight: bool = False
    """Nothing leaves the margin free, by which published peaks exceeded the model."""

    @property
    def has_any(self) -> bool:
        """Whether something fits at some value."""
        return any(one.value for one in self.found)

    @property
    def is_cut(self) -> bool:
        """Whether the time was over before all was decided."""
        return any(one.is_cut for one in self.found)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """How the question of one quantity looks at a value."""

    quantity: str
    at: Callable[[int], Question]
    least: int
    """Of lengths: what all of them are multiples of."""
    most: int
    fixed: int
    deadline: float | None
    progress: Progress

    def fits(self, value: int) -> Strategy | None:
        """A layout of this value that fits; None where none does. Raises OutOfTimeError."""
        self.progress(f"looking for a {self.quantity} of {value:,}", 0.0)
        asked = self.at(value)
        for context in asked.contexts:
            found = first_fit(context, asked.narrowing, deadline=self.deadline)
            if found is not None:
                return found.strategy
        return None

    def also_fits(self, strategy: Strategy, value: int) -> bool:
        """Whether the same layout does at another value: a cheap question before the search."""
        moved = strategy
        if self.quantity == MICRO_BATCH:
            moved = replace(strategy, micro_batch=value)
        for context in self.at(value).contexts:
            batch = context.job.global_batch // (moved.dp * moved.micro_batch)
            same = replace(moved, num_micro_batches=batch)
            if list(violations(context, same)):
                continue
            if memory_estimate(subjects_of(context, [same])[0]).fits:
                return True
        return False

    def step(self, value: int) -> int:
        """To the next value that is looked at."""
        return self.least * max(self.doubled(value) // self.least // 2 // STEPS_PER_DOUBLING, 1)

    def doubled(self, value: int) -> int:
        """The next of least, 2 x least, 4 x least, ... above a value."""
        return self.least << (value // self.least).bit_length()


@dataclass(kw_only=True)
class _Bracket:
    """The largest value known to fit, a layout that does, and the least known not to."""

    asked: _Asked
    low: int = 0
    known: Strategy | None = None
    high: int | None = None

    def look_at(self, value: int) -> None:
        """Decide one value: by the layout known first, then by a search."""
        if self.known is None or not self.asked.also_fits(self.known, value):
            found = self.asked.fits(value)
            if found is None:
                self.high = value
                return
            self.known = found
        self.low = value

    def close(self) -> None:
        """Double until nothing fits, then halve what lies between.

        More sequences or tokens never take less memory in one layout, and what is legal does not
        hang on them: what fits at a value fits at every smaller one. Raises OutOfTimeError.
        """
        doubled = self.asked.doubled
        while self.high is None and doubled(self.low) <= self.asked.most:
            self.look_at(doubled(self.low))
        while self.low and self.high and self.high - self.low > self.asked.step(self.low):
            self._halve(self.asked.step(self.low), self.high)

    def _halve(self, step: int, high: int) -> None:
        """Look at the middle, and raise what fits by the layout that does, which costs little."""
        self.look_at(self.low + max((high - self.low) // step // 2, 1) * step)
        while self.known and self.low + step < (self.high or 0):
            if not self.asked.also_fits(self.known, self.low + step):
                return
            self.low += step


def _binding(asked: _Asked, beyond: int) -> tuple[str, ...]:
    """The memories that would let a value fit if they had no limit, each alone or both."""
    ways: dict[tuple[str, ...], Callable[[Context], Context]] = {
        (HBM,): lambda context: with_usable(context, UNLIMITED_BYTES),
        (HOST,): _with_any_host,
    }
    found = [names for names, lift in ways.items() if _fits_so(asked, beyond, lift)]
    return tuple(name for names in found for name in names)


def _with_any_host(context: Context) -> Context:
    host = context.cluster.node.host_memory_bytes
    return with_host_factor(context, UNLIMITED_BYTES / host) if host else context


def _fits_so(asked: _Asked, value: int, lift: Callable[[Context], Context]) -> bool:
    return replace(asked, at=lambda v: _lifted(asked.at(v), lift)).fits(value) is not None


def _lifted(question: Question, lift: Callable[[Context], Context]) -> Question:
    contexts = tuple(lift(context) for context in question.contexts)
    return replace(question, contexts=contexts)


def _with_batch(context: Context, micro_batch: int) -> Context:
    """The context with a batch near its own that any layout cuts into whole micro-batches."""
    each = micro_batch * context.cluster.num_accelerators
    number = max(round(context.job.global_batch / each), LEAST_BATCHES)
    return replace(context, job=replace(context.job, global_batch=each * number))


def _fixing(narrowing: Narrowing, micro_batch: int) -> Narrowing:
    if "micro_batch" in narrowing.values:
        return narrowing
    return narrowing_of((*narrowing.texts, f"--fix micro_batch={micro_batch}"))


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """The question as read, from which those of single values are made."""

    contexts: tuple[Context, ...]
    narrowing: Narrowing
    has_batch: bool
    deadline: float | None
    progress: Progress

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Those that the options leave."""
        return tuple(self.narrowing.values.get("micro_batch", ()))

    def micro_batch(self) -> _Asked:
        """How micro-batches are looked at, whatever the global batch."""

        def at(value: int) -> Question:
            contexts = tuple(_with_batch(context, value) for context in self.contexts)
            return Question(contexts=contexts, narrowing=_fixing(self.narrowing, value))

        return self._asked(MICRO_BATCH, at, 1, MAX_BATCH, self.contexts[0].job.seq_len)

    def sequence(self) -> _Asked:
        """How lengths are looked at, at the smallest micro-batch that is left."""
        micro_batch = min(self.micro_batches, default=1)

        def at(value: int) -> Question:
            jobs = [replace(c.job, seq_len=value) for c in self.contexts]
            long = [replace(c, job=job) for c, job in zip(self.contexts, jobs, strict=True)]
            contexts = long if self.has_batch else [_with_batch(c, micro_batch) for c in long]
            narrowing = _fixing(self.narrowing, micro_batch)
            return Question(contexts=tuple(contexts), narrowing=narrowing)

        values = self.narrowing.values
        degrees = math.lcm(*values.get("cp", ()), *values.get("tp", ()))
        least = LEAST_LENGTH * degrees // (degrees & -degrees)
        return self._asked(SEQUENCE, at, least, MAX_SEQ_LEN, micro_batch)

    def of(self, quantity: str) -> _Asked:
        """How the values of a quantity are looked at."""
        return self.micro_batch() if quantity == MICRO_BATCH else self.sequence()

    def _asked(
        self, quantity: str, at: Callable[[int], Question], least: int, most: int, fixed: int
    ) -> _Asked:
        return _Asked(
            quantity=quantity,
            at=at,
            least=least,
            most=most,
            fixed=fixed,
            deadline=self.deadline,
            progress=self.progress,
        )

    def of_batch(self, asked: _Asked) -> _Asked:
        """How micro-batches of the global batch given are looked at."""

        def at(value: int) -> Question:
            return Question(contexts=self.contexts, narrowing=_fixing(self.narrowing, value))

        return replace(asked, at=at)


def _answered(asking: _Asking, asked: _Asked, held: Largest | None = None) -> Largest:
    """The largest value of one quantity, what binds it, and the fastest plan there.

    ``held``: the same with less allowed.
    """
    plan = held.plan if held else None
    bracket = _Bracket(
        asked=asked,
        low=held.value if held else 0,
        known=plan.strategy if plan else None,
    )
    own, binds = asked, tuple[str, ...]()
    value, beyond, is_cut = 0, None, False
    try:
        bracket.close()
        value, beyond = bracket.low, bracket.high
        if asked.quantity == MICRO_BATCH and asking.has_batch and value:
            own = asking.of_batch(asked)
            inside = _divisor(own, value, asking.contexts[0].job.global_batch)
            if inside < value:
                value, beyond, binds = inside, value, (BATCH,)
        if beyond is not None and not binds:
            binds = _binding(asked, beyond)
    except OutOfTimeError:
        value, beyond, is_cut = value or bracket.low, None, True
    return Largest(
        quantity=asked.quantity,
        value=value,
        plan=_best(own.at(value), asked.deadline) if value else None,
        beyond=beyond,
        binds=binds,
        fixed=asked.fixed,
        is_cut=is_cut,
        resident=held,
    )


def _divisor(asked: _Asked, value: int, batch: int) -> int:
    """The largest micro-batch up to ``value`` that the batch is cut into, and that fits."""
    sizes = [size for size in range(min(value, batch), 0, -1) if batch % size == 0]
    return next((size for size in sizes if asked.fits(size) is not None), 0)


def _best(question: Question, deadline: float | None) -> Plan | None:
    """The fastest plan of a question; None where time ended first."""
    left_s = None if deadline is None else max(deadline - time.monotonic(), LEAST_S)
    plans: list[Plan] = []
    for context in question.contexts:
        result = search(
            context,
            top=1,
            narrowing=question.narrowing,
            with_frontier=False,
            time_limit_s=left_s,
        )
        plans += [
            Plan(
                context=context,
                strategy=one.strategy,
                estimate=estimate(context, one.strategy),
                is_optimal=one.is_optimal,
            )
            for one in result.plans
        ]
    return max(plans, key=lambda plan: plan.estimate.tokens_per_s, default=None)


def _with_resident(asking: _Asking, quantity: str) -> Largest:
    """The largest value, and with nothing offloaded where offloading allows a larger one.

    Options that ask for offloading contradict the second question, which is then left.
    """
    texts = asking.narrowing.texts
    try:
        inside = None if NOTHING_OFFLOADED in texts else narrowing_of((*texts, NOTHING_OFFLOADED))
    except InputError:
        inside = None
    if inside is None:
        return _answered(asking, asking.of(quantity))
    resident = replace(asking, narrowing=inside)
    held = _answered(resident, resident.of(quantity))
    found = _answered(asking, asking.of(quantity), held)
    return found if found.value > held.value else replace(held, resident=None)


def largest(
    contexts: Sequence[Context],
    narrowing: Narrowing,
    *,
    has_batch: bool,
    keeps_margin: bool,
    notes: Sequence[str] = (),
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> LargestAnswer:
    """The largest micro-batch at the contexts' length, and the longest sequence.

    ``has_batch``: the global batch was given, so micro-batches divide it; else it is what they
    need. Where nothing leaves the margin free it is given up, unless the user chose it.
    """
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    asking = _Asking(
        contexts=tuple(contexts),
        narrowing=narrowing,
        has_batch=has_batch,
        deadline=deadline,
        progress=progress,
    )
    quantities = (SEQUENCE,) if asking.micro_batches else (MICRO_BATCH, SEQUENCE)
    found = tuple(_with_resident(asking, quantity) for quantity in quantities)
    is_tight = not keeps_margin and not any(one.value or one.is_cut for one in found)
    if is_tight:
        bare = tuple(replace(context, margin_fraction=0.0) for context in contexts)
        asking = replace(asking, contexts=bare)
        found = tuple(_with_resident(asking, quantity) for quantity in quantities)
    return LargestAnswer(
        contexts=asking.contexts,
        narrowing=narrowing,
        found=found,
        notes=tuple(notes),
        is_tight=is_tight,
    )
