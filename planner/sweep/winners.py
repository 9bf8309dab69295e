"""Winners among the results of a sweep: the best cells of every job."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from planner.errors import InputError, NothingFitsError, hint
from planner.notes import Problems
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
class Winners:
    """The best rows of every job."""

    results: Results
    measure: Measure
    conditions: tuple[str, ...]  # that its rows keep
    per: tuple[str, ...]  # columns of what does not compete
    choices: tuple[str, ...]  # columns of the options that are chosen by being best
    best: tuple[Sequence[Row], ...]
    num_plans: int
    num_unknown: int  # plans without the figure, which cannot be best


def _column(name: str, allowed: Sequence[str]) -> str:
    """The column of a name, written with hyphens or as the option is called; or ValueError."""
    column = name.strip().replace("-", "_")
    for each in (f"{ASKED}{column}", column):
        if each in allowed:
            return each
    raise ValueError(f"no such column; given {name!r}; {hint(column, allowed)}")


def _condition(text: str, columns: Sequence[str]) -> Callable[[Row], bool]:
    """Whether a row keeps ``COLUMN<=VALUE``, one without the figure does not; or ValueError."""
    found = CONDITION.fullmatch(text)
    if found is None:
        message = "must be COLUMN<=VALUE, such as days<=30 or model=llama3-8b"
        raise ValueError(f"{message}; given {text!r}")
    name, sign, word = found.groups()
    column, compare = _column(name, columns), COMPARE[sign]
    try:
        value = float(word)
    except ValueError:
        if sign not in ("=", "!="):
            raise ValueError(f"{word!r} is no number, which {sign} needs") from None
        return lambda row: compare(str(row.get(column)), word.strip("'\""))
    if math.isnan(value):
        raise ValueError("nan is not a number to compare with")

    def holds(row: Row) -> bool:
        given = row.get(column)
        return isinstance(given, int | float) and compare(given, value)

    return holds


def winners(
    results: Results,
    *,
    best: str,
    where: Sequence[str] = (),
    per: str | None = None,
    top: int = 1,
) -> Winners:
    """The best ``top`` rows of every job, told apart by columns ``per``; raises InputError."""
    problems = Problems()
    if best not in MEASURES:
        problems.add("--best", f"unknown; given {best!r}, allowed are {', '.join(MEASURES)}")
    columns = list(dict.fromkeys(name for row in results.rows for name in row))
    read = partial(_condition, columns=columns)
    conditions = [problems.parsed("--where", text, read) for text in where]
    apart = [name for name in results.varying if name in JOB]
    if per is not None:
        column = partial(_column, allowed=columns)
        names = [name for name in per.split(",") if name.strip() not in ("", "none")]
        apart = [
            name for name in (problems.parsed("--per", each, column) for each in names) if name
        ]
    problems.finish()
    measure = MEASURES[best]
    plans = [row for row in results.rows if row["status"] == PLAN]
    rows = [row for row in plans if all(holds(row) for holds in conditions if holds)]
    if not rows:
        text = f"no plan of {len(plans):,} in {results.path} keeps the conditions"
        raise NothingFitsError(text)
    known = [row for row in rows if row[measure.column] is not None]
    if not known:
        message = f"no plan has {measure.column} (days need tokens; hwdb may lack a price)"
        raise InputError.single("command line", "--best", message)
    # best first, of equals the one on fewer GPUs
    sign = -1.0 if measure.largest else 1.0
    known.sort(key=lambda row: (sign * row[measure.column], row["gpus"]))
    jobs: dict[tuple[Any, ...], list[Row]] = {
        tuple(row[name] for name in apart): [] for row in rows
    }
    for row in known:
        jobs[tuple(row[name] for name in apart)].append(row)
    left_out = (*apart, *JOB, "objective", "time_limit")
    return Winners(
        results=results,
        measure=measure,
        conditions=tuple(where),
        per=tuple(apart),
        choices=tuple(name for name in results.varying if name not in left_out),
        best=tuple(ranked[:top] for ranked in jobs.values()),
        num_plans=len(rows),
        num_unknown=len(rows) - len(known),
    )
