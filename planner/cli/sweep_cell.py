"""One cell of a sweep: its words read as ``planner plan`` reads them, its key, its answer."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.query.options import OPTIONS, Option
from planner.query.query import Query
from planner.sweep.cells import Row, Task

if TYPE_CHECKING:
    from planner.plans.plan import Answer, Plan
    from planner.query.resolve import Resolved

PLAN, NOTHING, REFUSED = "plan", "nothing", "refused"
"""What becomes of a cell: a plan; none that fits, or keeps its limits; no question at all."""
COMMAND_LINE = "command line"
BILLION = 1e9
WHOLE = ("gpus", "tokens_per_iteration", "total_tokens")
"""Columns of whole numbers, beside those of decisions."""


def axes() -> dict[str, Option]:
    """Return the options of a question that may be axes, by the names that a file has for them."""
    return {each.flag.lstrip("-"): each for each in OPTIONS.values() if each.sweeps}


def query_of(words: Sequence[str]) -> Query:
    """Return the question of a cell's words: options as ``--name=value``, model and cluster."""
    *said, _, model, cluster = words
    known = {each.flag: each for each in OPTIONS.values()}
    known |= {each.off_flag: each for each in OPTIONS.values() if each.kind is bool}
    given: dict[str, Any] = {}
    for word in said:
        flag, _, value = word.partition("=")
        option = known[flag]
        if option.kind is bool:
            given[option.name] = flag == option.flag
        elif option.many:
            given[option.name] = [*given.get(option.name, ()), value]
        else:
            given[option.name] = value
    return Query.of(model, cluster, **given)


def read_words(words: Sequence[str]) -> "Resolved":
    """Return what a cell asks; raises InputError."""
    from planner.query.resolve import resolve

    return resolve(query_of(words))


@cache
def fingerprint() -> str:
    """Of this planner: its release, and every file of its code and data."""
    from planner import __version__
    from planner.catalog.paths import hwdb_dir, models_dir

    digest = hashlib.sha256(__version__.encode())
    package = Path(__file__).resolve().parents[1]
    for folder in (package, hwdb_dir(), models_dir()):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml", ".json", ".csv"):
                digest.update(f"{path.relative_to(folder.parent).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _content(model: str, cluster: str) -> str:
    """What the two hold, wherever their files lie; raises InputError."""
    from planner.catalog.clusters import load_cluster
    from planner.catalog.models import load_model_details

    details = load_model_details(model)
    specs = [asdict(details.spec), list(details.notes), asdict(load_cluster(cluster))]
    return json.dumps(specs, sort_keys=True, default=sorted)


def key_of(words: Sequence[str]) -> str:
    """The key of a question: this planner, what model and cluster hold, all that is asked."""
    *asked, _, model, cluster = words
    text = "\0".join((fingerprint(), _content(model, cluster), *asked))
    return hashlib.sha256(text.encode()).hexdigest()


def answer(task: Task) -> Row:
    """The best plan of a cell as plain data, or why there is none; never raises."""
    from planner.errors import InputError
    from planner.sweep.retries import FAILED
    from planner.sweep.run import DIFFERS

    try:
        if not _is_same(task):
            return {"status": DIFFERS, "reason": _differing(task)}
        asked = read_words(task.words)
    except InputError as error:
        reason = "; ".join(str(error).replace(f"{COMMAND_LINE}::", "").splitlines())
        return {"status": REFUSED, "reason": reason}
    except Exception as error:
        return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}
    try:
        return _answer(asked)
    except Exception as error:
        return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}


def _is_same(task: Task) -> bool:
    """Whether the question is here what it was where the sweep was started."""
    from planner.errors import InputError

    try:
        return key_of(task.words) == task.key
    except InputError:
        return False


def _differing(task: Task) -> str:
    """Whose machine that is, and what it may be."""
    import socket

    model, cluster = task.words[-2:]
    return (
        f"{socket.gethostname()} has another planner, or {model} or {cluster} is another file "
        "there, or was changed since the sweep began; what is done is kept"
    )


def _answer(asked: "Resolved") -> Row:
    from planner.answers.answered import searched
    from planner.answers.deadline import Deadline

    found = searched(asked, 1, Deadline(asked.time_limit_s))
    if not found.plans:
        return {"status": NOTHING, "reason": _why_nothing(found, asked)}
    return {"status": PLAN, "reason": "", **_figures(found.plans[0], found)}


def _why_nothing(found: "Answer", asked: "Resolved") -> str:
    """In a few words: the command of the cell says more."""
    if not found.is_complete:
        return f"no plan found within --time-limit {asked.time_limit_s:g}"
    if not asked.aim.limits.is_empty:
        return "no layout fits and keeps the limits"
    return "no layout fits"


def _figures(plan: "Plan", found: "Answer") -> dict[str, Any]:
    """What a plan is and comes to: the columns of ``planner plan --format csv``, and rates."""
    from planner.report.headline import layout_words
    from planner.report.tables import csv_row

    job = plan.context.job
    row = csv_row(plan)
    hours, amounts = plan.gpu_hours(), plan.amounts()
    if job.total_tokens is None:
        row |= dict.fromkeys(("gpu_hours", "days", *amounts))
    return {
        **row,
        "layout": layout_words(plan),
        "tokens_per_iteration": job.tokens_per_iteration,
        "total_tokens": job.total_tokens,
        "tokens_per_s": plan.estimate.tokens_per_s,
        **dict(_rates(plan, hours, amounts)),
        "is_proved": found.proved_optimal,
        "is_complete": found.is_complete,
    }


def columns() -> Row:
    """Columns of results that say what a plan is, with a value of the type of each."""
    from planner.query.objectives import AMOUNTS
    from planner.report.tables import CSV_COLUMNS
    from planner.spec.strategy import COLUMNS as DECISIONS

    names = [name for name in CSV_COLUMNS if name not in ("table", "rank")]
    rates = [f"{name}_per_billion_tokens" for name in ("gpu_hours", *AMOUNTS)]
    texts = ("framework", "layout", "recompute", "recompute_modules")
    kinds: dict[str, Any] = dict.fromkeys(
        (*names, "layout", *WHOLE[1:], "tokens_per_s", *rates), 0.5
    )
    kinds |= dict.fromkeys(WHOLE, 0) | dict.fromkeys(texts, "")
    kinds |= {name: DECISIONS[name].value_type() for name in names if name in DECISIONS}
    kinds |= {name: "" for name in names if name.endswith("_per_stage")}
    return {**kinds, "is_proved": True, "is_complete": True}


def _rates(
    plan: "Plan", hours: float, amounts: dict[str, float | None]
) -> Iterator[tuple[str, float | None]]:
    """GPU-hours and amounts of a billion tokens, whatever the job is."""
    span_s = hours * 3600.0 / plan.strategy.num_gpus
    billions = span_s * plan.estimate.tokens_per_s / BILLION
    for name, value in {"gpu_hours": hours, **amounts}.items():
        yield f"{name}_per_billion_tokens", None if value is None else value / billions
