"""Memory and time of one layout, item by item: the rows of ``explain``."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from planner.answers.evidence import Evidence, evidence
from planner.answers.plan_file import PlanFile
from planner.answers.row import Row, field_values, row_from, row_of
from planner.answers.rows import (
    EstimateRow,
    LayoutRow,
    MemoryFigures,
    MemoryRow,
    SoftwareRow,
    layout_row,
)
from planner.answers.variants import PricedChange, savings
from planner.cost.context import Context
from planner.cost.estimate import ITEMS, Estimate, TimeItem, Verdict, item_of
from planner.cost.ledger import LedgerItem, StageLedger
from planner.cost.pipeline import FORMULAS
from planner.cost.stage_model import price
from planner.cost.time_items import simulated_makespan_s
from planner.errors import InputError, did_you_mean
from planner.frameworks.registry import trait_figures
from planner.notes import Note
from planner.spec.items import Item
from planner.spec.strategy import Strategy


def formula_of(function: Callable[..., Any]) -> str:
    """A function's docstring, one line per paragraph."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r":\w+:`([\w.]+)`", r"\1", text).replace("``", "")


def summary_of(item: Item) -> str:
    """First sentence of what an item is or of its main formula."""
    if item.text:
        return item.text.partition(". ")[0]
    return formula_of(item.functions[0]).split("\n")[0]


def item_values(estimate: Estimate) -> dict[str, float]:
    """Every leaf by full dotted name: bytes under memory, exposed seconds under time."""
    memory = {f"memory.{name}": value for name, value in estimate.memory.items.items()}
    return memory | {f"time.{name}": item.exposed_s for name, item in estimate.time.items()}


def full_name(name: str, items: Mapping[str, float]) -> str | None:
    """The whole name of ``bubble`` or ``pipeline.bubble``: of any item known; else None."""
    known = dict.fromkeys((*items, *(item.address for item in ITEMS)))
    for candidate in (name, f"memory.{name}", f"time.{name}"):
        if any(leaf == candidate or leaf.startswith(f"{candidate}.") for leaf in known):
            return candidate
    endings = [leaf for leaf in known if leaf.endswith(f".{name}")]
    return endings[0] if len(endings) == 1 else None


@row_of(
    {"verdict": Verdict, "ledger": list[LedgerItem]},
    derived=("peak_bytes",),
    leave_out=("items",),
    about={"allocated_bytes": "What tensors take."},
)
class StageRow(StageLedger):
    """Memory of a stage at its own fullest moment."""


class LayoutFigures(Row):
    """The question, with defaults filled in."""

    model: str
    cluster: str
    framework: str
    profile: str
    strategy: LayoutRow
    assumptions: SoftwareRow

    @staticmethod
    def figures(context: Context, strategy: Strategy) -> dict[str, Any]:
        """Return the figures of a layout."""
        return {
            "model": context.model.name,
            "cluster": context.cluster.name,
            "framework": context.traits.name,
            "profile": context.traits.profile,
            "strategy": layout_row(strategy),
            "assumptions": SoftwareRow.of(context.traits),
        }


class MemoryDocument(LayoutFigures, MemoryFigures):
    """Memory of one layout, by stage, and how much each change would save."""

    headroom_bytes: float
    """Device memory less the peak, the margin included."""
    # An estimate has infinity in place of null, for which JSON has no word.
    host_limit_bytes: float | None  # type: ignore[assignment]
    """Null where nothing is offloaded."""
    stages: list[StageRow]
    savings: list[PricedChange]
    notes: list[str]

    @classmethod
    def of(
        cls,
        context: Context,
        strategy: Strategy,
        estimate: Estimate,
        ledgers: Sequence[StageLedger],
        notes: Sequence[Note],
    ) -> "MemoryDocument":
        """Every stage's whole ledger, each at its own fullest moment."""
        memory = estimate.memory
        return cls(
            **cls.figures(context, strategy),
            **field_values(MemoryFigures, memory),
            headroom_bytes=memory.free_bytes,
            host_limit_bytes=memory.host_limit_bytes if memory.host_bytes else None,
            stages=[
                row_from(
                    StageRow,
                    stage,
                    verdict=memory.verdict_at(stage.peak_bytes),
                    ledger=stage.items,
                )
                for stage in ledgers
            ],
            savings=savings(context, strategy, estimate),
            notes=[str(note) for note in notes],
        )


class PipelineRow(Row):
    """The pipeline until its last backward."""

    formula_s: float
    simulated_s: float
    """Seconds by event simulation."""


class TimeTreeRow(EstimateRow):
    """Time of an iteration, item by item."""

    slowest_stage: int
    pipeline: PipelineRow | None
    """Null with one stage."""
    items: dict[str, TimeItem]
    """Time by dotted name; exposed seconds sum to iter_time_s."""

    @classmethod
    def of(cls, context: Context, strategy: Strategy, estimate: Estimate) -> "TimeTreeRow":
        """The time of an estimate, and of its schedule by simulation."""
        pipeline = None
        if strategy.pp > 1:
            after_pipeline = ("data_parallel", "optimizer_step", "tied_embedding", "step_overhead")
            inside = [item for name, item in estimate.time.items() if name not in after_pipeline]
            pipeline = PipelineRow(
                formula_s=sum(item.exposed_s for item in inside),
                simulated_s=simulated_makespan_s(price(context, strategy)),
            )
        return cls(
            **field_values(EstimateRow, estimate),
            slowest_stage=estimate.slowest_stage,
            pipeline=pipeline,
            items=estimate.time,
        )


class InputRow(Row):
    """An input of a formula."""

    path: str
    """Dotted path, such as strategy.tp."""
    value: Any
    source: str
    """Source of a trait's value."""

    @classmethod
    def of(cls, path: str, context: Context, strategy: Strategy) -> "InputRow":
        """The input of a dotted path."""
        cluster, traits, source = context.cluster, context.traits, ""
        roots = SimpleNamespace(
            strategy=strategy,
            model=context.model,
            job=context.job,
            cluster=cluster,
            node=cluster.node,
            accelerator=cluster.accelerator,
            traits=traits,
        )
        root, *names = path.split(".")
        if root == "traits":
            known = {"training": "given", "optimizer": "planner/frameworks/optimizers.yaml"}
            source = known.get(names[0], "")
            if not source:
                figures = trait_figures(traits.name, traits.profile, traits.settings)
                source = str(figures[names[0]][names[1]]["source"])
        return cls(path=path, value=to_jsonable_python(attrgetter(path)(roots)), source=source)


class ItemRow(Row):
    """One item or group with its formulas."""

    name: str
    """Dotted, in full."""
    unit: Literal["bytes", "s"]
    """Unit of the values."""
    total: float
    """Total of the peak or the iteration."""
    values: dict[str, float]
    """Values of the whole first, then of every part."""
    text: str
    """Description of the item, where no single formula gives one."""
    inputs: list[InputRow]
    formulas: dict[str, str]
    """Functions that price it, by module and name, in their own words."""

    @classmethod
    def of(cls, name: str, context: Context, strategy: Strategy, estimate: Estimate) -> "ItemRow":
        """The item or group of that name; raises InputError where there is none."""
        known = item_values(estimate)
        full = full_name(name, known)
        if full is None:
            hint = did_you_mean(name, known) or f"known are {', '.join(known)}"
            raise InputError.single("command line", "ITEM", f"no such item {name!r}; {hint}")
        inner = f"{full}."
        parts = {leaf: value for leaf, value in known.items() if f"{leaf}.".startswith(inner)}
        in_memory = full.startswith("memory")
        item = item_of(full)
        paths, functions = (item.inputs, item.functions) if item else ((), ())
        every = chain.from_iterable(FORMULAS.values())
        # Formulas of other schedules say nothing of this one.
        others = set(every).difference(FORMULAS[strategy.schedule])
        return cls(
            name=full,
            unit="bytes" if in_memory else "s",
            total=estimate.memory.peak_bytes if in_memory else estimate.iter_time_s,
            values=parts if full in parts else {full: sum(parts.values()), **parts},
            text=item.text if item else "",
            inputs=[InputRow.of(path, context, strategy) for path in paths],
            formulas={
                f"{each.__module__}.{each.__name__}": formula_of(each)
                for each in functions
                if each not in others
            },
        )


class SavedRow(Row):
    """Estimate in a plan file."""

    planner_version: str
    iter_time_s: float
    time_change: float
    """Ratio of the estimate above to the saved one, minus one."""


class ExplainDocument(LayoutFigures):
    """Memory and time of a layout, or one item with its formula."""

    memory: MemoryRow | None
    """Null where something else was asked for."""
    time: TimeTreeRow | None
    """Null where something else was asked for."""
    about: dict[str, str]
    """Descriptions of the items of both, one sentence each, by full dotted name."""
    item: ItemRow | None
    """Null where no item was asked for."""
    evidence: Evidence
    saved: SavedRow | None
    """Null of a layout that no file holds."""

    @classmethod
    def of(
        cls,
        context: Context,
        strategy: Strategy,
        estimate: Estimate,
        what: str,
        file: PlanFile | None,
    ) -> "ExplainDocument":
        """Both trees, one of them, or one item; raises InputError where there is none."""
        items = {name: item_of(name) for name in item_values(estimate)}
        is_item = what not in ("", "memory", "time")
        saved = (
            None
            if file is None
            else SavedRow(
                planner_version=file.planner_version,
                iter_time_s=file.estimate.iter_time_s,
                time_change=estimate.iter_time_s / file.estimate.iter_time_s - 1.0,
            )
        )
        return cls(
            **cls.figures(context, strategy),
            memory=row_from(MemoryRow, estimate.memory) if what in ("", "memory") else None,
            time=TimeTreeRow.of(context, strategy, estimate) if what in ("", "time") else None,
            about={name: summary_of(item) for name, item in items.items() if item},
            item=ItemRow.of(what, context, strategy, estimate) if is_item else None,
            evidence=evidence(context, strategy),
            saved=saved,
        )
