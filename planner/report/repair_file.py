"""Prints what is wrong with a configuration file, and its smallest repair in the file's words."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from planner.check.layout import NOWHERE, Place
from planner.check.repair import RepairedFile
from planner.formats.finding import Finding
from planner.limits import one_line
from planner.plans.repair import RECOMPUTE, Change
from planner.report.documents import render
from planner.report.repair import (
    change_name,
    change_style,
    headline,
    no_repair,
    print_figures,
    print_grounds,
    print_others,
    repair_body,
    search_line,
    shortage_line,
    shown,
    title,
    verdict,
)
from planner.report.table import Column, Table, rich_table
from planner.spec.strategy import COUNTS

MOST_DIFF_LINES = 60
"""Longer differences are cut short on a terminal."""
NOT_STATED = "not stated"


def print_repaired_file(
    made: RepairedFile, console: Console, *, command: str, verbose: bool = False
) -> None:
    """What is wrong with a configuration file, what mends it, and the edit."""
    answer = made.answer
    console.print(title(answer, one_line(made.source.path)), style="dim", markup=False)
    if made.is_sound:
        said = "Plans do not model this layout: memory is not checked."
        text = "Nothing is wrong: no error, every stage fits." if not answer.violations else said
        console.print(f"{text} Nothing changed.")
        _print_assumed(made, console)
        return
    if made.diff or made.written is None:
        found = made.written is not None
        said = headline(answer) if found else "No repair was found."
        console.print(said, style="bold green" if found else "bold red", markup=False)
    _print_wrong(made, console)
    if made.written is None:
        console.print(no_repair(answer, command), markup=False)
        console.print(search_line(answer), style="dim", markup=False)
        return
    if not made.diff:
        console.print("The layout is legal and fits: nothing of it changes.")
        _print_assumed(made, console)
        return
    best = answer.repaired[0]
    console.print("Smallest repair", style="bold")
    _print_changes(made, console)
    console.print(verdict(answer), markup=False)
    print_figures(answer, best, console)
    print_others(answer, console)
    _print_left(made, console)
    _print_diff(made, console)
    _print_assumed(made, console)
    if verbose:
        print_grounds(answer, console)


def _place(place: Place) -> str:
    return f"{one_line(place.key)}:{place.line}" if place.line else one_line(place.key)


def _finding_line(finding: Finding) -> str:
    place = _place(Place(key=finding.key, line=finding.line))
    text = f"{finding.rule}: {one_line(finding.message)}"
    return f"{place}: {text}" if place else text


def _print_wrong(made: RepairedFile, console: Console) -> None:
    console.print("What is wrong", style="bold")
    for finding in made.errors:
        console.print(f"  {_finding_line(finding)}", markup=False)
    for shortage in made.answer.shortages:
        console.print(f"  {shortage_line(shortage)}", markup=False)


def _stated(places: Mapping[str, Place], decision: str) -> Place:
    """Where a file states a decision; which layers are recomputed is one, stated by kind."""
    names = COUNTS if decision == RECOMPUTE else (decision,)
    return next((places[name] for name in names if name in places), NOWHERE)


def _rows(made: RepairedFile) -> Iterator[tuple[Change, Place]]:
    """Changes that count, or that the file states, each with its place there."""
    for change in made.answer.repaired[0].changes:
        before = _stated(made.places, change.decision)
        after = _stated(made.new_places, change.decision)
        if change.counts or before.line or after.line:
            yield change, before if before.line else Place(key=after.key)


def _print_changes(made: RepairedFile, console: Console) -> None:
    rows = list(_rows(made))
    if not rows:
        console.print("  The layout stays; what contradicts it in the file is written anew.")
        return
    columns: list[Column[tuple[Change, Place]]] = [
        Column("decision", lambda row: change_name(row[0]), right=False),
        Column("in the file", lambda row: one_line(row[1].key), right=False, wraps=True),
        Column("line", lambda row: str(row[1].line or ("new" if row[1].key else ""))),
        Column("from", _before, right=False, wraps=True),
        Column("to", lambda row: shown(row[0].after), right=False, wraps=True),
    ]
    console.print(rich_table(Table(rows, columns, style=lambda row: change_style(row[0]))))


def _before(row: tuple[Change, Place]) -> str:
    change, place = row
    return shown(change.before) if change.counts or place.line else NOT_STATED


def _print_left(made: RepairedFile, console: Console) -> None:
    left = made.written.errors if made.written else ()
    if left:
        console.print("Left as it is: no layout mends it", style="bold")
    for finding in left:
        console.print(f"  {_finding_line(finding)}", markup=False)


def _print_diff(made: RepairedFile, console: Console) -> None:
    lines = made.diff
    console.print("What --apply changes", style="bold")
    for line in lines[:MOST_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(f"  {one_line(line)}", style=style, markup=False, soft_wrap=True)
    if len(lines) > MOST_DIFF_LINES:
        console.print(f"  ... {len(lines) - MOST_DIFF_LINES:,} more lines")


def _print_assumed(made: RepairedFile, console: Console) -> None:
    assumed = made.start.completed.assumed
    if assumed:
        console.print(f"assumed: {', '.join(assumed)}", style="dim", markup=False)


def render_repaired_file(made: RepairedFile, *, command: str) -> str:
    """The same as JSON, base units throughout."""
    body = repair_body(made.answer, plan=made.source.path, command=command)
    for one in (body["repair"], *body["alternatives"]):
        for change in one["changes"] if one else ():
            place = _stated(made.places, change["decision"])
            after = _stated(made.new_places, change["decision"])
            change |= {"key": place.key or after.key, "line": place.line}
    own: dict[str, Any] = {
        "format": made.kind.name,
        "is_sound": made.is_sound,
        "num_gpus": made.start.num_gpus,
        "errors": [asdict(finding) for finding in made.errors],
        "errors_left": [asdict(one) for one in made.written.errors] if made.written else [],
        "assumed": list(made.start.completed.assumed),
        "diff": made.diff,
    }
    body["num_changes"] = made.answer.num_changes if made.written or made.is_sound else None
    return render("repair-file", body | own)
