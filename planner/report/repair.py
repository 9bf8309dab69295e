"""Prints what is wrong with a plan, the smallest edit that mends it, and others as small."""

from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console

from planner.cost.estimate import Estimate
from planner.plans.repair import Change, RepairAnswer, Repaired, Shortage, Value
from planner.report.assumptions import assumptions_line
from planner.report.documents import render
from planner.report.table import Column, Table, rich_table
from planner.search.repair import MOST_CHANGES
from planner.spec.strategy import POLICIES
from planner.units import format_bytes, format_seconds

MAX_LISTED = 8
"""Stages whose layers are listed one by one; longer lists name runs of equal numbers."""


def _numbers(values: tuple[int, ...]) -> str:
    """``7, 8, 8, 7`` or, of many, ``7, 14 x 8, 7``."""
    if len(values) <= MAX_LISTED:
        return ", ".join(map(str, values))
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return ", ".join(f"{length} x {value}" if length > 1 else str(value) for value, length in runs)


def shown(value: Value) -> str:
    """A value of a decision in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        used = zip(POLICIES, value.values(), strict=True)
        return "; ".join(f"{name} {_numbers(counts)}" for name, counts in used if any(counts)) or (
            "none"
        )
    if isinstance(value, tuple):
        numbers = tuple(one for one in value if isinstance(one, int))
        return _numbers(numbers) if numbers else ", ".join(map(str, value)) or "none"
    return str(value)


def _plural(number: int, noun: str, many: str = "") -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def title(answer: RepairAnswer, plan: str) -> str:
    """The question in one line."""
    context, cluster = answer.context, answer.context.cluster
    return (
        f"{plan}: {context.model.name} on {cluster.name} ({cluster.num_accelerators:,} x "
        f"{cluster.accelerator.name}), {context.traits.name} ({context.traits.profile}), batch "
        f"{context.job.global_batch} x {context.job.seq_len} tokens, "
        f"{context.margin_fraction:.1%} of HBM left free"
    )


def shortage_line(shortage: Shortage) -> str:
    """A stage that does not fit, with numbers."""
    return shortage.words


def _print_wrong(answer: RepairAnswer, console: Console) -> None:
    console.print("What is wrong", style="bold")
    for one in answer.violations:
        console.print(f"  {one.key}: {one.message}", markup=False)
    for shortage in answer.shortages:
        console.print(f"  {shortage_line(shortage)}", markup=False)
    if answer.violations and answer.before_cluster != answer.context.cluster.name:
        text = "  (memory of an illegal plan is not computed)"
        console.print(text, style="dim", markup=False)


def change_name(change: Change) -> str:
    """A changed decision; indented where it follows from another."""
    return change.decision if change.counts else f"  {change.decision} (follows)"


def change_style(change: Change) -> str:
    """Dim for what follows from other changes."""
    return "" if change.counts else "dim"


def _print_changes(changes: tuple[Change, ...], console: Console) -> None:
    columns: list[Column[Change]] = [
        Column("decision", change_name, right=False),
        Column("from", lambda change: shown(change.before), right=False, wraps=True),
        Column("to", lambda change: shown(change.after), right=False, wraps=True),
    ]
    console.print(rich_table(Table(changes, columns, style=change_style)))
    if any(" x " in shown(value) for change in changes for value in (change.before, change.after)):
        console.print("n x k: n stages in a row with k layers each", style="dim")


def _estimate_cells(estimate: Estimate) -> list[str]:
    memory = estimate.memory
    return [
        format_seconds(estimate.iter_time_s),
        f"{estimate.tokens_per_s:,.0f}",
        f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.usable_bytes)}",
        f"{memory.peak_stage}",
    ]


def print_figures(answer: RepairAnswer, best: Repaired, console: Console) -> None:
    """Time and memory before, where they are known, and after."""
    sides = [("after", best.estimate)]
    if answer.before is not None:
        here = answer.before_cluster == answer.context.cluster.name
        sides.insert(0, ("before" if here else f"on {answer.before_cluster}", answer.before))
    titles = ("iteration", "tokens per second", "peak memory", "on pipeline stage")
    rows = list(zip(titles, *(_estimate_cells(one) for _, one in sides), strict=True))
    columns: list[Column[tuple[str, ...]]] = [Column("", itemgetter(0), right=False)]
    for place, (title, _) in enumerate(sides, start=1):
        columns.append(Column(title, itemgetter(place)))
    console.print(rich_table(Table(rows, columns)))


def _edit_text(changes: tuple[Change, ...]) -> str:
    """Changed decisions in one line."""
    texts = []
    for change in changes:
        if change.counts:
            after = change.after
            total = isinstance(after, dict) or change.decision == "layers_per_stage"
            texts.append(change.decision if total else f"{change.decision} {shown(after)}")
    return ", ".join(texts) or "nothing"


def print_others(answer: RepairAnswer, console: Console) -> None:
    """The repairs after the first."""
    others = answer.repaired[1:]
    if not others:
        return
    console.print("Others with as few changes", style="bold")
    columns: list[Column[tuple[int, Repaired]]] = [
        Column("#", lambda row: str(row[0])),
        Column("change", lambda row: _edit_text(row[1].changes), right=False, wraps=True),
        Column("layers recomputed", lambda row: row[1].strategy.recompute, right=False, wraps=True),
        Column("iteration", lambda row: format_seconds(row[1].estimate.iter_time_s)),
        Column("peak memory", lambda row: format_bytes(row[1].estimate.memory.peak_bytes)),
    ]
    console.print(rich_table(Table(list(enumerate(others, start=2)), columns)))


def search_line(answer: RepairAnswer) -> str:
    """How much was looked at."""
    found = _plural(answer.num_strategies, "legal strategy", "legal strategies")
    return (
        f"Looked at {found}, solved "
        f"{_plural(answer.num_solved, 'stage problem')}, in {answer.seconds:.2f} s."
    )


def no_repair(answer: RepairAnswer, command: str) -> str:
    """What is said where nothing was found."""
    most = answer.num_changes
    if not answer.is_complete:
        fewer = f"; none with at most {_plural(most, 'changed decision')} exists" * (most >= 0)
        head = f"No repair was found within the time limit{fewer}"
        return f"{head}. This finds the best plan from scratch:\n  {command}"
    head = f"No repair with at most {_plural(most, 'changed decision')} exists"
    limit = (
        f"at most {MOST_CHANGES} are tried"
        if most == MOST_CHANGES
        else "with more there are too many strategies to look at them all"
    )
    return f"{head} ({limit}). This finds the best plan from scratch:\n  {command}"


def verdict(answer: RepairAnswer) -> str:
    """How many decisions changed, and what is proved."""
    number = answer.num_changes
    if number == 0:
        return "0 decisions changed: what follows from them is filled in anew."
    if not answer.is_complete:
        return (
            f"{_plural(number, 'decision')} changed; no repair with fewer exists. The time limit "
            "struck: one with as few may be faster."
        )
    fastest = "" if answer.repaired[0].is_optimal else " (a limit of the solver struck: not proved)"
    return (
        f"{_plural(number, 'decision')} changed; no repair with fewer exists. "
        f"None with as few is faster{fastest}."
    )


def headline(answer: RepairAnswer) -> str:
    """What mends it, and what it then takes; or that nothing does."""
    if not answer.repaired:
        return "No repair was found."
    best = answer.repaired[0]
    memory = best.estimate.memory
    return (
        f"Mended by {_edit_text(best.changes)}: {format_bytes(memory.peak_bytes)} of "
        f"{format_bytes(memory.usable_bytes)}, {format_seconds(best.estimate.iter_time_s)} an "
        "iteration."
    )


def print_repair(
    answer: RepairAnswer, console: Console, *, plan: str, command: str, verbose: bool = False
) -> None:
    """What is wrong and mends it; ``command`` searches from scratch, ``verbose`` adds grounds."""
    console.print(title(answer, plan), style="dim", markup=False)
    if answer.is_sound and answer.before is not None:
        memory = answer.before.memory
        console.print(
            f"Nothing is wrong: legal, {format_bytes(memory.peak_bytes)} of "
            f"{format_bytes(memory.usable_bytes)} on pipeline stage {memory.peak_stage}, "
            f"{format_seconds(answer.before.iter_time_s)} per iteration. Nothing changed.",
            markup=False,
        )
        return
    console.print(headline(answer), style="bold green" if answer.repaired else "bold red")
    _print_wrong(answer, console)
    if not answer.repaired:
        console.print(no_repair(answer, command), markup=False)
        console.print(search_line(answer), style="dim", markup=False)
        return
    best = answer.repaired[0]
    console.print("Smallest repair", style="bold")
    _print_changes(best.changes, console)
    console.print(verdict(answer), markup=False)
    print_figures(answer, best, console)
    print_others(answer, console)
    if verbose:
        print_grounds(answer, console)


def print_grounds(answer: RepairAnswer, console: Console) -> None:
    """What software is assumed, and how much was looked at."""
    best = answer.repaired[0]
    console.print(assumptions_line(answer.context, [best.strategy]), style="dim", markup=False)
    console.print(search_line(answer), style="dim", markup=False)


def _figures(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    memory = estimate.memory
    return {
        "iter_time_s": estimate.iter_time_s,
        "tokens_per_s": estimate.tokens_per_s,
        "peak_bytes": memory.peak_bytes,
        "usable_bytes": memory.usable_bytes,
        "stage": memory.peak_stage,
        "host_bytes": memory.host_bytes,
    }


def _repaired_dict(one: Repaired) -> dict[str, Any]:
    return {
        "changes": [
            {
                "decision": change.decision,
                "from": change.before,
                "to": change.after,
                "counts": change.counts,
            }
            for change in one.changes
        ],
        "strategy": asdict(one.strategy),
        **(_figures(one.estimate) or {}),
        "proved_fastest": one.is_optimal,
    }


def render_repair_json(answer: RepairAnswer, *, plan: str, command: str) -> str:
    """The same as JSON, base units throughout."""
    return render("repair", repair_body(answer, plan=plan, command=command))


def repair_body(answer: RepairAnswer, *, plan: str, command: str) -> dict[str, Any]:
    """What the JSON of a repair holds."""
    context = answer.context
    return {
        "plan": plan,
        "model": context.model.name,
        "cluster": context.cluster.name,
        "framework": context.traits.name,
        "profile": context.traits.profile,
        "margin_fraction": context.margin_fraction,
        "is_sound": answer.is_sound,
        "violations": [{"key": one.key, "message": one.message} for one in answer.violations],
        "shortages": [
            asdict(one) | {"missing_bytes": one.missing_bytes} for one in answer.shortages
        ],
        "before": _figures(answer.before),
        "before_cluster": answer.before_cluster,
        "num_changes": answer.num_changes if answer.repaired or answer.is_sound else None,
        "is_complete": answer.is_complete,
        "none_with_at_most": None if answer.repaired or answer.is_sound else answer.num_changes,
        "repair": _repaired_dict(answer.repaired[0]) if answer.repaired else None,
        "alternatives": [_repaired_dict(one) for one in answer.repaired[1:]],
        "search_command": command,
        "strategies": answer.num_strategies,
        "stage_problems_solved": answer.num_solved,
        "seconds": answer.seconds,
    }
