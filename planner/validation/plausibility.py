"""Published set-ups beside the planner's own answers: docs/plausibility.md.

Every row of ``tests/validation/plausibility.yaml`` is a set-up somebody published. Its layout is
priced as it stands; then the same question is asked as a user would ask it, under the same
software, and the first answer is set beside it, with a written reason where they differ.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import Estimate, estimate
from planner.cost.module_sets import module_sets
from planner.documents.file import read_text
from planner.documents.yaml_text import parsed
from planner.errors import InputError, Problem
from planner.frameworks.optimizers import ADAM
from planner.frameworks.registry import CURRENT, load_traits
from planner.frameworks.settings import with_optimizer
from planner.plans.plan import Answer, Plan, answer
from planner.plans.tight import with_room
from planner.search.ranking.candidates import LAYOUT
from planner.search.space.narrow import read_narrowing
from planner.spec.job import USUAL_IMBALANCE_FRACTION, JobSpec, Precision
from planner.spec.strategy import SCHEDULES, Strategy
from planner.units import GIB, format_seconds
from planner.validation.mapping import to_run
from planner.validation.markdown import percent
from planner.validation.records import Record

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
    for number, raw in enumerate(parsed(str(path), read_text(path)).value, start=1):
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
    traits = load_traits(ask.framework, ask.profile)
    plain = Context(
        model=load_model(ask.model),
        job=JobSpec(global_batch=ask.global_batch, seq_len=ask.seq_len, precision=ask.precision),
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
    plain = replace(context, margin_fraction=0.0, weighs_evidence=False)
    everywhere = f"gpus=={context.cluster.num_accelerators}"
    found = answer([plain], top=1, narrowing=read_narrowing(fix=[layout], where=[everywhere]))
    if found.plans:
        return found.plans[0].strategy, ""
    is_legal = any(search.num_shapes for search in found.searches)
    return None, "does not fit" if is_legal else "not in the space"


def as_users_ask(context: Context) -> Context:
    """The context with what a search chooses from, its margin and imbalance."""
    traits = context.traits
    imbalance = USUAL_IMBALANCE_FRACTION if context.model.moe else 0.0
    context = replace(
        context,
        job=replace(context.job, imbalance_fraction=imbalance),
        margin_fraction=traits.memory_uncertainty_fraction,
        schedules=tuple(name for name in SCHEDULES if name in traits.support.schedules),
        placements=traits.support.placements,
        weighs_evidence=True,
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
    found = with_room(lambda contexts: answer(contexts, top=NUM_ROWS), [question.context])
    own = estimate(question.context, question.strategy) if question.strategy else None
    return Compared(row=row, asked=question, own=own, answer=found)


ABSENT = "not among them"
PLACE = re.compile(rf"\| (first|row \d+|{ABSENT}), ([+-][\d.]+) % \|")
"""The cell of a line that says where the published layout stands."""
TITLES = ("set-up", "published", "the planner for it", "first answer", "published layout", "why")
INTRO = """\
# Plausibility

Set-ups that people published, beside the planner's answers to the same questions. The published
layout is priced as it stands, what was not published of it as fast as it can be (`--fix` with the
rest); then `planner plan` is asked the question, under the same software.
A published layout agrees with the first answer where it is among the five rows, or no more than
5 % slower under the model. Where it does not, a reason is given.

Generated by `python scripts/plausibility.py` from `tests/validation/plausibility.yaml`; do not
edit. Layouts are dp·tp·pp·vpp, then cp, ep, ZeRO stage (Z), micro-batch (mb), recomputation and
offload where there are any. Free is what of HBM is left; inside the framework's margin it is tight.
"""


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


def page(lines: Sequence[str], more: Sequence[str] = ()) -> str:
    """The whole page from its lines, and those of further sections."""
    rule = "| " + " | ".join("---" for _ in TITLES) + " |"
    head = [INTRO, "## Published set-ups", "", summary_line(lines), ""]
    return "\n".join([*head, "| " + " | ".join(TITLES) + " |", rule, *lines, *more]) + "\n"
