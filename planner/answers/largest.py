"""The largest micro-batch and the longest sequence that some layout fits, and what binds them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from planner.answers.base import Deadline, Plan
from planner.answers.changes import NOTHING_OFFLOADED, narrowed
from planner.answers.conflict import WITHOUT
from planner.answers.whatif import Case, best, fits, smallest, without_margin
from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.priced import price_all
from planner.limits import MAX_BATCH, MAX_SEQ_LEN
from planner.notes import Note
from planner.search.feasible import SearchTimeoutError
from planner.search.search import Progress
from planner.search.space.legality import violations
from planner.search.space.narrow import narrowing_of
from planner.spec.strategy import Strategy

MICRO_BATCH, SEQUENCE = "micro-batch", "sequence"
BATCH = "global batch"
STEPS_PER_DOUBLING = 16  # values looked at between powers of two: 6 % apart, as sure as peaks are
LEAST_LENGTH = 128
LEAST_BATCHES = 2  # micro-batches of every replica at least: gradients are then accumulated


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

    case: Case
    found: tuple[Largest, ...]
    notes: tuple[Note, ...] = ()
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


@dataclass(kw_only=True)
class _Quantity:
    """Looks at the values of one quantity.

    More sequences or tokens never take less memory in one layout, and what is legal does not hang
    on them: what fits at a value fits at every smaller one.
    """

    name: str
    at: Callable[[int], Case]
    """The question at a value."""
    least: int
    """Of lengths: what all of them are multiples of."""
    most: int
    fixed: int
    deadline: Deadline
    progress: Progress
    known: Strategy | None = field(default=None)
    """A layout that fits at the largest value that is known to fit."""

    def fits(self, value: int) -> bool:
        """Whether a layout of this value fits: the one known, else any.

        Raises SearchTimeoutError.
        """
        if self.known is not None and self._holds(self.known, value):
            return True
        self.progress(f"looking for a {self.name} of {value:,}", 0.0)
        found = fits(self.at(value), self.deadline)
        if found is not None:
            self.known = found.strategy
        return found is not None

    def _holds(self, strategy: Strategy, value: int) -> bool:
        """Whether one layout fits: a cheap question before a search."""
        if self.name == MICRO_BATCH:
            strategy = replace(strategy, micro_batch=value)
        for context in self.at(value).contexts:
            batch = context.job.global_batch // (strategy.dp * strategy.micro_batch)
            same = replace(strategy, num_micro_batches=batch)
            is_legal = not list(violations(context, same))
            if is_legal and memory_estimate(price_all(context, [same])[0]).fits:
                return True
        return False

    def values(self) -> tuple[int, ...]:
        """All that are looked at: between powers of two of the least STEPS_PER_DOUBLING."""
        values, start = list[int](), self.least
        while 2 * start <= self.most:
            step = self.least * max(start // self.least // STEPS_PER_DOUBLING, 1)
            values += range(start, 2 * start, step)
            start *= 2
        return (*values, start)

    def largest(self, above: int) -> tuple[int, int | None, bool]:
        """The largest value that fits, the next one, and whether the time was over before.

        ``above`` is known to fit, or 0. Powers of two are tried until nothing fits, then what
        lies between the last two by halves.
        """
        values = sorted({0, above, *self.values()})
        low, high = values.index(above), len(values)
        try:
            while high == len(values) and (row := self._doubled(values, low)) is not None:
                low, high = (row, high) if self.fits(values[row]) else (low, row)
        except SearchTimeoutError:
            return values[low], None, True
        if high == len(values):
            return values[low], None, False
        low, high = smallest(low, high, lambda row: not self.fits(values[row]))
        is_cut = high - low > 1
        return values[low], None if is_cut else values[high], is_cut

    def _doubled(self, values: Sequence[int], row: int) -> int | None:
        """Where the next power of two of the least stands; None behind the last one."""
        wanted = self.least << (values[row] // self.least).bit_length()
        return values.index(wanted) if wanted <= values[-1] else None


def _binding(quantity: _Quantity, beyond: int) -> tuple[str, ...]:
    """The memories that would let a value fit if they had no limit, each alone or both."""
    return tuple(
        name
        for name, lift in WITHOUT.items()
        if fits(quantity.at(beyond).with_each(lift), quantity.deadline) is not None
    )


def _with_batch(context: Context, micro_batch: int) -> Context:
    """The context with a batch near its own that any layout cuts into whole micro-batches."""
    each = micro_batch * context.cluster.num_accelerators
    number = max(round(context.job.global_batch / each), LEAST_BATCHES)
    return replace(context, job=replace(context.job, global_batch=each * number))


def _fixing(case: Case, micro_batch: int) -> Case:
    """The question at one micro-batch, where its options leave several."""
    if "micro_batch" in case.narrowing.values:
        return case
    texts = (*case.narrowing.texts, f"--fix micro_batch={micro_batch}")
    return replace(case, narrowing=narrowing_of(texts))


def _micro_batch(case: Case, deadline: Deadline, progress: Progress) -> _Quantity:
    """How micro-batches are looked at, whatever the global batch."""

    def at(value: int) -> Case:
        return _fixing(case.with_each(lambda context: _with_batch(context, value)), value)

    return _Quantity(
        name=MICRO_BATCH,
        at=at,
        least=1,
        most=MAX_BATCH,
        fixed=case.context.job.seq_len,
        deadline=deadline,
        progress=progress,
    )


def _sequence(case: Case, deadline: Deadline, progress: Progress, *, has_batch: bool) -> _Quantity:
    """How lengths are looked at, at the smallest micro-batch that is left."""
    options = case.narrowing.values
    micro_batch = min(options.get("micro_batch", ()), default=1)

    def lengthened(context: Context, value: int) -> Context:
        longer = replace(context, job=replace(context.job, seq_len=value))
        return longer if has_batch else _with_batch(longer, micro_batch)

    def at(value: int) -> Case:
        return _fixing(case.with_each(lambda context: lengthened(context, value)), micro_batch)

    degrees = math.lcm(*options.get("cp", ()), *options.get("tp", ()))
    return _Quantity(
        name=SEQUENCE,
        at=at,
        least=LEAST_LENGTH * degrees // (degrees & -degrees),
        most=MAX_SEQ_LEN,
        fixed=micro_batch,
        deadline=deadline,
        progress=progress,
    )


def _divisor(quantity: _Quantity, value: int, batch: int) -> int:
    """The largest micro-batch up to ``value`` that the batch is cut into, and that fits."""
    sizes = [size for size in range(min(value, batch), 0, -1) if batch % size == 0]
    return next((size for size in sizes if quantity.fits(size)), 0)


def _answered(
    case: Case, quantity: _Quantity, *, has_batch: bool, held: Largest | None = None
) -> Largest:
    """The largest value of one quantity, what binds it, and the fastest plan there.

    ``held``: the same with less allowed.
    """
    quantity.known = held.plan.strategy if held and held.plan else None
    value, beyond, is_cut = quantity.largest(held.value if held else 0)
    own, binds = quantity, tuple[str, ...]()
    try:
        if quantity.name == MICRO_BATCH and has_batch and value and not is_cut:
            own = replace(quantity, at=lambda size: _fixing(case, size))
            inside = _divisor(own, value, case.context.job.global_batch)
            if inside < value:
                value, beyond, binds = inside, value, (BATCH,)
        if beyond is not None and not binds:
            binds = _binding(quantity, beyond)
    except SearchTimeoutError:
        beyond, is_cut = None, True
    plans = best(own.at(value), quantity.deadline).plans if value else ()
    return Largest(
        quantity=quantity.name,
        value=value,
        plan=max(plans, key=lambda plan: plan.estimate.tokens_per_s, default=None),
        beyond=beyond,
        binds=binds,
        fixed=quantity.fixed,
        is_cut=is_cut,
        resident=held,
    )


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """The question as read."""

    case: Case
    has_batch: bool
    deadline: Deadline
    progress: Progress
    quantities: tuple[str, ...]

    def answers(self) -> tuple[Largest, ...]:
        """Of every quantity; of lengths alone where options say what micro-batches are left."""
        is_fixed = "micro_batch" in self.case.narrowing.values
        return tuple(
            self.with_resident(name) for name in self.quantities if name == SEQUENCE or not is_fixed
        )

    def with_resident(self, name: str) -> Largest:
        """The largest value, and with nothing offloaded where offloading allows a larger one.

        Options that ask for offloading contradict the second question, which is then left.
        """
        inside = narrowed(self.case, NOTHING_OFFLOADED)
        if inside is None or NOTHING_OFFLOADED in self.case.narrowing.texts:
            return self.largest(self.case, name)
        held = self.largest(inside, name)
        found = self.largest(self.case, name, held)
        return found if found.value > held.value else replace(held, resident=None)

    def largest(self, case: Case, name: str, held: Largest | None = None) -> Largest:
        """The largest value in one part of the space."""
        if name == MICRO_BATCH:
            quantity = _micro_batch(case, self.deadline, self.progress)
        else:
            quantity = _sequence(case, self.deadline, self.progress, has_batch=self.has_batch)
        return _answered(case, quantity, has_batch=self.has_batch, held=held)


def largest(
    case: Case,
    *,
    has_batch: bool,
    keeps_margin: bool,
    quantities: tuple[str, ...] = (MICRO_BATCH, SEQUENCE),
    notes: Sequence[Note] = (),
    deadline: Deadline | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> LargestAnswer:
    """The largest micro-batch at the question's length, and the longest sequence.

    ``has_batch``: the global batch was given, so micro-batches divide it; else it is what they
    need. Where nothing leaves the margin free it is given up, unless the user chose it.
    """
    asking = _Asking(
        case=case,
        has_batch=has_batch,
        deadline=deadline or Deadline(),
        progress=progress,
        quantities=quantities,
    )
    found = asking.answers()
    is_tight = not keeps_margin and not any(one.value or one.is_cut for one in found)
    if is_tight:
        asking = replace(asking, case=without_margin(case))
        found = asking.answers()
    return LargestAnswer(case=asking.case, found=found, notes=tuple(notes), is_tight=is_tight)
