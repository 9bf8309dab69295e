"""A log: which framework's it is, its steps in order and in seconds, and what else it says."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod
from statistics import median

import numpy as np

from planner.compare import forms
from planner.compare.forms import Dump, StepForm, Unit, dump_in
from planner.documents.file import read_text
from planner.errors import InputError
from planner.limits import MAX_GPUS, MAX_LOG_BYTES, number_in, one_line

FORMS = "Megatron-LM, NeMo, Megatron-Bridge, DeepSpeed, torchtitan, Trainer or Accelerate"
MAX_LINE = 4_000  # characters of a line that are looked at; a longer dump is read apart
SLOW_FACTOR = 1.2  # a step of so many medians is slow: it warms up, or is a straggler


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of progress."""

    number: int  # of the iteration
    value: float  # in the unit of the log
    line: int
    total: int = 0  # that a bar counts up to


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peaks of the fullest rank that printed its memory; None where the log has none."""

    allocated_bytes: float | None = None
    reserved_bytes: float | None = None


# Of a job, those that are known: global_batch, seq_len and num_gpus.
Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log that was understood."""

    path: str
    framework: str  # whose lines these are: a framework of forms.STEPS
    unit: Unit
    steps: tuple[Step, ...]  # in the order of the run, each number once
    memory: Memory = field(default_factory=Memory)
    sizes: Sizes = field(default_factory=dict)
    dump: Dump | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds per iteration of a log: of the steps that count, in the order of the run."""

    iter_time_s: float  # median
    iter_time_s_low: float  # a tenth of the steps are faster
    iter_time_s_high: float  # a tenth are slower
    mean_s: float
    steps_s: tuple[float, ...]
    left_out_s: tuple[float, ...]  # the first ones, which do not count

    @property
    def spread(self) -> float:
        """``(high - low) / median``."""
        return (self.iter_time_s_high - self.iter_time_s_low) / self.iter_time_s

    @property
    def num_steps(self) -> int:
        """Steps that count."""
        return len(self.steps_s)

    @property
    def num_left_out(self) -> int:
        """First steps, which do not."""
        return len(self.left_out_s)


def read_log(path: str) -> Log:
    """Read a log; raises InputError where it is of no known form, has no step, or several runs."""
    return log_of(path, read_text(path, MAX_LOG_BYTES, "replace"))


def log_of(path: str, text: str, known: str = f"logs of {FORMS}") -> Log:
    """Understand the text of a log; see ``read_log``. ``known``: what else could be read here."""
    plain = (forms.ANSI.sub("", line) for line in text.split("\n"))
    lines = [forms.BLANKS.sub(" ", line) for line in plain]
    begins = [line[:MAX_LINE] for line in lines]
    stated = _stated(begins)
    chosen = _chosen(_found(lines), stated.get("total_steps"))
    if chosen is None:
        raise _without_steps(path, begins, known)
    form, printed = chosen
    # A run that is announced twice is two: ranks do not do so.
    places = [at for at, line in enumerate(begins, 1) if forms.CLOSES.search(line)]
    if len(places) > 1:
        raise _second_run(path, places[1])
    steps = _ordered(path, form, printed)
    dump, dumped = dump_in(path, lines)
    notes = ["one figure for the whole run: no step times"] if form.prints == "summary" else []
    # A last line without its end that began as a step and is none.
    began = re.search(r"iteration +\d+/|step: +\d+ |SamplesPerSec|\{'loss'", lines[-1])
    is_step = any(form.line.search(lines[-1]) for form in forms.STEPS)
    if began and not is_step:
        notes.append(f"line {len(lines)} is cut off and left out")
    return Log(
        path=one_line(path),
        framework=form.framework,
        unit=form.unit,
        steps=steps,
        memory=_memory(begins),
        sizes=_sizes(begins, stated),
        dump=dump,
        notes=(*notes, *dumped),
    )


def _memory(lines: Sequence[str]) -> Memory:
    """The largest peak of each kind over ranks and time."""
    most: dict[str, float] = {}
    for kind, pattern, unit_bytes in forms.MEMORY:
        for line in lines:
            for printed in re.findall(pattern, line):
                most[kind] = max(most.get(kind, 0.0), _number(printed) * unit_bytes)
    return Memory(**{kind: most[kind] for kind in most if most[kind] > 0})


def _found(lines: Sequence[str]) -> dict[StepForm, list[Step]]:
    """Find the steps of every form in a log; each line belongs to the first form it matches."""
    found: dict[StepForm, list[Step]] = {form: [] for form in forms.STEPS}
    for at, line in enumerate(lines, 1):
        for part in line.split("\r"):
            for form, steps in found.items():
                match = form.line.search(part[:MAX_LINE])
                if match is None:
                    continue
                groups = match.groupdict()
                value = _number(groups["value"])
                if 0.0 < value < 1e15:
                    number = int(groups.get("number") or len(steps) + 1)
                    total = int(groups.get("total") or 0)
                    steps.append(Step(number=number, value=value, line=at, total=total))
                break
    return found


def _chosen(
    found: Mapping[StepForm, list[Step]], total: int | None
) -> tuple[StepForm, list[Step]] | None:
    """The form with most steps, the earlier of several; bars of other loops left out."""
    kept = []
    for form, steps in found.items():
        if form.prints == "bar" and steps:
            totals = Counter(step.total for step in steps)
            wanted = total if total in totals else totals.most_common(1)[0][0]
            steps = [step for step in steps if step.total == wanted]
        if steps:
            kept.append((form, steps))
    own = [pair for pair in kept if pair[0].prints != "summary"] or kept
    return max(own, key=lambda pair: len(pair[1]), default=None)


def _ordered(path: str, form: StepForm, printed: Sequence[Step]) -> tuple[Step, ...]:
    """Steps by number, each once; raises InputError where a second run begins.

    A number behind the last is another run, or one that was taken up again; behind the last but
    one where every rank prints. Bars of ranks may stand one behind the other: they tell nothing.
    """
    if form.prints == "summary":
        return (replace(printed[0], number=1),)
    steps: dict[int, Step] = {}
    largest: list[int] = []
    for step in printed:
        before = largest[: -1 if form.prints == "by all ranks" else None]
        if before and step.number < before[-1] and form.prints != "bar":
            how = f", at step {step.number:,} after {largest[-1]:,}"
            raise _second_run(path, step.line, how)
        # the two largest so far: ranks print the lines of a step among those of the next
        if not largest or step.number > largest[-1]:
            largest = [*largest[-1:], step.number]
        if step.number not in steps or form.prints == "bar":
            steps[step.number] = step
    return tuple(steps[number] for number in sorted(steps))


def _second_run(path: str, line: int, how: str = "") -> InputError:
    message = f"a second run starts here{how}; give each run in a file of its own"
    return InputError.single(path, f"line {line}", message)


def _without_steps(path: str, lines: Sequence[str], known: str) -> InputError:
    """Return the reason why a file without steps cannot be compared."""
    found = ((at, forms.ELAPSED.search(line)) for at, line in enumerate(lines, 1))
    units = {at: match[1] for at, match in found if match}
    if others := set(units.values()) - {"ms", "s"}:
        message = f"elapsed time is in {', '.join(sorted(others))}; allowed are ms and s"
        return InputError.single(path, f"line {min(units)}", message)
    filled = [at for at, line in enumerate(lines, 1) if line.strip()]
    for name, mark in forms.STARTS.items():
        if any(map(mark.search, lines)):
            message = f"a log of {name} that ends before a step was printed: it is truncated"
            return InputError.single(path, f"line {filled[-1]}", message)
    what = "is of no known form" if filled else "is empty"
    return InputError.single(path, "file", f"{what}; allowed are {known}")


def _stated(lines: Sequence[str]) -> dict[str, int]:
    """The last that is said of each of forms.SIZES."""
    found: dict[str, int] = {}
    for name, pattern in forms.SIZES:
        matches = (re.search(pattern, line) for line in reversed(lines))
        last = next(filter(None, matches), None)
        value = int(last[1].replace(",", "")[:15]) if last else 0
        if value:
            found.setdefault(name, value)
    return found


def _sizes(lines: Sequence[str], stated: Mapping[str, int]) -> Sizes:
    """The sizes of the job; GPUs of the Trainer follow from its batches."""
    names = ("global_batch", "seq_len", "num_gpus")
    found = {name: stated[name] for name in names if name in stated}
    per_gpu = stated.get("batch_per_device", 0) * stated.get("accumulation", 0)
    if per_gpu and "global_batch" in found:
        gpus, rest = divmod(found["global_batch"], per_gpu)
        if gpus and not rest:
            found.setdefault("num_gpus", gpus)
    meshes = [match[1] for match in map(forms.MESH.search, lines) if match]
    lengths = [int(length) for mesh in meshes[-1:] for length in mesh.split(",") if length.strip()]
    if lengths and 0 < prod(lengths) <= MAX_GPUS:
        found.setdefault("num_gpus", prod(lengths))
    return found


def _number(text: str) -> float:
    """``1,234.5`` as it is printed; a point or comma at its end belongs to the sentence."""
    return number_in(text.rstrip(".,").replace(",", ""))


def seconds(value: float, unit: Unit, sizes: Sizes) -> float | None:
    """Seconds of a step as it is printed; None where a rate needs a size that is not known.

    ``batch / rate`` of sequences per second, ``batch · seq_len / (rate · GPUs)`` of tokens per
    second and GPU, ``1 / rate`` of iterations per second.
    """
    if unit in forms.TIMES:
        return value * forms.TIMES[unit]
    if unit == "it/s":
        return 1.0 / value
    needed = ("global_batch",) if unit == "samples/s" else ("global_batch", "seq_len", "num_gpus")
    if not sizes.keys() >= set(needed):
        return None
    if unit == "samples/s":
        return sizes["global_batch"] / value
    return sizes["global_batch"] * sizes["seq_len"] / (value * sizes["num_gpus"])


def measured(log: Log, sizes: Sizes) -> Measured | None:
    """The steps of a log; None where sizes that its unit needs are not known."""
    all_s = [seconds(step.value, log.unit, sizes) for step in log.steps]
    known = [one for one in all_s if one is not None]
    if not known:
        return None
    first = 0
    numbers = [step.number for step in log.steps[:2]]
    # The first step printed is the run's first, or the mean of its first ones.
    if len(numbers) > 1 and 2 * numbers[0] <= numbers[1]:
        usual = median(known[1:])
        # of all steps; a run that never settles is taken as it is
        begun = known[1 : max(1, len(known) // 2)]
        first = 1 + len(list(takewhile(lambda one: one > SLOW_FACTOR * usual, begun)))
    kept = known[first:]
    # eight of ten steps lie between
    low, high = np.percentile(kept, [10.0, 90.0])
    return Measured(
        iter_time_s=median(kept),
        iter_time_s_low=float(low),
        iter_time_s_high=float(high),
        mean_s=sum(kept) / len(kept),
        steps_s=tuple(kept),
        left_out_s=tuple(known[:first]),
    )
