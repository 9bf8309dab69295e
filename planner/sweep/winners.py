"""Winners among results: the best cells of every job, and where along an option they change."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.errors import InputError, NothingFitsError
from planner.notes import Problems
from planner.spelling import hint
from planner.sweep.run import ASKED, PLAN, Results, Row

# Options that say what is trained: plans of different jobs do not compete.
JOB = ("model", "train", "lora_rank", "lora_targets", "seq_len", "tokens")
CONDITION = re.compile(r"\s*([\w-]+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*")
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "!=": operator.ne,
}
Group = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column by which plans are ranked."""

    column: str
    title: str
    largest: bool = False  # more is better


# Amounts are those of a billion tokens, so that different jobs compare.
MEASURES: Mapping[str, Measure] = {
    "time": Measure(column="tokens_per_s", title="Fastest", largest=True),
    "days": Measure(column="days", title="Soonest done"),
    "cost": Measure(column="cost_usd_per_billion_tokens", title="Cheapest"),
    "energy": Measure(column="energy_kwh_per_billion_tokens", title="Least energy"),
    "gpu-hours": Measure(column="gpu_hours_per_billion_tokens", title="Fewest GPU-hours"),
    "mfu": Measure(column="mfu", title="Highest MFU", largest=True),
}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Condition that selects rows."""

    text: str
    column: str
    sign: str
    value: float | str

    def holds(self, row: Row) -> bool:
        """Return True if a row is selected; one without the figure is not."""
        given = row.get(self.column)
        if isinstance(self.value, str):
            return COMPARE[self.sign](str(given), self.value)
        return isinstance(given, int | float) and COMPARE[self.sign](given, self.value)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The best at one value of the option that is walked along."""

    value: Any
    row: Row | None  # None where no plan is left
    winner: Group  # values of the choices
    lead: float | None  # fraction by which the next other choice is worse
    is_change: bool


@dataclass(frozen=True, kw_only=True)
class Winners:
    """Best rows of every group, and the steps along an option where one was asked."""

    results: Results
    measure: Measure
    conditions: tuple[Condition, ...]
    per: tuple[str, ...]  # columns of what does not compete
    along: str | None  # the option that is walked along
    choices: tuple[str, ...]  # columns of the options that are chosen by being best
    best: Mapping[Group, Sequence[Row]]
    steps: Mapping[Group, Sequence[Step]]
    num_plans: int
    num_unknown: int  # plans without the figure, which cannot be best


def _column(name: str, option: str, allowed: Sequence[str]) -> str:
    """The column of a name, written with hyphens or as the option is called."""
    column = name.strip().replace("-", "_")
    for each in (f"{ASKED}{column}", column):
        if each in allowed:
            return each
    message = f"no such column; given {name!r}; {hint(column, allowed)}"
    raise InputError.single("command line", option, message)


def _condition(text: str, columns: Sequence[str]) -> Condition:
    found = CONDITION.fullmatch(text)
    if found is None:
        message = f"must be COLUMN<=VALUE, such as days<=30 or model=llama3-8b; given {text!r}"
        raise InputError.single("command line", "--where", message)
    name, sign, word = found.groups()
    column = _column(name, "--where", columns)
    value: float | str = word.strip("'\"")
    try:
        value = float(word)
    except ValueError:
        if sign not in ("=", "!="):
            message = f"{word!r} is no number, which {sign} needs"
            raise InputError.single("command line", "--where", message) from None
    if isinstance(value, float) and math.isnan(value):
        raise InputError.single("command line", "--where", "nan is not a number to compare with")
    return Condition(text=text, column=column, sign=sign, value=value)


def winners(
    results: Results,
    *,
    best: str,
    where: Sequence[str] = (),
    per: str | None = None,
    changes: str | None = None,
    top: int = 1,
) -> Winners:
    """The best ``top`` rows of every group, and the best along an option.

    InputError with every problem of the question, NothingFitsError without a plan.
    """
    problems = Problems()
    if best not in MEASURES:
        problems.add("--best", f"unknown; given {best!r}, allowed are {', '.join(MEASURES)}")
    columns = list(dict.fromkeys(name for row in results.rows for name in row))
    conditions = [problems.read(partial(_condition, text, columns)) for text in where]
    names = [name for name in (per or "").split(",") if name.strip() not in ("", "none")]
    kept = [problems.read(partial(_column, name, "--per", columns)) for name in names]
    along = None
    if changes is not None:
        walked = results.varying or list(results.axes)
        along = problems.read(partial(_column, changes, "--changes", walked))
    problems.finish()
    measure = MEASURES[best]
    keeping = tuple(each for each in conditions if each)
    plans = [row for row in results.rows if row["status"] == PLAN]
    rows = [row for row in plans if all(each.holds(row) for each in keeping)]
    if not rows:
        text = f"no plan of {len(plans):,} in {results.path} keeps the conditions"
        raise NothingFitsError(text)
    num_unknown = sum(row[measure.column] is None for row in rows)
    if num_unknown == len(rows):
        message = f"no plan has {measure.column} (days need tokens; hwdb may lack a price)"
        raise InputError.single("command line", "--best", message)
    if per is None:
        kept = [name for name in results.varying if name in JOB]
    apart = tuple(name for name in kept if name and name != along)
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in apart), []).append(row)
    left_out = (*apart, *JOB, "objective", "time_limit", along)
    choices = tuple(name for name in results.varying if name not in left_out)
    steps: dict[Group, list[Step]] = {}
    if along is not None:
        walk = partial(_steps, results.axes[along], along, measure, choices or ("dp", "tp", "pp"))
        steps = {group: walk(those) for group, those in groups.items()}
    return Winners(
        results=results,
        measure=measure,
        conditions=keeping,
        per=apart,
        along=along,
        choices=choices,
        best={group: _ranked(those, measure)[:top] for group, those in groups.items()},
        steps=steps,
        num_plans=len(rows),
        num_unknown=num_unknown,
    )


def _ranked(rows: Sequence[Row], measure: Measure) -> list[Row]:
    """Best first, those without the figure left out; of equals the one on fewer GPUs."""
    sign = -1.0 if measure.largest else 1.0
    known = [row for row in rows if row[measure.column] is not None]
    return sorted(known, key=lambda row: (sign * row[measure.column], row["gpus"]))


def _steps(
    values: Sequence[Any],
    along: str,
    measure: Measure,
    choices: Sequence[str],
    rows: Sequence[Row],
) -> list[Step]:
    """The best at every value of the option, and where it is another than before."""
    steps: list[Step] = []
    before: Group | None = None
    for value in values:
        by_choice: dict[Group, Row] = {}
        for row in _ranked([row for row in rows if row[along] == value], measure):
            by_choice.setdefault(tuple(row[name] for name in choices), row)
        if not by_choice:
            steps.append(Step(value=value, row=None, winner=(), lead=None, is_change=False))
            continue
        (winner, first), *others = by_choice.items()
        lead = None
        if others:
            own, other = (float(row[measure.column]) for row in (first, others[0][1]))
            lead = (own / other if measure.largest else other / own) - 1.0
        is_change = before not in (None, winner)
        steps.append(Step(value=value, row=first, winner=winner, lead=lead, is_change=is_change))
        before = winner
    return steps
