"""The largest micro-batch and the longest sequence that some layout fits, and what binds them."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from planner.answers.base import Deadline, Plan
from planner.answers.changes import NOTHING_OFFLOADED, narrowed
from planner.answers.conflict import WITHOUT
from planner.answers.row import Row, row_of
from planner.answers.rows import InputsRow, PlanRow
from planner.answers.whatif import best, bisect, fits, without_margin
from planner.cost.context import Context
from planner.limits import MAX_SEQ_LEN
from planner.query.resolve import Case
from planner.search.feasible import SearchTimeoutError
from planner.search.search import Progress, no_progress
from planner.search.space.expressions import LARGEST
from planner.search.space.narrow import narrowing_of

MICRO_BATCH, SEQUENCE = "micro-batch", "sequence"
BATCH = "global batch"
STEPS_PER_DOUBLING = 16  # values looked at between powers of two: 6 % apart, as sure as peaks are


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The largest value of one quantity at which some layout fits, and the best plan there."""

    quantity: str
    value: int  # sequences or tokens; 0 where not even the least fits
    plan: Plan | None  # the fastest there; None where nothing fits
    beyond: int | None  # the next value, at which nothing fits; None where time or range ended
    binds: tuple[str, ...]  # memories without any of which ``beyond`` would fit; or the batch
    fixed: int  # the other quantity: tokens of a sequence, or sequences of a micro-batch
    is_cut: bool = False  # the time was over before a larger value was decided
    resident: "Largest | None" = None  # with nothing offloaded, where this plan offloads


@row_of(
    {
        "quantity": Literal["micro-batch", "sequence"],
        "micro_batch": int,
        "seq_len": int,
        "binds": list[Literal["device memory", "host memory", "global batch"]],
        "complete": bool,
        "plan": PlanRow | None,
        "resident": "LargestRow | None",
    },
    leave_out=("fixed", "is_cut"),
    about={
        "value": "Sequences of a micro-batch or tokens of a sequence; 0 where nothing fits.",
        "beyond": "The next value, at which nothing fits; one that another batch allows, where "
        "that binds.",
        "binds": "Limits that keep the value from being larger; more of any one would do.",
        "complete": "False where a time limit struck.",
        "plan": "The fastest of this value.",
        "resident": "Largest value with nothing offloaded, if offloading allows more.",
    },
)
class LargestRow(Largest):
    """The largest micro-batch, where no option fixes it, or sequence at which some layout fits."""


class LargestDocument(Row):
    """The largest micro-batch at a length, or the longest sequence, that some layout fits."""

    inputs: InputsRow
    tight: bool
    """Nothing leaves the margin free, so that it was given up."""
    largest: list[LargestRow]


@dataclass(frozen=True, kw_only=True)
class LargestAnswer:
    """The question, and the largest value of each quantity."""

    case: Case
    found: tuple[Largest, ...]
    is_tight: bool = False  # nothing leaves the margin free, so that it was given up


@dataclass(kw_only=True)
class _Quantity:
    """Looks at the values of one quantity: what fits at one fits at every smaller one.

    More sequences or tokens never take less memory, and make no layout legal or illegal.
    """

    name: str
    case: Case
    keeps_batch: bool  # values are looked at with the question's batch, not one they divide
    deadline: Deadline
    progress: Progress

    @property
    def micro_batch(self) -> int:
        """Micro-batch for sequence lengths: the smallest that options leave."""
        return min(self.case.narrowing.values.get("micro_batch", ()), default=1)

    @property
    def least(self) -> int:
        """Number that all candidate sequence lengths are multiples of."""
        if self.name == MICRO_BATCH:
            return 1
        options = self.case.narrowing.values
        given = (*options.get("cp", ()), *options.get("tp", ()))
        degrees = math.lcm(*given)
        # 128 tokens times what is odd of the degrees.
        return 128 * degrees // (degrees & -degrees)

    def at(self, value: int) -> Case:
        """The question at a value, at one micro-batch where its options leave several."""
        is_length = self.name == SEQUENCE
        micro_batch = self.micro_batch if is_length else value

        def changed(context: Context) -> Context:
            if is_length:
                context = context.with_job(seq_len=value)
            if self.keeps_batch:
                return context
            # A batch near its own that any layout cuts into whole micro-batches, two of every
            # replica at least: gradients are then accumulated.
            each = micro_batch * context.cluster.num_accelerators
            return context.with_job(
                global_batch=each * max(round(context.job.global_batch / each), 2)
            )

        case = self.case.with_each(changed)
        if "micro_batch" in case.narrowing.values:
            return case
        texts = (*case.narrowing.texts, f"--fix micro_batch={micro_batch}")
        return replace(case, narrowing=narrowing_of(texts))

    def fits(self, value: int) -> bool:
        """Return True if some layout fits. Raises SearchTimeoutError."""
        self.progress(f"looking for a {self.name} of {value:,}", 0.0)
        return fits(self.at(value), self.deadline) is not None

    def largest(self, above: int) -> tuple[int, int | None, bool]:
        """The largest value that fits, the next one, and whether the time was over before.

        ``above`` is known to fit, or 0. Tried are STEPS_PER_DOUBLING values between powers of two,
        by halves.
        """
        most = LARGEST if self.name == MICRO_BATCH else MAX_SEQ_LEN
        values, value = [above], self.least
        while value <= most:
            step = self.least * max(value // self.least // STEPS_PER_DOUBLING, 1)
            values += [each for each in range(value, 2 * value, step) if above < each <= most]
            value *= 2
        found, beyond = bisect(0, len(values), lambda row: not self.fits(values[row]))
        is_cut = beyond - found > 1
        is_last = is_cut or beyond == len(values)
        return values[found], None if is_last else values[beyond], is_cut


def _largest(quantity: _Quantity, *, has_batch: bool, held: Largest | None = None) -> Largest:
    """The largest value, what binds it, the fastest plan there; ``held``: with less allowed."""
    value, beyond, is_cut = quantity.largest(held.value if held else 0)
    own, binds = quantity, tuple[str, ...]()
    is_size = quantity.name == MICRO_BATCH
    try:
        if is_size and has_batch and value and not is_cut:
            own = replace(quantity, keeps_batch=True)
            # The largest that the batch is cut into, and that fits.
            batch = own.case.context.job.global_batch
            inside = min(value, batch)
            while inside and (batch % inside or not own.fits(inside)):
                inside -= 1
            if inside < value:
                value, beyond, binds = inside, value, (BATCH,)
        if beyond is not None and not binds:
            case = quantity.at(beyond)
            for name, lift in WITHOUT.items():
                if fits(case.with_each(lift), quantity.deadline):
                    binds = (*binds, name)
    except SearchTimeoutError:
        beyond, is_cut = None, True
    plans = best(own.at(value), quantity.deadline).plans if value else ()
    return Largest(
        quantity=quantity.name,
        value=value,
        plan=max(plans, key=lambda plan: plan.estimate.tokens_per_s, default=None),
        beyond=beyond,
        binds=binds,
        fixed=quantity.case.context.job.seq_len if is_size else quantity.micro_batch,
        is_cut=is_cut,
        resident=held,
    )


def largest(
    case: Case,
    *,
    has_batch: bool,
    keeps_margin: bool,
    quantities: tuple[str, ...] = (MICRO_BATCH, SEQUENCE),
    deadline: Deadline | None = None,
    progress: Progress = no_progress,
) -> LargestAnswer:
    """The largest micro-batch at the question's length, and the longest sequence.

    ``has_batch``: the global batch was given, so micro-batches divide it; else it is what they
    need. Where nothing leaves the margin free it is given up, unless the user chose it. Of lengths
    alone where options say what micro-batches are left.
    """
    is_fixed = "micro_batch" in case.narrowing.values
    ask = partial(_Quantity, deadline=deadline or Deadline(), progress=progress)

    def quantity(name: str, inside: Case) -> _Quantity:
        return ask(name=name, case=inside, keeps_batch=has_batch and name == SEQUENCE)

    def with_resident(name: str, asked: Case) -> Largest:
        """The largest value, and with nothing offloaded where offloading allows a larger one."""
        # Options that ask for offloading contradict the second question, which is then left.
        inside = narrowed(asked, NOTHING_OFFLOADED)
        if inside is None or NOTHING_OFFLOADED in asked.narrowing.texts:
            return _largest(quantity(name, asked), has_batch=has_batch)
        held = _largest(quantity(name, inside), has_batch=has_batch)
        found = _largest(quantity(name, asked), has_batch=has_batch, held=held)
        return found if found.value > held.value else replace(held, resident=None)

    def answer(asked: Case, *, is_tight: bool) -> LargestAnswer:
        named = [name for name in quantities if name == SEQUENCE or not is_fixed]
        return LargestAnswer(
            case=asked,
            found=tuple(with_resident(name, asked) for name in named),
            is_tight=is_tight,
        )

    kept = answer(case, is_tight=False)
    if keeps_margin or any(one.value or one.is_cut for one in kept.found):
        return kept
    return answer(without_margin(case), is_tight=True)
