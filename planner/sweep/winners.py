"""What a result says: the best cells of every job, and where along an option the best changes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from planner.spelling import did_you_mean
from planner.sweep.results import ASKED, Results, polars

JOB = ("model", "train", "lora_rank", "lora_targets", "seq_len", "tokens")
"""Options that say what is trained: plans of different ones do not compete."""
_WORD = re.compile(r"'[^']*'|\"[^\"]*\"|\w+")
NO_CHOICE = (*JOB, "objective", "time_limit")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column by which plans are the best."""

    column: str
    falls: bool = False
    """More is better."""
    title: str


MEASURES: Mapping[str, Measure] = {
    "time": Measure(column="tokens_per_s", falls=True, title="Fastest"),
    "days": Measure(column="days", title="Soonest done"),
    "cost": Measure(column="cost_usd_per_billion_tokens", title="Cheapest"),
    "energy": Measure(column="energy_kwh_per_billion_tokens", title="Least energy"),
    "gpu-hours": Measure(column="gpu_hours_per_billion_tokens", title="Fewest GPU-hours"),
    "mfu": Measure(column="mfu", falls=True, title="Highest MFU"),
}
"""By the word of ``--best``; amounts are those of a billion tokens, so that jobs compare."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a result."""

    best: str = "time"
    where: str = ""
    under: tuple[tuple[str, float], ...] = ()
    """Columns and what they may be at most."""
    per: tuple[str, ...] | None = None
    """Columns that say what competes with what; None for those of the job."""
    top: int = 3


Group = tuple[Any, ...]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best cells of every group."""

    measure: Measure
    per: tuple[str, ...]
    groups: Mapping[Group, Rows]
    """Best first, by the values of ``per`` in the order of the file."""
    num_plans: int
    """That were looked at."""
    num_unknown: int
    """Of them those without the figure, of which none can be best."""
    choices: tuple[str, ...]
    """Columns of the options that are chosen by being best."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The best at one value of the option that is walked along."""

    value: Any
    row: dict[str, Any] | None
    """None where no plan is left."""
    winner: Group
    lead: float | None
    """By which share the next best other choice is worse; None where there is none."""
    is_change: bool


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How the best changes along an option, for every group."""

    along: str
    per: tuple[str, ...]
    choices: tuple[str, ...]
    measure: Measure
    groups: Mapping[Group, tuple[Step, ...]]


def known_column(results: Results, name: str, option: str, allowed: Sequence[str]) -> str:
    """The column of a name, written with hyphens or as the option is called; raises InputError."""
    column = name.strip().replace("-", "_")
    for each in (f"{ASKED}{column}", column):
        if each in allowed:
            return each
    hint = did_you_mean(column, tuple(allowed)) or f"allowed are {', '.join(allowed)}"
    message = f"no such column in {results.path}; given {name!r}; {hint}"
    raise InputError.single("command line", option, message)


def plans_of(results: Results, asked: Asked) -> Rows:
    """Cells with a plan that are left; raises InputError where a condition is none."""
    library = polars("sweep")
    frame = results.frame.filter(library.col("status") == "plan")
    try:
        if asked.where:
            frame = frame.filter(library.sql_expr(_quoted(asked.where, frame.columns)))
    except library.exceptions.PolarsError as error:
        message = f"is no condition on columns of {results.path}: {str(error).splitlines()[0]}"
        raise InputError.single("command line", "--where", message) from None
    for column, most in asked.under:
        if frame.height and frame[column].null_count() == frame.height:
            message = f"{column} is not known of any plan; days and cost need tokens in the sweep"
            raise InputError.single("command line", "--under", message)
        frame = frame.filter(library.col(column) <= most)
    rows: Rows = frame.to_dicts()
    if rows and all(row[MEASURES[asked.best].column] is None for row in rows):
        message = f"no plan has such a figure (hwdb lacks it, or days lack tokens): {asked.best}"
        raise InputError.single("command line", "--best", message)
    return rows


def _quoted(condition: str, columns: Sequence[str]) -> str:
    """The condition with names of columns quoted: some, such as cluster, are words of SQL."""
    return _WORD.sub(lambda word: f'"{word[0]}"' if word[0] in columns else word[0], condition)


def best_of(results: Results, asked: Asked, rows: Rows) -> Best:
    """The best cells of every group."""
    measure = MEASURES[asked.best]
    per = _per(results, asked)
    return Best(
        measure=measure,
        per=per,
        groups={
            group: _ranked(those, measure)[: asked.top]
            for group, those in _grouped(results, rows, per).items()
        },
        num_plans=len(rows),
        num_unknown=sum(row[measure.column] is None for row in rows),
        choices=_choices(results, per),
    )


def changes_of(results: Results, asked: Asked, rows: Rows, along: str) -> Changes:
    """The best at every value of an option, and where it is another than before."""
    measure = MEASURES[asked.best]
    per = tuple(name for name in _per(results, asked) if name != along)
    choices = tuple(each for each in _choices(results, per) if each != along) or ("layout",)
    groups = {
        group: tuple(_steps(those, results.axes[along], along, choices, measure))
        for group, those in _grouped(results, rows, per).items()
    }
    return Changes(along=along, per=per, choices=choices, measure=measure, groups=groups)


def _per(results: Results, asked: Asked) -> tuple[str, ...]:
    if asked.per is not None:
        return asked.per
    return tuple(name for name in results.varying if name in JOB)


def _choices(results: Results, per: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in results.varying if each not in (*per, *NO_CHOICE))


def _grouped(results: Results, rows: Rows, per: Sequence[str]) -> dict[Group, Rows]:
    """Rows by what competes, in the order of the file; rows are in that order."""
    groups: dict[Group, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in per), []).append(row)
    places = [results.axes.get(name, ()) for name in per]

    def order(group: Group) -> list[int]:
        return [
            values.index(value) if value in values else 0
            for value, values in zip(group, places, strict=True)
        ]

    return {group: groups[group] for group in sorted(groups, key=order)}


def _ranked(rows: Rows, measure: Measure) -> Rows:
    """Best first, those without a figure left out; of equals the one on fewer GPUs."""
    sign = -1.0 if measure.falls else 1.0
    known = [row for row in rows if row[measure.column] is not None]
    return sorted(known, key=lambda row: (sign * row[measure.column], row["gpus"]))


def _steps(
    rows: Rows, values: Sequence[Any], along: str, choices: Sequence[str], measure: Measure
) -> list[Step]:
    steps: list[Step] = []
    for value in values:
        ranked = _ranked([row for row in rows if row[along] == value], measure)
        winner = tuple(ranked[0][name] for name in choices) if ranked else ()
        others = (each for each in ranked if tuple(each[name] for name in choices) != winner)
        second = next(others, None)
        before = next((step.winner for step in reversed(steps) if step.row), winner)
        steps.append(
            Step(
                value=value,
                row=ranked[0] if ranked else None,
                winner=winner,
                lead=None if second is None else _lead(ranked[0], second, measure),
                is_change=bool(ranked) and winner != before,
            )
        )
    return steps


def _lead(first: Mapping[str, Any], second: Mapping[str, Any], measure: Measure) -> float:
    best, other = float(first[measure.column]), float(second[measure.column])
    return best / other - 1.0 if measure.falls else other / best - 1.0
