"""``planner plan``: ranked plans for a model on a cluster."""

import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner.catalog import EXAMPLE_NODE
from planner.cli import options
from planner.cli.options import is_given
from planner.cli.output import console, delayed_progress, fail, say, show_as
from planner.errors import NothingFitsError
from planner.notes import Problems
from planner.query.options import OPTIONS, PLACES
from planner.query.query import Query
from planner.report.document import serialise
from planner.report.files import check_targets, check_writable, write_atomically
from planner.spelling import did_you_mean

if TYPE_CHECKING:
    from planner.answers.base import Answer, Plan
    from planner.answers.why import Versus
    from planner.cli.saved import Target
    from planner.formats.format import Format
    from planner.query.resolve import Resolved
    from planner.search.search import Progress

MEMBERS = re.compile(r",(?=\s*[A-Za-z][A-Za-z_-]*=)")
# Options that change what is shown, or how it is found.
LEFT_OUT = ("like", "fix", "frontier", "pareto", "objective", "time_limit")
SPELLED = {option.spelled: name for name, option in OPTIONS.items() if option.spelled}
BATCHES = {"global_batch": "global_batch_tokens", "global_batch_tokens": "global_batch"}


@options.takes()
def plan(
    context: typer.Context,
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
    verbose: options.Verbose = False,
    output_format: options.CsvFormat = "table",
    save: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    emit: Annotated[
        str | None,
        typer.Option(help="Write the best plan as files of this format, into --out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for --emit.")] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
) -> None:
    """``planner plan``: exits with 3 where nothing fits, or keeps the limits."""
    from planner.answers.plan import answered
    from planner.cli.saved import write
    from planner.query.resolve import resolve
    from planner.report import plan_options as report
    from planner.report.emitted import PlanText
    from planner.report.sizing_words import unmet_limits

    if save is not None:
        check_writable(save, force=force)
    problems = Problems()
    target = problems.read(lambda: _target(emit, out, launcher, force=force))
    if versus or maximize:
        option = "--versus" if versus else "--maximize"
        if target or save or space or (versus and maximize) or output_format == "csv":
            problems.add(option, "stands alone and writes nothing; without --emit, --save, csv")
        problems.finish()
    if maximize:
        _maximize(context, query, maximize, output_format, verbose=verbose)
        return
    if versus:
        with delayed_progress() as progress:
            sides = compare(query, versus, progress)
        document = partial(report.versus_document, sides)
        show_as(output_format, "versus", document, partial(report.print_versus, sides))
        return
    resolved = resolve(query, fmt=target[0] if target else None, problems=problems)
    if space:
        _print_space(resolved, output_format)
        return
    with delayed_progress() as progress:
        result = answered(resolved, top, progress)
    if save is not None and result.plans:
        write_atomically(save, PlanText.of(result.plans[0], query).text)
        say(f"saved plan 1 to {save}")
    goes_on = bool(result.plans) and target is None
    following = writing(context, result.plans[0], resolved.fmt) if goes_on else ""
    _show(result, output_format, following, verbose=verbose, show_all=show_all)
    if not result.plans:
        raise unmet_limits(result)
    if target is not None:
        assert out is not None
        framework = target[0].framework
        best = next((plan for plan in result.plans if plan.framework == framework), result.plans[0])
        write(target, best.context, best.strategy, PlanText.of(best, query), out, force=force)


def _maximize(
    context: typer.Context, query: Query, maximize: str, output_format: str, *, verbose: bool
) -> None:
    """Show the largest value at which some layout fits, and what keeps it from being larger."""
    from planner.answers.base import Deadline
    from planner.answers.largest import MICRO_BATCH, SEQUENCE, largest
    from planner.answers.nothing_fits import nothing_fits
    from planner.answers.whatif import Case
    from planner.query.resolve import resolve
    from planner.report import plan_options as report

    options.refuse(query, options.OF_THE_FASTEST, "--maximize asks what fits")
    resolved = resolve(query)
    has_batch = any(query.get(name) is not None for name in ("global_batch", "global_batch_tokens"))
    case = Case(contexts=resolved.contexts, narrowing=resolved.narrowing)
    deadline = Deadline(resolved.time_limit_s)
    with delayed_progress() as progress:
        answer = largest(
            case,
            quantities=(MICRO_BATCH, SEQUENCE) if maximize == "micro-batch" else (SEQUENCE,),
            has_batch=has_batch,
            keeps_margin=resolved.keeps_margin,
            notes=resolved.without_note("global_batch").notes,
            deadline=deadline,
            progress=progress,
        )
    if not any(one.value for one in answer.found):
        raise deadline.nothing_found() if answer.is_cut else nothing_fits(case)
    following = shlex.join(typed(context, without="maximize"))
    screen = partial(report.print_largest, answer, verbose=verbose, following=following)
    show_as(output_format, "largest", partial(report.largest_document, answer), screen)


def _print_space(resolved: "Resolved", output_format: str) -> None:
    """Show the space; raises InputError where there is no such form of it."""
    from planner.report import plan_options as report
    from planner.search.space.count import count_space

    if output_format == "csv":
        fail("--format", "--space has the forms table and json; given csv")
    spaces = [count_space(context, resolved.narrowing) for context in resolved.contexts]
    document = partial(report.space_document, spaces, resolved.notes)
    show_as(output_format, "space", document, partial(report.print_spaces, spaces, resolved.notes))


def _target(
    emit: str | None, out: Path | None, launcher: str | None, *, force: bool
) -> "Target | None":
    """Format and launcher that ``--emit`` asks for; raises InputError."""
    from planner.cli.saved import read_target
    from planner.report.emitted import ALWAYS

    if emit is None:
        given = {"--out": out, "--launcher": launcher}
        missing = "belongs to --emit, which is missing"
        options.refuse_all((name for name, value in given.items() if value is not None), missing)
        return None
    target = read_target(emit, launcher)
    if out is None:
        fail("--emit", "writes files, which needs a folder; give --out DIR")
    check_targets(out, ALWAYS, force=force)
    return target


def _show(
    result: "Answer", output_format: str, following: str, *, verbose: bool, show_all: bool
) -> None:
    from planner.answers.plan import beside_document, beside_screen
    from planner.report.plan import plan_document, print_answer
    from planner.report.table import csv_text
    from planner.report.tables import CSV_COLUMNS, rows

    if output_format == "json":
        typer.echo(serialise("plan", plan_document(result, beside_document(result))))
    elif output_format == "csv":
        typer.echo(csv_text(rows(result), CSV_COLUMNS), nl=False)
    else:
        told = beside_screen(result, verbose=verbose, show_all=show_all)
        print_answer(
            result, told, console(), verbose=verbose, show_all=show_all, following=following
        )


def typed(context: typer.Context, without: str = "") -> list[str]:
    """The words of the command that runs, as its options were read; defaults are left out."""
    # Options that change what is shown, and no answer.
    left_out = ("verbose", "show_all", "output_format", "top", "force", without)
    words, options = ["planner", context.command.name or ""], list[str]()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in left_out or not is_given(context, name):
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            every = value if isinstance(value, list | tuple) else [value]
            options += [word for each in every for word in (parameter.opts[0], str(each))]
    return [*words, *options]


def writing(context: typer.Context, plan: "Plan", made: "Format | None") -> str:
    """Planning again with the files of the first plan written, or saved where no format has it."""
    from planner.formats.registry import format_of

    made = made if made and made.is_written else format_of(plan.context.traits)
    if list(made.refused(plan.context)):
        return shlex.join([*typed(context), "--save", "plan.yaml"])
    return shlex.join([*typed(context), "--emit", made.name, "--out", "run"])


def otherwise(query: Query, text: str) -> Query:
    """Return the question with KEY=VALUE, or several with commas between; raises InputError."""
    for member in MEMBERS.split(text):
        key, equals, value = (part.strip() for part in member.partition("="))
        if not equals or not value:
            fail("--versus", f"must be KEY=VALUE such as precision=fp8 or cp=1; given {member!r}")
        query = _changed(query, key.lower().replace("-", "_"), value)
    return query


def _changed(query: Query, key: str, value: str) -> Query:
    """The question with one option said otherwise; what may be repeated is said beside."""
    from planner.search.space.vocabulary import ALIASES

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
        query = query.with_(fix=[one for one in members if _fixed_name(one) != name])
        return query.with_(**{name: value})
    if option.many:
        return query.with_(**{name: [*query.get(name), value]})
    return query.with_(**{name: value}, **({BATCHES[name]: None} if name in BATCHES else {}))


def _fixed_name(fixed: str) -> str:
    from planner.search.space.vocabulary import ALIASES

    name = fixed.partition("=")[0].strip().lower()
    return ALIASES.get(name, name)


def compare(query: Query, texts: Sequence[str], progress: "Progress") -> "Versus":
    """Answer the question as asked and otherwise; raises where no side has a plan."""
    from planner.answers.plan import answered
    from planner.answers.why import Side, Versus
    from planner.query.resolve import resolve
    from planner.report.sizing_words import unmet_limits

    queries = [("", query), *((text, otherwise(query, text)) for text in texts)]
    asked = [(label, resolve(each)) for label, each in queries]
    sides, errors = list[Side](), list[NothingFitsError]()
    for label, resolved in asked:
        try:
            answer = answered(resolved, 1, progress)
            if not answer.plans:
                raise unmet_limits(answer)
            sides.append(Side(label=label, answer=answer))
        except NothingFitsError as error:
            errors.append(error)
            sides.append(Side(label=label, answer=None, why_none=str(error)))
    if len(errors) == len(sides):
        raise errors[0]
    return Versus(asked=sides[0], others=tuple(sides[1:]))
