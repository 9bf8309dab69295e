"""Published set-ups beside the planner's own answers: tests/validation/plausibility.md.

``python -m tools.plausibility`` makes its tables; ``--only WORDS`` the lines whose name holds them.
Every row of ``tests/validation/plausibility.yaml`` is a set-up somebody published. Its layout is
priced as it stands; then the same question is asked as a user would ask it, under the same
software, and the first answer is set beside it, with a written reason where they differ.
"""

import argparse
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.answers.base import Answer, Plan
from planner.answers.plan import answer, respecting_margin
from planner.answers.recipe import recipe_strategy, recipe_traits
from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.catalog.models import load_model
from planner.catalog.recipes import Recipe, load_recipes
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.module_sets import module_sets
from planner.documents.file import read_text
from planner.documents.tree import parsed_yaml
from planner.errors import InputError, Problem
from planner.frameworks.registry import ADAM, CURRENT, load_traits
from planner.frameworks.settings import usual_mtp_layers, with_optimizer
from planner.query.like import priced_problem, recipe_cluster
from planner.query.traits import read_settings
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.narrow import read_narrowing
from planner.spec.job import USUAL_IMBALANCE_FRACTION, JobSpec, Precision
from planner.spec.strategy import SCHEDULES, Strategy
from planner.units import GIB, format_seconds
from tools.pages import DATA, filled
from tools.validation.mapping import to_run
from tools.validation.records import Record, read_records
from tools.validation.summary import percent

PAGE = DATA / "plausibility.md"
Line = tuple[str, Callable[[], str]]
"""What a line is about, and how it is made."""
NEAR_FRACTION = 0.05
"""A published layout this near to the first answer agrees with it."""
NUM_ROWS = 5
"""Rows that a user sees."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Ask(_Part):
    """A question as on the command line."""

    model: str
    cluster: str
    gpus: int | None = None
    """Of the cluster's node, where fewer than the cluster has."""
    framework: str = "megatron"
    profile: str = CURRENT
    settings: tuple[str, ...] = ()
    optimizer: str = ADAM
    precision: Precision = "bf16"
    global_batch: Annotated[int, Field(ge=1)]
    seq_len: Annotated[int, Field(ge=1)]


class SetUp(_Part):
    """One published set-up: a run of the published runs, or a question with its layout."""

    name: str
    run: str | None = None
    """Id of a published run, which holds question, layout and time."""
    ask: Ask | None = None
    layout: str | None = None
    """What was published of the layout, as for ``--fix``; the rest is as fast as can be."""
    published_s: float | None = None
    figure: str = ""
    """As published, where that is no time of an iteration."""
    source: str = ""
    why: str = ""
    """Why the first answer is another one, or what is to be said of it."""
    cheap: bool = False
    """Answered in a second or two: the tests do it again."""


def read_set_ups(path: Path) -> list[SetUp]:
    """Rows of the file; InputError carries the problems of all."""
    problems: list[Problem] = []
    found: list[SetUp] = []
    for number, raw in enumerate(parsed_yaml(str(path), read_text(path)).value, start=1):
        try:
            row = SetUp.model_validate(raw)
        except ValidationError as error:
            problems += [
                Problem(
                    where=f"{path}:{number}",
                    key=".".join(map(str, detail["loc"])),
                    message=detail["msg"],
                )
                for detail in error.errors()
            ]
            continue
        if (row.run is None) == (row.ask is None):
            message = "needs either run or ask"
            problems.append(Problem(where=f"{path}:{number}", key="run", message=message))
        found.append(row)
    if problems:
        raise InputError(problems)
    return found


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A set-up as inputs: the question, and the layout where it is known."""

    context: Context
    strategy: Strategy | None
    measured_s: float | None
    problem: str = ""
    """Why the layout has no price."""
    source: str = ""
    """Where the figures stand."""


def asked(row: SetUp, records: Mapping[str, Record]) -> Asked:
    """The question of a set-up, as ``planner plan`` asks it."""
    if row.run is not None:
        record = records[row.run]
        run = to_run(record)
        context = as_users_ask(run.context)
        return Asked(
            context=context,
            strategy=run.strategy,
            measured_s=record.iter_time_s,
            source=record.source.title,
        )
    assert row.ask is not None
    ask = row.ask
    model, traits = (
        load_model(ask.model),
        load_traits(ask.framework, ask.profile, read_settings(ask.settings)),
    )
    plain = Context(
        model=model,
        job=JobSpec(
            global_batch=ask.global_batch,
            seq_len=ask.seq_len,
            precision=ask.precision,
            mtp_layers=usual_mtp_layers(model, traits),
        ),
        cluster=load_cluster_of(ask.cluster, ask.gpus) if ask.gpus else load_cluster(ask.cluster),
        traits=with_optimizer(traits, ask.optimizer),
    )
    context = as_users_ask(plain)
    strategy, problem = (None, "") if row.layout is None else _completed(context, row.layout)
    return Asked(
        context=context,
        strategy=strategy,
        measured_s=row.published_s,
        problem=problem,
        source=row.source,
    )


def _completed(context: Context, layout: str) -> tuple[Strategy | None, str]:
    """The fastest strategy of a layout on all GPUs, margin or not; or why there is none."""
    plain = replace(context, margin_fraction=0.0, ranking="time")
    everywhere = f"gpus=={context.cluster.num_accelerators}"
    found = answer([plain], top=1, narrowing=read_narrowing(fix=[layout], where=[everywhere]))
    if found.plans:
        return found.plans[0].strategy, ""
    is_legal = any(search.num_shapes for search in found.searches)
    return None, "does not fit" if is_legal else "not in the space"


def recipe_context(recipe: Recipe, num_gpus: int | None = None) -> Context:
    """What the recipe trains, on what, and under which software."""
    traits = recipe_traits(recipe)
    return Context(
        model=load_model(recipe.model),
        job=JobSpec(
            global_batch=recipe.global_batch,
            seq_len=recipe.seq_len,
            precision=recipe.precision,
            mtp_layers=recipe.mtp_layers or 0,
        ),
        cluster=recipe_cluster(recipe, num_gpus),
        traits=traits,
        margin_fraction=traits.memory_uncertainty_fraction,
        placements=traits.support.placements,
    )


def as_users_ask(context: Context, *, is_balanced: bool = False) -> Context:
    """The context with what a search chooses from, its margin and imbalance."""
    traits = context.traits
    is_natural = context.model.moe and not is_balanced
    imbalance = USUAL_IMBALANCE_FRACTION if is_natural else 0.0
    context = replace(
        context,
        job=replace(context.job, imbalance_fraction=imbalance),
        margin_fraction=traits.memory_uncertainty_fraction,
        schedules=tuple(name for name in SCHEDULES if name in traits.support.schedules),
        placements=traits.support.placements,
        ranking="simplicity",
    )
    return replace(context, module_sets=module_sets(context))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A set-up, its layout priced, and the planner's answer."""

    row: SetUp
    asked: Asked
    own: Estimate | None
    """Of the published layout."""
    answer: Answer

    @property
    def first(self) -> Plan | None:
        """The first plan."""
        return self.answer.plans[0] if self.answer.plans else None

    @property
    def place(self) -> int | None:
        """Which row has the published layout, from 1."""
        mine = self.asked.strategy
        if mine is None:
            return None
        rows = enumerate(self.answer.plans, start=1)
        return next((number for number, plan in rows if is_same(plan.strategy, mine)), None)

    @property
    def gain(self) -> float | None:
        """By how much longer the published layout takes than the first plan, under the model."""
        if self.own is None or self.first is None:
            return None
        return self.own.iter_time_s / self.first.estimate.iter_time_s - 1.0


def is_same(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies are one layout: degrees and ZeRO stage; the rest are its knobs."""
    return all(getattr(one, name) == getattr(other, name) for name in LAYOUT)


def compared(row: SetUp, records: Mapping[str, Record]) -> Compared:
    """Price the published layout and ask for the planner's own."""
    return answered(row, asked(row, records))


def answered(row: SetUp, question: Asked) -> Compared:
    """Price the layout of a question and ask for the planner's own."""
    found = respecting_margin(lambda contexts: answer(contexts, top=NUM_ROWS), [question.context])
    own = estimate(question.context, question.strategy) if question.strategy else None
    return Compared(row=row, asked=question, own=own, answer=found)


ABSENT = "not among them"
PLACE = re.compile(rf"\| (first|row \d+|{ABSENT}), ([+-][\d.]+) % \|")
"""The cell of a line that says where the published layout stands."""
RECIPE_TITLES = ("recipe", "its layout", "the planner for it", "first answer", "its place")
TITLES = ("set-up", "published", "the planner for it", "first answer", "published layout", "why")


def layout_words(strategy: Strategy) -> str:
    """A layout in a few words."""
    parts = [f"{strategy.dp}·{strategy.tp}·{strategy.pp}·{strategy.vpp}"]
    parts += [f"{name} {n}" for name in ("cp", "ep") if (n := getattr(strategy, name)) > 1]
    parts += [f"Z{strategy.zero_stage}", f"mb {strategy.micro_batch}"]
    if strategy.recompute != "none":
        parts.append(" ".join(filter(None, (strategy.recompute, strategy.selects))))
    if strategy.offload != "none":
        parts.append(f"{strategy.offload_percent} % {strategy.offload}")
    if any(strategy.offloaded_layers_per_stage):
        parts.append(f"activations of {sum(strategy.offloaded_layers_per_stage)} layers offloaded")
    return ", ".join(parts)


def _room(context: Context, peak_bytes: float) -> str:
    """What of HBM is left, and whether that is inside the margin."""
    hbm_bytes = context.cluster.accelerator.hbm_bytes
    left_gib = (hbm_bytes - peak_bytes) / GIB
    if left_gib < 0.0:
        return f"{-left_gib:.1f} GiB too much"
    margin = context.traits.memory_uncertainty_fraction
    tight = " (tight)" if peak_bytes > hbm_bytes * (1.0 - margin) else ""
    return f"{left_gib:.1f} GiB free{tight}"


def _published(one: Compared) -> str:
    strategy = one.asked.strategy if one.row.run else None
    layout = layout_words(strategy) if strategy else one.row.layout or "-"
    given = one.asked.measured_s
    figures = [format_seconds(given)] if given else []
    figures += [one.row.figure] if one.row.figure else []
    return "; ".join(filter(None, (layout, ", ".join(figures), one.asked.source)))


def own_words(one: Compared) -> str:
    """What the model says of the published layout."""
    if one.own is None:
        return one.asked.problem or "-"
    seconds = one.own.iter_time_s
    measured = one.asked.measured_s
    error = f" ({percent(seconds / measured - 1.0, signed=True)} %)" if measured else ""
    memory, context = one.own.memory, one.asked.context
    free = f", {_room(context, memory.peak_bytes)}"
    words = f"{layout_words(one.asked.strategy)}; " if one.row.ask and one.asked.strategy else ""
    return f"{words}{format_seconds(seconds)}{error}{free}"


def first_words(one: Compared) -> str:
    """The planner's own layout, its time and what it leaves free."""
    plan = one.first
    if plan is None:
        return "nothing fits"
    gpus = one.asked.context.cluster.num_accelerators
    fewer = f" on {plan.strategy.num_gpus} GPUs" if plan.strategy.num_gpus < gpus else ""
    room = _room(plan.context, plan.estimate.memory.peak_bytes)
    return (
        f"{layout_words(plan.strategy)}{fewer}; {format_seconds(plan.estimate.iter_time_s)}, {room}"
    )


def place_words(one: Compared) -> str:
    """Which row has the published layout, and how much longer it takes than the first."""
    if one.gain is None:
        return "-"
    place = "first" if one.place == 1 else f"row {one.place}" if one.place else ABSENT
    return f"{place}, {percent(one.gain, signed=True)} %"


def row_line(one: Compared) -> str:
    """The line of the page."""
    cells = (
        one.row.name,
        _published(one),
        own_words(one),
        first_words(one),
        place_words(one),
        one.row.why,
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def agrees(line: str) -> bool | None:
    """Whether a line's layout is among the rows, or no more than 5 % slower; None without one."""
    place = PLACE.search(line)
    if place is None:
        return None
    return place[1] != ABSENT or float(place[2]) <= 100.0 * NEAR_FRACTION


def summary_line(lines: Sequence[str]) -> str:
    """How many published layouts agree with the first answer, in one sentence."""
    decided = [found for line in lines if (found := agrees(line)) is not None]
    return (
        f"{sum(decided)} of {len(decided)} published layouts with a price are among the five rows, "
        f"or no more than {NEAR_FRACTION:.0%} slower than the first, or faster."
    )


def shown_recipes() -> Iterator[Recipe]:
    """Recipes that can be priced, one for each model, machine and layout."""
    seen: set[tuple[object, ...]] = set()
    for recipe in load_recipes():
        key = (recipe.model, recipe.accelerator, recipe.gpus, recipe.layout, recipe.task)
        if not priced_problem(recipe) and key not in seen:
            seen.add(key)
            yield recipe


def asked_recipe(recipe: Recipe) -> Asked:
    """The question of a recipe, as ``planner plan`` asks it under the recipe's runtime.

    Routing is balanced: these recipes are for benchmarks, which force it.
    """
    context = as_users_ask(recipe_context(recipe), is_balanced=True)
    gpus, batch = context.cluster.num_accelerators, context.job.global_batch
    try:
        strategy = recipe_strategy(recipe, context.model, gpus, batch)
    except ValueError as error:
        return Asked(context=context, strategy=None, measured_s=None, problem=str(error))
    return Asked(context=context, strategy=strategy, measured_s=None)


def compared_recipe(recipe: Recipe) -> Compared:
    """Price a recipe's layout and ask for the planner's own."""
    return answered(SetUp(name=recipe.recipe, run="-"), asked_recipe(recipe))


def recipe_line(recipe: Recipe) -> str:
    """The line of the page."""
    one = compared_recipe(recipe)
    cells = (recipe.recipe, recipe.layout, own_words(one), first_words(one), place_words(one))
    return "| " + " | ".join(cells) + " |"


def section(titles: Sequence[str], lines: Sequence[str]) -> str:
    """A generated part of the page: how many agree, and the lines as a table."""
    rule = "| " + " | ".join("---" for _ in titles) + " |"
    return "\n".join([summary_line(lines), "", "| " + " | ".join(titles) + " |", rule, *lines])


def page(set_ups: Sequence[str], recipes: Sequence[str]) -> str:
    """The whole page from the lines of its tables."""
    parts = {
        "set_ups": lambda: section(TITLES, set_ups),
        "recipes": lambda: section(RECIPE_TITLES, recipes),
    }
    return filled(PAGE, parts)


def made(lines: Iterable[Line], known: Mapping[str, str], only: str) -> list[str]:
    """The lines anew; those whose name does not hold ``only`` as they stand, where they do."""
    found: list[str] = []
    for name, make in lines:
        if only.lower() not in name.lower() and name in known:
            found.append(known[name])
            continue
        started = time.perf_counter()
        found.append(make())
        print(f"{time.perf_counter() - started:6.1f} s {found[-1]}", flush=True)
    return found


def main() -> None:
    """Write the page anew, or the lines asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Part of the names of the lines to make.")
    only = parser.parse_args().only
    records = {record.id: record for record in read_records(DATA / "published_runs.jsonl")}
    old = PAGE.read_text(encoding="utf-8").splitlines()
    known = {line.split(" | ")[0].removeprefix("| "): line for line in old}
    set_ups: list[Line] = [
        (row.name, partial(_set_up_line, row, records))
        for row in read_set_ups(DATA / "plausibility.yaml")
    ]
    recipes: list[Line] = [(one.recipe, partial(recipe_line, one)) for one in shown_recipes()]
    PAGE.write_text(page(made(set_ups, known, only), made(recipes, known, only)), encoding="utf-8")


def _set_up_line(row: SetUp, records: Mapping[str, Record]) -> str:
    return row_line(compared(row, records))


if __name__ == "__main__":
    main()
