"""A collective in the terminal and as JSON: algorithms and levels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from planner.collectives.cost import CollectiveCost
from planner.collectives.hierarchy import GroupLevel, HierarchyCost, LevelCost
from planner.plans.collective import CollectiveAnswer
from planner.report.document import serialise
from planner.report.table import Column, Table, fits, rich_table
from planner.units import GB, format_bytes, format_seconds

SHOWN_ALGORITHMS = 6


def _count(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _title(answer: CollectiveAnswer) -> str:
    question = answer.question
    return (
        f"{question.kind.replace('_', '-')} of {format_bytes(question.num_bytes)} on "
        f"{question.num_ranks} of {question.cluster.num_accelerators} "
        f"{question.cluster.accelerator.name} ({question.cluster.name})"
    )


def print_collective(answer: CollectiveAnswer, console: Console, *, verbose: bool = False) -> None:
    """What plans count on, then algorithms; ``verbose``: all, level by level."""
    console.print(_title(answer), style="dim")
    if answer.question.note:
        console.print(answer.question.note)
    if answer.plan_s is not None:
        how = "measured" if answer.plan_is_measured else "no measurement of this group"
        busbw = answer.busbw_bytes_per_s(answer.plan_s) / GB
        line = f"{format_seconds(answer.plan_s)} in plans, {busbw:.4g} GB/s of bus ({how})."
        console.print(line, style="bold green")
    _print_levels(answer, console)
    _print_algorithms(answer, console, answer.costs if verbose else answer.costs[:SHOWN_ALGORITHMS])
    if verbose and len(answer.levels) > 1:
        _print_shares(answer, console)
    if len(answer.crossovers) > 1 or len(answer.costs) > 1:
        steps = [f"{c.algorithm} from {format_bytes(c.from_bytes)}" for c in answer.crossovers]
        console.print(f"fastest by size: {', '.join(steps)}")
    if not verbose and (len(answer.costs) > SHOWN_ALGORITHMS or len(answer.levels) > 1):
        console.print("-v adds slower algorithms, and each level's share of them.", style="dim")


def _print_levels(answer: CollectiveAnswer, console: Console) -> None:
    columns: list[Column[GroupLevel]] = [
        Column("level", lambda level: level.name, right=False),
        Column(
            "topology",
            lambda level: f"{level.topology} {'x'.join(map(str, level.dims))}".strip(),
            right=False,
        ),
        Column("units", lambda level: str(level.members)),
        Column("GB/s", lambda level: f"{level.bytes_per_s / GB:.4g}"),
        Column("latency", lambda level: format_seconds(level.latency_s)),
        Column(
            "adds in network",
            lambda level: "yes" if level.reduces_in_network else "no",
            right=False,
        ),
    ]
    console.print(rich_table(Table(answer.levels, columns)))


def _print_algorithms(
    answer: CollectiveAnswer, console: Console, costs: Sequence[HierarchyCost]
) -> None:
    columns: list[Column[HierarchyCost]] = [
        Column("algorithm", lambda cost: cost.algorithm, right=False),
        Column("time", lambda cost: format_seconds(float(cost.total.time_s))),
        Column(
            "bus GB/s",
            lambda cost: f"{answer.busbw_bytes_per_s(float(cost.total.time_s)) / GB:.4g}",
        ),
        Column("rounds", lambda cost: _count(float(cost.total.rounds))),
        Column("sent per rank", lambda cost: format_bytes(float(cost.total.sent_bytes))),
        Column("bottleneck", lambda cost: cost.bottleneck, right=False),
    ]
    console.print(rich_table(Table(costs, columns)))


def _print_shares(answer: CollectiveAnswer, console: Console) -> None:
    """As many levels side by side as the console is wide, the others in tables below."""
    first, count = 0, len(answer.levels)
    while first < count:
        last = first + 1
        while last < count and fits(_shares(answer, first, last + 1), console.width):
            last += 1
        console.print(rich_table(_shares(answer, first, last)))
        first = last


def _shares(answer: CollectiveAnswer, first: int, last: int) -> Table[HierarchyCost]:
    """Time, rounds and bytes of each algorithm on some of the levels."""
    columns: list[Column[HierarchyCost]] = [
        Column("algorithm", lambda cost: cost.algorithm, right=False)
    ]
    for place in range(first, last):
        columns += _share_columns(answer.levels[place].name, place)
    return Table(answer.costs, columns)


def _share_columns(name: str, place: int) -> list[Column[HierarchyCost]]:
    return [
        Column(f"{name}: time", lambda cost: format_seconds(float(cost.levels[place].time_s))),
        Column("rounds", lambda cost: _count(float(cost.levels[place].rounds))),
        Column("sent", lambda cost: format_bytes(float(cost.levels[place].sent_bytes))),
    ]


def render_collective_json(answer: CollectiveAnswer) -> str:
    """The answer as JSON, base units."""
    question = answer.question
    data = {
        "collective": question.kind,
        "bytes": question.num_bytes,
        "cluster": question.cluster.name,
        "ranks": question.num_ranks,
        "note": question.note,
        "levels": [
            {
                "name": level.name,
                "topology": level.topology,
                "units": level.members,
                "bytes_per_s": level.bytes_per_s,
                "latency_s": level.latency_s,
                "reduces_in_network": level.reduces_in_network,
            }
            for level in answer.levels
        ],
        "algorithms": [_cost_dict(answer, cost) for cost in answer.costs],
        "plan_s": answer.plan_s,
        "plan_is_measured": answer.plan_is_measured,
        "crossovers": [
            {"from_bytes": c.from_bytes, "algorithm": c.algorithm} for c in answer.crossovers
        ],
    }
    return serialise("collective", data)


def _cost_dict(answer: CollectiveAnswer, cost: HierarchyCost) -> dict[str, Any]:
    seconds = float(cost.total.time_s)
    return {
        "name": cost.algorithm,
        **_numbers(cost.total),
        "busbw_bytes_per_s": answer.busbw_bytes_per_s(seconds),
        "bottleneck": cost.bottleneck,
        "levels": [{"name": level.name, **_numbers(level)} for level in cost.levels],
    }


def _numbers(cost: CollectiveCost | LevelCost) -> dict[str, float]:
    return {
        "time_s": float(np.asarray(cost.time_s)),
        "rounds": float(np.asarray(cost.rounds)),
        "sent_bytes": float(np.asarray(cost.sent_bytes)),
    }
