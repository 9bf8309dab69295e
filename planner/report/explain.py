"""Explains an estimate: trees of its items, and one item with formula, inputs and source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from planner.cost.context import Context
from planner.cost.estimate import ITEMS, Estimate, MemoryEstimate
from planner.errors import InputError
from planner.frameworks.registry import trait_figures
from planner.report.formulas import (
    formula_of,
    functions_for,
    input_value,
    item_of,
    summary_of,
    trait_source,
)
from planner.report.table import Column, Table, rich_table
from planner.spec.items import Item
from planner.spec.strategy import Strategy
from planner.spelling import did_you_mean
from planner.units import format_bytes, format_seconds

SECTIONS = ("memory", "time")
AFTER_PIPELINE = ("data_parallel", "optimizer_step", "tied_embedding", "step_overhead")
"""Time items behind the last backward."""
FORMULA_COLUMNS = 120
"""From this console width on, leaves of a tree say how they are computed."""
WHOLE, LARGEST_WHOLE = 1e5, 1e16
"""Inputs between these are shown to the last digit, with thousands separators."""


def all_items(estimate: Estimate) -> dict[str, float]:
    """Every leaf by full dotted name: bytes under memory, exposed seconds under time."""
    memory = {f"memory.{name}": value for name, value in estimate.memory.items.items()}
    time = {f"time.{name}": item.exposed_s for name, item in estimate.time.items()}
    return memory | time


def _value(name: str, value: float) -> str:
    return format_bytes(value) if name.startswith("memory") else format_seconds(value)


@dataclass(frozen=True, kw_only=True)
class _Style:
    """How a tree shows its numbers, and whether leaves say what they are."""

    total: float
    formatter: Callable[[float], str]
    with_formulas: bool


def _leaf_note(path: str, style: _Style) -> str:
    item = item_of(path) if style.with_formulas else None
    return f"  {summary_of(item)}" if item else ""


def _grow(tree: Tree, items: Mapping[str, float], prefix: str, style: _Style) -> None:
    """Add items below ``tree`` by their dotted names, largest first."""
    groups: dict[str, dict[str, float]] = {}
    for name, value in items.items():
        head, _, rest = name.partition(".")
        groups.setdefault(head, {})[rest] = value
    for head, inner in sorted(groups.items(), key=lambda group: -sum(group[1].values())):
        value, path = sum(inner.values()), f"{prefix}.{head}"
        is_leaf = set(inner) == {""}
        note = _leaf_note(path, style) if is_leaf else ""
        line = f"{head}  {style.formatter(value)}  {value / style.total:.1%}"
        branch = tree.add(Text(line).append(note, style="dim"))
        if not is_leaf:
            _grow(branch, inner, path, style)


def _print_tree(
    title: str, section: str, items: Mapping[str, float], total: float, console: Console
) -> None:
    tree = Tree(title)
    formatter = format_bytes if section == "memory" else format_seconds
    wide = console.width >= FORMULA_COLUMNS
    _grow(tree, items, section, _Style(total=total, formatter=formatter, with_formulas=wide))
    console.print(tree)


def print_memory(estimate: Estimate, console: Console) -> None:
    """The memory tree of the fullest stage, then the peak of every stage."""
    memory = estimate.memory
    headroom = memory.hbm_bytes - memory.peak_bytes
    in_host = headroom >= 0 and memory.host_missing_bytes > 0
    verdict = f"{memory.verdict} in host memory" if in_host else memory.verdict
    title = (
        f"memory: {format_bytes(memory.peak_bytes)} of {format_bytes(memory.hbm_bytes)} "
        f"({verdict}: {format_bytes(abs(headroom))} {'free' if headroom >= 0 else 'missing'}"
        f", uncertain by {format_bytes(memory.uncertainty_bytes)}), "
        f"stage {memory.peak_stage}, {memory.moment}"
    )
    _print_tree(title, "memory", memory.items, memory.peak_bytes, console)
    if len(memory.stage_peak_bytes) > 1:
        peaks = ", ".join(format_bytes(value) for value in memory.stage_peak_bytes)
        console.print(f"peak by stage: {peaks}")
    if memory.host_bytes:
        console.print(host_line(memory))


def host_line(memory: MemoryEstimate) -> str:
    """What is offloaded, per rank and node, and what the node lacks for it."""
    ranks = memory.ranks_per_node
    line = f"offloaded per rank: {format_bytes(memory.host_bytes)}"
    if not memory.host_missing_bytes:
        return line
    needed, there = ranks * memory.host_bytes, ranks * memory.host_limit_bytes
    return (
        f"{line}; {format_bytes(needed)} per node of {ranks} rank{'s' * (ranks > 1)}, which has "
        f"{format_bytes(there)} to offload to: {format_bytes(needed - there)} missing"
    )


def pipeline_s(estimate: Estimate) -> float:
    """Time of the pipeline by formula: until the last backward."""
    return sum(item.exposed_s for name, item in estimate.time.items() if name not in AFTER_PIPELINE)


def print_simulation(
    estimate: Estimate, simulated_s: float, strategy: Strategy, console: Console
) -> None:
    """The pipeline's makespan from the event simulation beside the closed form's."""
    work = pipeline_s(estimate)
    console.print(
        f"pipeline ({strategy.schedule}): {format_seconds(work)} by formula, "
        f"{format_seconds(simulated_s)} by event simulation ({simulated_s / work - 1.0:+.1%})"
    )


def print_time(estimate: Estimate, console: Console) -> None:
    """The time tree (exposed seconds), and how long each resource was busy."""
    items = {name: item.exposed_s for name, item in estimate.time.items()}
    title = (
        f"time: {format_seconds(estimate.iter_time_s)} per iteration "
        f"(slowest stage {estimate.slowest_stage}; communication overlapped fully "
        f"{format_seconds(estimate.iter_time_s_overlapped)}, not at all "
        f"{format_seconds(estimate.iter_time_s_serial)})"
    )
    _print_tree(title, "time", items, estimate.iter_time_s, console)
    hidden = {
        name: item for name, item in estimate.time.items() if item.busy_s > item.exposed_s * 1.001
    }
    for name, item in hidden.items():
        console.print(
            f"{name}: busy {format_seconds(item.busy_s)}, of which "
            f"{format_seconds(item.busy_s - item.exposed_s)} hidden"
        )


def _shown(value: object) -> str:
    """An input in short: large numbers whole, others with six digits, parts as name=value."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,.0f}" if WHOLE <= abs(value) <= LARGEST_WHOLE else f"{value:,.6g}"
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(inner)}" for name, inner in value.items())
    return str(value)


def _print_formulas(item: Item, context: Context, strategy: Strategy, console: Console) -> None:
    if item.inputs:
        figures = trait_figures(
            context.traits.name, context.traits.profile, context.traits.settings
        )
        columns: list[Column[str]] = [
            Column("input", str, right=False, wraps=True),
            Column(
                "value",
                lambda path: _shown(input_value(path, context, strategy)),
                right=False,
                wraps=True,
            ),
            Column("source", lambda path: trait_source(path, figures), right=False, wraps=True),
        ]
        console.print(rich_table(Table(item.inputs, columns)))
    if item.text:
        console.print(f"\n{item.text}", markup=False)
    for function in functions_for(item, strategy):
        console.print(f"\n{function.__module__}.{function.__name__}", style="bold")
        console.print(formula_of(function), markup=False)


def item_leaves(name: str, estimate: Estimate) -> tuple[str, dict[str, float]]:
    """The full name of an item or group, and its values: the whole first, then every leaf.

    Raises InputError where there is none of that name.
    """
    items = all_items(estimate)
    full = _full_name(name, items)
    if full is None:
        raise InputError.single(
            "command line",
            "ITEM",
            f"no such item {name!r}; "
            + (did_you_mean(name, items) or f"known are {', '.join(items)}"),
        )
    leaves = {leaf: value for leaf, value in items.items() if _is_in(leaf, full)}
    return full, leaves if full in leaves else {full: sum(leaves.values()), **leaves}


def print_item(
    name: str, context: Context, strategy: Strategy, estimate: Estimate, console: Console
) -> None:
    """One item or group: value, share, inputs with their sources, formulas."""
    full, leaves = item_leaves(name, estimate)
    in_memory = full.startswith("memory")
    total = estimate.memory.peak_bytes if in_memory else estimate.iter_time_s
    for leaf, value in leaves.items():
        console.print(f"{leaf}: {_value(leaf, value)} ({value / total:.1%})", style="bold")
    item = item_of(full)
    if item is not None:
        _print_formulas(item, context, strategy, console)


def _full_name(name: str, items: Mapping[str, float]) -> str | None:
    """Complete ``bubble`` or ``pipeline.bubble`` to ``time.pipeline.bubble``; None if unknown.

    Items with a formula are known even where a plan spends nothing on them.
    """
    known = dict.fromkeys((*items, *(item.address for item in ITEMS)))
    for candidate in (name, *(f"{section}.{name}" for section in SECTIONS)):
        if any(_is_in(leaf, candidate) for leaf in known):
            return candidate
    endings = [leaf for leaf in known if leaf.endswith(f".{name}")]
    return endings[0] if len(endings) == 1 else None


def _is_in(leaf: str, full: str) -> bool:
    return leaf == full or leaf.startswith(f"{full}.")
