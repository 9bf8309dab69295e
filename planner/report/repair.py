"""Prints what is wrong with a plan or a configuration file, and the smallest repairs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console

from planner.check.fix import FixedFile
from planner.check.layout import NOWHERE, Place
from planner.formats.finding import Finding
from planner.limits import one_line
from planner.plans.plan import Plan
from planner.plans.repair import RECOMPUTE, FieldChange, RepairAnswer, Repaired, Value
from planner.report.document import serialise
from planner.report.table import Column, Table, rich_table
from planner.search.near import MOST_CHANGES
from planner.search.space.legality import LAYERS
from planner.spec.strategy import COUNTS, POLICIES
from planner.units import format_bytes, format_seconds

MAX_LISTED = 8
"""Stages whose layers are listed one by one; longer lists name runs of equal numbers."""
MOST_DIFF_LINES = 60
"""Longer differences are cut short on a terminal."""
NOT_STATED = "not stated"


def print_repair(
    answer: RepairAnswer,
    console: Console,
    *,
    path: str,
    command: str,
    file: FixedFile | None = None,
) -> None:
    """What is wrong and what repairs it; ``command`` searches from scratch.

    ``file``: the configuration file that the repair is written into; without it, it is a plan.
    """
    console.print(_title(answer, path), style="dim", markup=False)
    assumed = file.start.completed.assumed if file else ()
    if file.is_sound if file else answer.is_sound:
        console.print(f"{_sound(answer, file)} Nothing changed.", markup=False)
        _print_assumed(assumed, console)
        return
    changes_nothing = file is not None and file.written is not None and not file.diff
    if not changes_nothing:
        style = "bold green" if answer.repaired else "bold red"
        console.print(_headline(answer), style=style, markup=False)
    _print_wrong(answer, file, console)
    if not answer.repaired:
        console.print(_no_repair(answer, command), markup=False)
        console.print(_search_line(answer), style="dim", markup=False)
    elif changes_nothing:
        console.print("The layout is legal and fits: nothing of it changes.")
    else:
        console.print("Smallest repair", style="bold")
        _print_changes(answer.repaired[0].changes, file, console)
        console.print(_verdict(answer), markup=False)
        _print_figures(answer, answer.repaired[0].plan, console)
        _print_others(answer.repaired[1:], console)
        if file is not None:
            _print_left(file, console)
            _print_diff(file.diff, console)
    _print_assumed(assumed, console)


def _title(answer: RepairAnswer, path: str) -> str:
    """The question in one line."""
    context, cluster = answer.context, answer.context.cluster
    return (
        f"{one_line(path)}: {context.model.name} on {cluster.name} "
        f"({cluster.num_accelerators:,} x {cluster.accelerator.name}), {context.traits.name} "
        f"({context.traits.profile}), batch {context.job.global_batch} x {context.job.seq_len} "
        f"tokens, {context.margin_fraction:.1%} of HBM left free"
    )


def _sound(answer: RepairAnswer, file: FixedFile | None) -> str:
    if file is not None and answer.violations:
        return "Plans do not model this layout: memory is not checked."
    if file is not None or answer.before is None:
        return "Nothing is wrong: no error, every stage fits."
    estimate = answer.before.estimate
    return (
        f"Nothing is wrong: legal, {format_bytes(estimate.memory.peak_bytes)} of "
        f"{format_bytes(estimate.memory.usable_bytes)} on pipeline stage "
        f"{estimate.memory.peak_stage}, {format_seconds(estimate.iter_time_s)} per iteration."
    )


def _headline(answer: RepairAnswer) -> str:
    """What repairs it, and what it then takes; or that nothing does."""
    if not answer.repaired:
        return "No repair was found."
    best = answer.repaired[0]
    estimate = best.plan.estimate
    return (
        f"Fixed by {_changed(best.changes)}: {format_bytes(estimate.memory.peak_bytes)} of "
        f"{format_bytes(estimate.memory.usable_bytes)}, {format_seconds(estimate.iter_time_s)} an "
        "iteration."
    )


def _changed(changes: tuple[FieldChange, ...]) -> str:
    """The fields that count, in one line; lists of numbers per stage by their name only."""
    per_stage = (RECOMPUTE, LAYERS)
    texts = [
        change.field if change.field in per_stage else f"{change.field} {_shown(change.after)}"
        for change in changes
        if change.counts
    ]
    return ", ".join(texts) or "filling in what follows"


def _shown(value: Value) -> str:
    """A value of a field in words."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        used = zip(POLICIES, value.values(), strict=True)
        words = [f"{name} {_numbers(counts)}" for name, counts in used if any(counts)]
        return "; ".join(words) or "none"
    if isinstance(value, tuple):
        numbers = tuple(one for one in value if isinstance(one, int))
        return _numbers(numbers) if numbers else ", ".join(map(str, value)) or "none"
    return str(value)


def _numbers(values: tuple[int, ...]) -> str:
    """``7, 8, 8, 7`` or, of many, ``7, 14 x 8, 7``."""
    if len(values) <= MAX_LISTED:
        return ", ".join(map(str, values))
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return ", ".join(f"{length} x {value}" if length > 1 else str(value) for value, length in runs)


def _print_wrong(answer: RepairAnswer, file: FixedFile | None, console: Console) -> None:
    console.print("What is wrong", style="bold")
    if file is not None:
        lines = [_finding_line(one) for one in file.errors]
    else:
        lines = [f"{one.key}: {one.message}" for one in answer.violations]
    for line in (*lines, *(deficit.words for deficit in answer.deficits)):
        console.print(f"  {line}", markup=False)
    if file is None and answer.violations and not _is_priced_here(answer):
        text = "  (memory of an illegal plan is not computed)"
        console.print(text, style="dim", markup=False)


def _is_priced_here(answer: RepairAnswer) -> bool:
    before = answer.before
    return before is not None and before.context.cluster.name == answer.context.cluster.name


def _finding_line(finding: Finding) -> str:
    key = one_line(finding.key)
    place = f"{key}:{finding.line}" if finding.line else key
    text = f"{finding.rule}: {one_line(finding.message)}"
    return f"{place}: {text}" if place else text


def _place(places: Mapping[str, Place], field: str) -> Place:
    """Where a file states a field; which layers are recomputed is one, stated by policy."""
    names = COUNTS if field == RECOMPUTE else (field,)
    return next((places[name] for name in names if name in places), NOWHERE)


def _print_changes(
    changes: tuple[FieldChange, ...], file: FixedFile | None, console: Console
) -> None:
    rows = list(_change_rows(changes, file))
    if not rows:
        console.print("  The layout stays; what contradicts it in the file is written anew.")
        return
    columns: list[Column[tuple[FieldChange, Place]]] = [
        Column("field", lambda row: _field_name(row[0]), right=False)
    ]
    if file is not None:
        columns += [
            Column("in the file", lambda row: one_line(row[1].key), right=False, wraps=True),
            Column("line", lambda row: str(row[1].line or ("new" if row[1].key else ""))),
        ]
    columns += [
        Column("from", partial(_before, is_plan=file is None), right=False, wraps=True),
        Column("to", lambda row: _shown(row[0].after), right=False, wraps=True),
    ]
    style = {True: "", False: "dim"}
    console.print(rich_table(Table(rows, columns, style=lambda row: style[row[0].counts])))
    values = [value for change, _ in rows for value in (change.before, change.after)]
    if any(" x " in _shown(value) for value in values):
        console.print("n x k: n stages in a row with k layers each", style="dim")


def _field_name(change: FieldChange) -> str:
    return change.field if change.counts else f"  {change.field} (follows)"


def _before(row: tuple[FieldChange, Place], *, is_plan: bool) -> str:
    change, place = row
    return _shown(change.before) if is_plan or change.counts or place.line else NOT_STATED


def _change_rows(
    changes: tuple[FieldChange, ...], file: FixedFile | None
) -> Iterator[tuple[FieldChange, Place]]:
    """Changes with their places in the file: those that count, or that the file states."""
    for change in changes:
        before = _place(file.places, change.field) if file else NOWHERE
        after = _place(file.new_places, change.field) if file else NOWHERE
        if file is None or change.counts or before.line or after.line:
            yield change, before if before.line else Place(key=after.key)


def _verdict(answer: RepairAnswer) -> str:
    """How many fields changed, and what is proved."""
    number = answer.num_changes
    if number == 0:
        return "0 fields changed: what follows from them is filled in anew."
    head = f"{_plural(number, 'field')} changed; no repair with fewer exists."
    if not answer.is_complete:
        return f"{head} The time limit struck: one with as few may be faster."
    is_proved = answer.repaired[0].plan.is_optimal
    fastest = "" if is_proved else " (a limit of the solver struck: not proved)"
    return f"{head} None with as few is faster{fastest}."


def _no_repair(answer: RepairAnswer, command: str) -> str:
    """What is said where nothing was found."""
    most = answer.num_changes
    scratch = f". This finds the best plan from scratch:\n  {command}"
    changed = _plural(most, "changed field")
    if not answer.is_complete:
        fewer = f"; none with at most {changed} exists" * (most >= 0)
        return f"No repair was found within the time limit{fewer}{scratch}"
    limit = (
        f"at most {MOST_CHANGES} are tried"
        if most == MOST_CHANGES
        else "with more there are too many layouts to look at them all"
    )
    return f"No repair with at most {changed} exists ({limit}){scratch}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def _search_line(answer: RepairAnswer) -> str:
    """How much was looked at."""
    looked_at = _plural(answer.num_configurations, "configuration")
    return f"Looked at {looked_at} in {answer.seconds:.2f} s."


def _print_figures(answer: RepairAnswer, best: Plan, console: Console) -> None:
    """Time and memory before, where they are known, and after."""
    sides = [("after", best)]
    if answer.before is not None:
        words = "before" if _is_priced_here(answer) else f"on {answer.before.context.cluster.name}"
        sides.insert(0, (words, answer.before))
    names = ("iteration", "tokens per second", "peak memory", "on pipeline stage")
    rows = list(zip(names, *(_figure_cells(plan) for _, plan in sides), strict=True))
    columns: list[Column[tuple[str, ...]]] = [Column("", itemgetter(0), right=False)]
    for place, (title, _) in enumerate(sides, start=1):
        columns.append(Column(title, itemgetter(place)))
    console.print(rich_table(Table(rows, columns)))


def _figure_cells(plan: Plan) -> list[str]:
    estimate, memory = plan.estimate, plan.estimate.memory
    return [
        format_seconds(estimate.iter_time_s),
        f"{estimate.tokens_per_s:,.0f}",
        f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.usable_bytes)}",
        f"{memory.peak_stage}",
    ]


def _print_others(others: tuple[Repaired, ...], console: Console) -> None:
    """The repairs after the first."""
    if not others:
        return
    console.print("Others with as few changes", style="bold")
    columns: list[Column[tuple[int, Repaired]]] = [
        Column("#", lambda row: str(row[0])),
        Column("change", lambda row: _changed(row[1].changes), right=False, wraps=True),
        Column(
            "layers recomputed", lambda row: row[1].plan.strategy.recompute, right=False, wraps=True
        ),
        Column("iteration", lambda row: format_seconds(row[1].plan.estimate.iter_time_s)),
        Column("peak memory", lambda row: format_bytes(row[1].plan.estimate.memory.peak_bytes)),
    ]
    console.print(rich_table(Table(list(enumerate(others, start=2)), columns)))


def _print_left(file: FixedFile, console: Console) -> None:
    left = file.written.errors if file.written else ()
    if left:
        console.print("Left as it is: no layout fixes it", style="bold")
    for finding in left:
        console.print(f"  {_finding_line(finding)}", markup=False)


def _print_diff(lines: list[str], console: Console) -> None:
    console.print("What --apply changes", style="bold")
    for line in lines[:MOST_DIFF_LINES]:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(f"  {one_line(line)}", style=style, markup=False, soft_wrap=True)
    if len(lines) > MOST_DIFF_LINES:
        console.print(f"  ... {len(lines) - MOST_DIFF_LINES:,} more lines")


def _print_assumed(assumed: tuple[str, ...], console: Console) -> None:
    if assumed:
        console.print(f"assumed: {', '.join(assumed)}", style="dim", markup=False)


def render_repair_json(
    answer: RepairAnswer, *, path: str, command: str, file: FixedFile | None = None
) -> str:
    """The same as JSON, base units throughout."""
    context, before = answer.context, answer.before
    is_sound = file.is_sound if file else answer.is_sound
    repaired = [_repaired_dict(one, file) for one in answer.repaired]
    left = file.written.errors if file and file.written else ()
    body = {
        "path": path,
        "format": file.kind.name if file else "plan",
        "model": context.model.name,
        "cluster": context.cluster.name,
        "framework": context.traits.name,
        "profile": context.traits.profile,
        "num_gpus": file.start.num_gpus if file else answer.strategy.num_gpus,
        "margin_fraction": context.margin_fraction,
        "is_sound": is_sound,
        "violations": [{"key": one.key, "message": one.message} for one in answer.violations],
        "memory_deficits": [
            asdict(one) | {"missing_bytes": one.missing_bytes} for one in answer.deficits
        ],
        "errors": [asdict(finding) for finding in file.errors] if file else [],
        "errors_left": [asdict(finding) for finding in left],
        "before": _figures(before) if before else None,
        "before_cluster": before.context.cluster.name if before else None,
        "num_changes": answer.num_changes if repaired or is_sound else None,
        "is_complete": answer.is_complete,
        "none_with_at_most": None if repaired or is_sound else answer.num_changes,
        "repair": repaired[0] if repaired else None,
        "alternatives": repaired[1:],
        "search_command": command,
        "configurations": answer.num_configurations,
        "seconds": answer.seconds,
        "assumed": list(file.start.completed.assumed) if file else [],
        "diff": file.diff if file else [],
    }
    return serialise("repair", body)


def _figures(plan: Plan) -> dict[str, Any]:
    estimate, memory = plan.estimate, plan.estimate.memory
    return {
        "iter_time_s": estimate.iter_time_s,
        "tokens_per_s": estimate.tokens_per_s,
        "peak_bytes": memory.peak_bytes,
        "usable_bytes": memory.usable_bytes,
        "stage": memory.peak_stage,
        "host_bytes": memory.host_bytes,
    }


def _repaired_dict(one: Repaired, file: FixedFile | None) -> dict[str, Any]:
    return {
        "changes": [_change_dict(change, file) for change in one.changes],
        "strategy": asdict(one.plan.strategy),
        **_figures(one.plan),
        "proved_fastest": one.plan.is_optimal,
    }


def _change_dict(change: FieldChange, file: FixedFile | None) -> dict[str, Any]:
    place = _place(file.places, change.field) if file else NOWHERE
    after = _place(file.new_places, change.field) if file else NOWHERE
    return {
        "field": change.field,
        "from": change.before,
        "to": change.after,
        "counts": change.counts,
        "key": place.key or after.key,
        "line": place.line,
    }
