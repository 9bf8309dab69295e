"""Prints what is wrong with a plan or a configuration file, and the smallest repairs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.text import Text

from planner.answers.base import Plan
from planner.answers.repair import (
    RECOMPUTE,
    FieldChange,
    MemoryDeficit,
    RepairAnswer,
    Repaired,
    Value,
)
from planner.answers.row import row_from, row_of
from planner.check.fix import FixedFile
from planner.check.plan import PLAN
from planner.check.result import Figures
from planner.limits import one_line
from planner.query.options import word_of
from planner.report.table import Column, Part, Table, show, whole
from planner.report.tables import plans_table
from planner.report.words import inputs_line, runs_text
from planner.search.near import MOST_CHANGES
from planner.search.space.legality import LAYERS, Violation
from planner.spec.strategy import POLICIES, Strategy
from planner.units import format_bytes, format_seconds, plural


@dataclass(frozen=True, kw_only=True)
class RepairedRow(Figures):
    """A layout that is legal and fits."""

    changes: tuple[FieldChange, ...]
    strategy: Strategy
    proved_fastest: bool
    """True if proved the fastest of the repairs with as few changes."""


@row_of(
    {
        **dict.fromkeys(("path", "framework", "profile", "search_command"), str),
        **dict.fromkeys(("margin_fraction", "seconds"), float),
        **dict.fromkeys(("num_changes", "none_with_at_most"), int | None),
        "configurations": int,
        "is_complete": bool,
        "violations": tuple[Violation, ...],
        "memory_deficits": tuple[MemoryDeficit, ...],
        "before": Figures | None,
        "before_cluster": str | None,
        "repair": RepairedRow | None,
        "alternatives": tuple[RepairedRow, ...],
    },
    derived=("is_sound", "diff"),
    leave_out=("source", "answer", "fixed"),
    about={
        "format": "``plan``, or the name of a format.",
        "margin_fraction": "Share of HBM left free.",
        "errors": "Errors of a configuration file as it is.",
        "errors_left": "Errors that no layout fixes.",
        "before": "Null where the layout as it is cannot be priced.",
        "num_changes": "Null where no repair was found.",
        "is_complete": "No time limit struck.",
        "none_with_at_most": "Greatest number of changes tried; null where a repair was found.",
        "alternatives": "Repairs with as few changes.",
        "search_command": "Command that searches for the best plan in place of the nearest.",
        "seconds": "Seconds of the search.",
        "assumed": "Assumed values, which a configuration file does not state.",
    },
)
class RepairDocument(FixedFile):
    """The fewest changes that make a plan or a configuration file legal and fit."""


def repair_document(made: FixedFile, command: str) -> RepairDocument:
    """What is wrong and what repairs it, base units throughout."""
    answer, context = made.answer, made.answer.context
    before = answer.before
    repaired = [
        RepairedRow(
            **asdict(Figures.of(one.plan.estimate)),
            changes=one.changes,
            strategy=one.plan.strategy,
            proved_fastest=one.plan.is_optimal,
        )
        for one in answer.repaired
    ]
    is_known = bool(repaired) or made.is_sound
    return row_from(
        RepairDocument,
        made,
        path=made.source.path,
        model=context.model.name,
        cluster=context.cluster.name,
        framework=context.traits.name,
        profile=context.traits.profile,
        margin_fraction=context.margin_fraction,
        violations=answer.violations,
        memory_deficits=answer.deficits,
        before=Figures.of(before.estimate) if before else None,
        before_cluster=before.context.cluster.name if before else None,
        num_changes=answer.near.num_changes if is_known else None,
        is_complete=answer.near.is_complete,
        none_with_at_most=None if is_known else answer.near.num_changes,
        repair=repaired[0] if repaired else None,
        alternatives=tuple(repaired[1:]),
        search_command=command,
        configurations=answer.near.num_configurations,
        seconds=answer.seconds,
    )


def print_repair(made: FixedFile, command: str, console: Console) -> None:
    """Print what is wrong and what repairs it; ``command`` searches from scratch."""
    context = made.answer.context
    free = f"{context.margin_fraction:.1%} of HBM left free"
    title = f"{one_line(made.source.path)}: {inputs_line([context])}, {free}"
    assumed = f"assumed: {', '.join(made.assumed)}"
    answer = _answer(made)
    if made.is_sound:
        answer = iter([f"{_sound(made)} Nothing changed."])
    elif not made.answer.repaired:
        answer = _no_repair(made, command)
    show(
        console,
        Text(title, "dim"),
        *answer,
        Text(assumed, "dim") if made.assumed else "",
    )


def _answer(made: FixedFile) -> Iterator[Part]:
    """The verdict first, then what is wrong, what changes, and what that gives."""
    answer, is_plan = made.answer, made.format == PLAN
    best, *others = answer.repaired
    if not is_plan and made.fixed is not None and not made.diff:
        yield from _wrong(made)
        yield "The layout is legal and fits: nothing of it changes."
        return
    time = format_seconds(best.plan.estimate.iter_time_s)
    taken = f"{_memory(best.plan)}, {time} an iteration"
    yield Text(f"Fixed by {_changed(best)}: {taken}.", "bold green")
    yield from _wrong(made)
    yield from _changes(best.changes, is_plan=is_plan)
    yield _proved(answer)
    names = ["after", *["or"] * len(others)]
    plans = [each.plan for each in answer.repaired]
    if answer.before is not None:
        at = answer.before.context.cluster.name
        names.insert(0, "before" if _is_priced_here(answer) else f"on {at}")
        plans.insert(0, answer.before)
    yield plans_table(plans, names=names)
    if made.errors_left:
        yield Text("Left as it is: no layout fixes it", "bold")
        yield from (f"  {one_line(str(one))}" for one in made.errors_left)
    if made.diff:
        yield Text("What --apply changes", "bold")
    styles = {"+": "green", "-": "red", "@": "cyan"}
    yield from (whole(f"  {one_line(line)}", styles.get(line[:1], "")) for line in made.diff)


def _sound(made: FixedFile) -> str:
    before = made.answer.before
    if made.format != PLAN and made.answer.violations:
        return "Plans do not model this layout: memory is not checked."
    if made.format != PLAN or before is None:
        return "Nothing is wrong: no error, every stage fits."
    return (
        f"Nothing is wrong: legal, {_memory(before)} on pipeline stage "
        f"{before.estimate.memory.stage}, "
        f"{format_seconds(before.estimate.iter_time_s)} per iteration."
    )


def _memory(plan: Plan) -> str:
    memory = plan.estimate.memory
    return f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.usable_bytes)}"


def _changed(repaired: Repaired) -> str:
    per_stage = (RECOMPUTE, LAYERS)
    texts = [
        change.field if change.field in per_stage else f"{change.field} {_shown(change.after)}"
        for change in repaired.changes
        if change.counts
    ]
    return ", ".join(texts) or "filling in what follows"


def _shown(value: Value) -> str:
    if isinstance(value, dict):
        used = zip(POLICIES, value.values(), strict=True)
        words = [f"{name} {_shown(counts)}" for name, counts in used if any(counts)]
        return "; ".join(words) or "none"
    if not isinstance(value, tuple):
        return word_of(value)
    return (", ".join(map(str, value)) or "none") if len(value) <= 8 else runs_text(value)


def _wrong(made: FixedFile) -> Iterator[Part]:
    answer = made.answer
    broken = [f"{one.key}: {one.message}" for one in answer.violations]
    lines = broken if made.format == PLAN else [one_line(str(one)) for one in made.errors]
    yield Text("What is wrong", "bold")
    deficits = (one.words for one in answer.deficits)
    yield from (f"  {line}" for line in (*lines, *deficits))
    if made.format == PLAN and answer.violations and not _is_priced_here(answer):
        yield Text("  (memory of an illegal plan is not computed)", "dim")


def _is_priced_here(answer: RepairAnswer) -> bool:
    before = answer.before
    return before is not None and before.context.cluster.name == answer.context.cluster.name


def _changes(changes: Sequence[FieldChange], *, is_plan: bool) -> Iterator[Part]:
    """A row for every field that counts, or that the file states."""
    yield Text("Smallest repair", "bold")
    rows = [one for one in changes if is_plan or one.counts or one.line or one.new_line]
    if not rows:
        yield "  The layout stays; what contradicts it in the file is written anew."
        return
    columns: list[Column[FieldChange]] = [
        Column("field", lambda r: r.field if r.counts else f"  {r.field} (follows)", right=False),
        Column("in the file", lambda row: one_line(row.key), right=False, wraps=True),
        Column("line", _place),
        Column(
            "from",
            lambda r: _shown(r.before) if is_plan or r.counts or r.line else "not stated",
            right=False,
            wraps=True,
        ),
        Column("to", lambda row: _shown(row.after), right=False, wraps=True),
    ]
    if is_plan:
        del columns[1:3]
    yield Table(rows, columns, style=lambda row: "" if row.counts else "dim")


def _place(row: FieldChange) -> str:
    """The line of a change, behind its file where that is another one."""
    line = str(row.line or ("new" if row.new_line else ""))
    return f"{one_line(row.path)}:{line}" if row.path else line


def _proved(answer: RepairAnswer) -> str:
    number = answer.near.num_changes
    if number == 0:
        return "0 fields changed: what follows from them is filled in anew."
    head = f"{plural(number, 'field')} changed; no repair with fewer exists."
    if not answer.near.is_complete:
        return f"{head} The time limit struck: one with as few may be faster."
    is_proved = answer.repaired[0].plan.is_optimal
    fastest = "" if is_proved else " (a limit of the solver struck: not proved)"
    return f"{head} None with as few is faster{fastest}."


def _no_repair(made: FixedFile, command: str) -> Iterator[Part]:
    near, most = made.answer.near, made.answer.near.num_changes
    changed = plural(most, "changed field")
    looked_at = plural(near.num_configurations, "configuration")
    yield Text("No repair was found.", "bold red")
    yield from _wrong(made)
    if near.is_complete:
        too_many = "with more there are too many layouts to look at them all"
        limit = f"at most {most} are tried" if most == MOST_CHANGES else too_many
        why = f"No repair with at most {changed} exists ({limit})"
    else:
        fewer = f"; none with at most {changed} exists" if most >= 0 else ""
        why = f"No repair was found within the time limit{fewer}"
    yield f"{why}. This finds the best plan from scratch:\n  {command}"
    yield Text(f"Looked at {looked_at} in {made.answer.seconds:.2f} s.", "dim")
