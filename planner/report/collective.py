"""A collective in the terminal: what plans count on, levels, algorithms, other ways."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from planner.answers.collective import AlgorithmRow, CollectiveAnswer, WayRow
from planner.collectives.hierarchy import GroupLevel
from planner.report.show import LEVEL_NAMES, LEVEL_RATES
from planner.report.table import Column, Table, show, text_table
from planner.units import GB, format_bytes, format_seconds


def _count(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def print_collective(answer: CollectiveAnswer, console: Console, *, verbose: bool = False) -> None:
    """Print the time that plans use, then algorithms; ``verbose``: all, level by level."""
    title = (
        f"{answer.collective.replace('_', '-')} of {format_bytes(answer.bytes)} on "
        f"{answer.ranks} of {answer.accelerators} {answer.accelerator} ({answer.cluster})"
    )
    in_plans = ""
    if answer.plan_s is not None and answer.plan_busbw_bytes_per_s is not None:
        how = "measured" if answer.plan_is_measured else "no measurement of this group"
        busbw = answer.plan_busbw_bytes_per_s / GB
        in_plans = f"{format_seconds(answer.plan_s)} in plans, {busbw:.4g} GB/s of bus ({how})."
    has_levels = len(answer.levels) > 1
    has_steps = len(answer.crossovers) > 1 or len(answer.algorithms) > 1
    steps = [f"{c.algorithm} from {format_bytes(c.from_bytes)}" for c in answer.crossovers]
    most = len(answer.algorithms) if verbose else 6
    is_cut = len(answer.algorithms) > most or (has_levels and not verbose)
    levels = [*LEVEL_NAMES, Column[GroupLevel]("units", "members"), *LEVEL_RATES]
    algorithms: list[Column[AlgorithmRow]] = [
        Column("algorithm", "name", right=False),
        Column("time", lambda row: format_seconds(row.time_s)),
        Column("bus GB/s", lambda row: f"{row.busbw_bytes_per_s / GB:.4g}"),
        Column("rounds", lambda row: _count(row.rounds)),
        Column("sent per rank", lambda row: format_bytes(row.sent_bytes)),
        Column("bottleneck", "bottleneck", right=False),
    ]
    more = "-v adds slower algorithms, and each level's share of them."
    show(
        console,
        Text(title, "dim"),
        answer.note,
        Text(in_plans, "bold green") if in_plans else "",
        Table(answer.levels, levels),
        Table(answer.algorithms[:most], algorithms),
        _shares(answer) if verbose and has_levels else "",
        _ways(answer.ways) if answer.ways else "",
        f"fastest by size: {', '.join(steps)}" if has_steps else "",
        Text(more, "dim") if is_cut else "",
    )


def _ways(ways: Sequence[WayRow]) -> Table[WayRow]:
    def if_known(value: float | None, in_words: Callable[[float], str]) -> str:
        return "" if value is None else in_words(value)

    columns: list[Column[WayRow]] = [
        Column("other way", "name", right=False),
        Column("time", lambda row: format_seconds(row.time_s)),
        Column("exposed", lambda row: if_known(row.exposed_s, format_seconds)),
        Column("sent", lambda row: if_known(row.sent_bytes, format_bytes)),
        Column("what it does", "note", right=False, wraps=True),
    ]
    return Table(ways, columns)


def _shares(answer: CollectiveAnswer) -> Table[Sequence[str]]:
    """Every algorithm's time, rounds and bytes on every level."""
    rows = [
        (
            row.name,
            share.name,
            format_seconds(share.time_s),
            _count(share.rounds),
            format_bytes(share.sent_bytes),
        )
        for row in answer.algorithms
        for share in row.levels
    ]
    return text_table(("algorithm", "level", "time", "rounds", "sent"), rows, left=("level",))
