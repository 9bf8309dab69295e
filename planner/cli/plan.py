"""``planner plan``: ranked plans for a model on a cluster."""

import re
import shlex
from collections.abc import Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner.catalog import EXAMPLE_NODE
from planner.cli import options
from planner.cli.output import fail, say
from planner.documents.file import write_atomically
from planner.errors import NothingFitsError, did_you_mean
from planner.notes import Problems
from planner.query.options import OPTIONS, PLACES
from planner.query.query import Query
from planner.report.files import check_targets, check_writable

if TYPE_CHECKING:
    from planner.answers.base import Answer
    from planner.answers.why import Side
    from planner.cli.saved import Target
    from planner.query.resolve import Resolved
    from planner.report.document import Shown
    from planner.search.search import Progress

LEFT_OUT = ("like", "fix", "frontier", "pareto", "objective", "time_limit")
SPELLED = {option.spelled: name for name, option in OPTIONS.items() if option.spelled}
BATCHES = {"global_batch": "global_batch_tokens", "global_batch_tokens": "global_batch"}


@options.takes(form=options.CSV)
def plan(
    *,
    query: Query,
    space: Annotated[
        bool, typer.Option("--space", help="Show what would be searched, and stop.")
    ] = False,
    versus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Compare with the same question asked otherwise: precision=fp8, cp=1, "
            f"cluster=8x{EXAMPLE_NODE}; several with commas; repeatable.",
        ),
    ] = None,
    maximize: Annotated[
        Literal["seq-len", "micro-batch"] | None,
        typer.Option(
            help="Find the longest sequence that fits, or first the largest micro-batch, "
            "and what binds them."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = 5,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the variants of every layout too.")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Have CP-SAT decide the layouts shown once more.")
    ] = False,
    verbose: options.Verbose = False,
    save: Annotated[
        Path | None, typer.Option("--save", "-o", help="File for the best plan.")
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option(help="Write the best plan as files of this format, into --out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for --emit.")] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
    progress: "Progress",
    output_format: str = "table",
) -> "Shown":
    """``planner plan``: exits with 3 where nothing fits, or keeps the limits."""
    from planner.answers.plan import answer_or_raise, beside_screen, proved
    from planner.query.resolve import resolve
    from planner.report.document import Planned, Shown
    from planner.search.space.count import count_space

    if save is not None:
        check_writable(save, force=force)
    problems = Problems()
    target = problems.read(lambda: _target(emit, out, launcher, force=force))
    alone = {"--versus": versus, "--maximize": maximize, "--space": space}
    asked = [name for name, given in alone.items() if given]
    beside = target or save or prove or show_all or output_format == "csv"
    if asked and (beside or len(asked) > 1):
        problems.add(asked[0], "stands alone: no --all, csv, --emit, --prove or --save beside it")
    if asked and asked[0] != "--space":
        problems.finish()
    if maximize:
        return _maximized(query, maximize, progress, verbose=verbose)
    if versus or space:
        from planner.report import plan_options as report  # loads what no other question asks
    if versus:
        sides = compare(query, versus, progress)
        return Shown(
            kind="versus",
            found=sides,
            body=report.versus_document,
            screen=report.print_versus,
        )
    resolved = resolve(query, fmt=target[0] if target else None, problems=problems)
    if space:
        return Shown(
            kind="space",
            found=[count_space(context, resolved.narrowing) for context in resolved.contexts],
            body=partial(report.space_document, notes=resolved.notes),
            screen=partial(report.print_spaces, notes=resolved.notes),
        )
    result, told = answer_or_raise(resolved, top, progress), None
    if prove and result.plans:
        progress("asking CP-SAT for anything faster", 0.9)
        result = proved(result)
    if output_format == "table":
        progress("looking beside the plans", 0.99)
        told = beside_screen(result, verbose=verbose, show_all=show_all)
    following = _following(result, resolved, save, emitting=target is not None)
    after = partial(_written, result, query, save, target, out, force=force)
    return Planned.of(
        result, query, told, after=after, verbose=verbose, show_all=show_all, following=following
    )


def _written(
    result: "Answer",
    query: Query,
    save: Path | None,
    target: "Target | None",
    out: Path | None,
    *,
    force: bool,
) -> None:
    """Write what is asked for; raises NothingFitsError where no plan keeps the limits."""
    from planner.report.sizing_words import unmet_limits

    if not result.plans:
        raise unmet_limits(result)
    if save is not None:
        from planner.report.emitted import PlanText

        write_atomically(save, PlanText.of(result.plans[0], query).text)
        say(f"saved plan 1 to {save}")
    if target is not None:
        from planner.cli.saved import write
        from planner.report.emitted import PlanText

        assert out is not None
        framework = target[0].framework
        best = next((plan for plan in result.plans if plan.framework == framework), result.plans[0])
        write(target, best.context, best.strategy, PlanText.of(best, query), out, force=force)


def _maximized(query: Query, maximize: str, progress: "Progress", *, verbose: bool) -> "Shown":
    """The largest value at which some layout fits, and what keeps it from being larger."""
    from planner.answers.base import Deadline
    from planner.answers.largest import MICRO_BATCH, SEQUENCE, largest
    from planner.answers.nothing_fits import nothing_fits
    from planner.query.resolve import resolve
    from planner.report import plan_options as report
    from planner.report.document import Shown

    options.refuse(query, options.OF_THE_FASTEST, "--maximize asks what fits")
    resolved = resolve(query)
    has_batch = any(query.get(name) is not None for name in BATCHES)
    deadline = Deadline(resolved.time_limit_s)
    answer = largest(
        resolved.without_note("global_batch"),
        quantities=(MICRO_BATCH, SEQUENCE) if maximize == "micro-batch" else (SEQUENCE,),
        has_batch=has_batch,
        keeps_margin=resolved.keeps_margin,
        deadline=deadline,
        progress=progress,
    )
    if not any(one.value for one in answer.found):
        is_cut = any(one.is_cut for one in answer.found)
        raise deadline.nothing_found() if is_cut else nothing_fits(resolved)
    following = shlex.join(["planner", "plan", *query.words()])
    return Shown(
        kind="largest",
        found=answer,
        body=report.largest_document,
        screen=partial(report.print_largest, verbose=verbose, following=following),
    )


def _target(
    emit: str | None, out: Path | None, launcher: str | None, *, force: bool
) -> "Target | None":
    """Format and launcher that ``--emit`` asks for; raises InputError."""
    if emit is None:
        given = {"--out": out, "--launcher": launcher}
        options.refuse_all(given, "belongs to --emit, which is missing")
        return None
    from planner.cli.saved import read_target
    from planner.report.emitted import ALWAYS

    target = read_target(emit, launcher)
    if out is None:
        fail("--emit", "needs --out, a folder, such as run")
    check_targets(out, ALWAYS, force=force)
    return target


def _following(result: "Answer", resolved: "Resolved", save: Path | None, *, emitting: bool) -> str:
    """The command that goes on: it writes the first plan's files, or saves it where none can."""
    from planner.formats.registry import format_for

    if emitting or not result.plans:
        return ""
    context, made = result.plans[0].context, resolved.fmt
    made = made if made and made.is_written else format_for(context)
    has_files = not list(made.refused(context))
    words = ["planner", "plan", *resolved.query.words()]
    if save is not None:
        to = ["--to", made.name, "--out", _free("run")]
        next_one = ["emit", str(save), *to] if has_files else ["explain", str(save)]
        words = ["planner", *next_one]
    elif has_files:
        words += ["--emit", made.name, "--out", _free("run")]
    else:
        words += ["--save", _free("plan.yaml")]
    return shlex.join(words)


def _free(name: str) -> str:
    """The name, numbered where something of that name is there already."""
    path = Path(name)
    names = (f"{path.stem}{number}{path.suffix}" for number in count(2))
    return next(each for each in chain([name], names) if not Path(each).exists())


def otherwise(query: Query, text: str) -> Query:
    """Return the question with KEY=VALUE, or several with commas between; raises InputError."""
    for member in re.split(r",(?=\s*[A-Za-z][A-Za-z_-]*=)", text):
        key, equals, value = (part.strip() for part in member.partition("="))
        if not equals or not value:
            fail("--versus", f"must be KEY=VALUE such as precision=fp8 or cp=1; given {member!r}")
        query = _changed(query, key.lower().replace("-", "_"), value)
    return query


def _changed(query: Query, key: str, value: str) -> Query:
    """The question with one option said otherwise; what may be repeated is said beside."""
    from planner.search.space.expressions import ALIASES

    options = (name for name in OPTIONS if name not in LEFT_OUT)
    known = (*PLACES, *ALIASES, *SPELLED, *options)
    if key not in known:
        hint = did_you_mean(key, known) or f"known are {', '.join(known)}"
        fail("--versus", f"nothing is called {key!r}. {hint}")
    name = {**ALIASES, **SPELLED}.get(key, key)
    if name in PLACES:
        return query.with_(**{name: value})
    option = OPTIONS[name]
    if option.of == "layout":
        members = (one for each in query.get("fix") for one in each.split(","))
        fixed = {one: one.partition("=")[0].strip().lower() for one in members}
        others = [one for one, said in fixed.items() if ALIASES.get(said, said) != name]
        return query.with_(fix=others).with_(**{name: value})
    if option.many:
        return query.with_(**{name: [*query.get(name), value]})
    other = {BATCHES[name]: None} if name in BATCHES else {}
    return query.with_(**{name: value}, **other)


def compare(query: Query, texts: Sequence[str], progress: "Progress") -> "list[Side]":
    """Answer the question as asked and otherwise; raises where no side has a plan."""
    from planner.answers.plan import answer_or_raise
    from planner.answers.why import Side
    from planner.query.resolve import resolve
    from planner.report.sizing_words import unmet_limits

    others = ((text, otherwise(query, text)) for text in texts)
    asked = [(label, resolve(each)) for label, each in [("", query), *others]]
    sides, errors = list[Side](), list[NothingFitsError]()
    for label, resolved in asked:
        try:
            answer = answer_or_raise(resolved, 1, progress)
            if not answer.plans:
                raise unmet_limits(answer)
            sides.append(Side(label=label, answer=answer))
        except NothingFitsError as error:
            errors.append(error)
            sides.append(Side(label=label, answer=None, why_none=str(error)))
    if len(errors) == len(sides):
        raise errors[0]
    return sides
