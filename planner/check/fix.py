"""Repairs plan and configuration files: the fewest changed fields after which one checks clean.

A layout counts only where the format writes it into the file, and the file, read again, states it
and breaks no rule of the format.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import partial
from itertools import chain, product
from pathlib import Path

from planner.answers.base import Deadline
from planner.answers.plan_file import plan_text, read_plan
from planner.answers.repair import RECOMPUTE, FieldChange, RepairAnswer, diagnosis, repair
from planner.check.plan import PLAN
from planner.check.start import ASSUMED, Start, at_least, errors_of, refuse, start_of
from planner.cost.context import Context
from planner.errors import ExpressError, InputError, alike
from planner.formats.format import Finding, Located, ParsedConfig, SourceText, read_source
from planner.query.from_file import Request, format_of, needed_job, read_for
from planner.query.layout import OF_SCRIPT, Layout
from planner.query.resolve import cluster_for_file
from planner.query.values import NOWHERE
from planner.search.search import Progress, no_progress
from planner.spec.strategy import POLICY_COUNT_FIELDS


@dataclass(frozen=True, kw_only=True)
class FixedFile:
    """Problems of a plan or a configuration file, and the smallest fix written into it."""

    source: SourceText
    format: str  # ``plan``, or the name of a format
    model: str  # as the request or the plan names it
    cluster: str
    num_gpus: int
    answer: RepairAnswer
    errors: tuple[Finding, ...] = ()  # of a configuration as it stands, but for memory
    assumed: tuple[str, ...] = ()
    fixed: SourceText | None = None  # None: nothing fixes it, or nothing is wrong with it
    errors_left: tuple[Finding, ...] = ()  # that no layout fixes

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        # A configuration may use what plans do not model: that is no error of it.
        broken = self.answer.violations if self.format == PLAN else self.errors
        return not broken and not self.answer.deficits

    @property
    def diff(self) -> tuple[str, ...]:
        """Changes of the fix to configuration files, as a unified diff."""
        made = self.fixed
        if made is None or self.format == PLAN:
            return ()
        texts = {self.source.path: (self.source.text, made.text)}
        texts |= {path: (read_source(path).text, text) for path, text in made.beside.items()}
        lines = (
            unified_diff(old.splitlines(), new.splitlines(), name, name, n=1, lineterm="")
            for name, (old, new) in texts.items()
        )
        return tuple(chain.from_iterable(lines))


def fix_plan(source: SourceText, request: Request, *, progress: Progress) -> FixedFile:
    """Repair a plan file for a cluster, its own where none is given; raises InputError."""
    path = Path(source.path)
    context, strategy, file = read_plan(path, cluster=request.cluster)
    own = None
    # What the plan was made for may not be readable any more.
    with suppress(InputError):
        own = read_plan(path)[0]
    limit_s = request.time_limit_s
    answer = repair(context, strategy, own=own, time_limit_s=limit_s, progress=progress)
    model, cluster = file.inputs.model, request.cluster or file.inputs.cluster
    place = cluster_for_file(cluster)
    text = answer.plan and plan_text(answer.plan, model=model, cluster=place)
    return FixedFile(
        source=source,
        format=PLAN,
        model=model,
        cluster=cluster,
        num_gpus=strategy.num_gpus,
        answer=answer,
        fixed=replace(source, text=text) if text else None,
    )


def fix_file(
    source: SourceText, request: Request, *, progress: Progress = no_progress
) -> FixedFile:
    """Find the smallest fix of a configuration file, for the same request as its check.

    Fixes leave the framework's uncertainty of memory free where they can. Raises InputError where
    the file or the request cannot be used, ExpressError where something fits and the format
    cannot say it.
    """
    kind = format_of(source, request.framework)
    reading = read_for(kind, kind.read(source), request)
    if reading.made_for:
        raise InputError.single(
            reading.path, "file", f"is for {reading.made_for}, whose rules are not known"
        )
    start = start_of(kind, source, reading, needed_job(request, reading))
    context = replace(start.layout.context, margin_fraction=0.0)
    found = FixedFile(
        source=source,
        format=kind.name,
        model=request.model or start.layout.context.model.name,
        cluster=request.cluster or "",
        num_gpus=start.num_gpus,
        errors=errors_of(kind, reading, start.completed),
        answer=diagnosis(context, start.layout.strategy),
        assumed=start.completed.assumed,
    )
    return found if found.is_sound else _fixed(found, start, progress)


def _fixed(found: FixedFile, start: Start, progress: Progress) -> FixedFile:
    """The file with the smallest fix after which it is clean, else no worse than before.

    Where none fits with what is assumed of the script, it is one that fits where that takes the
    least memory.
    """
    refused: list[str] = []
    of_read = frozenset((one.rule, one.key) for one in start.reading.findings)
    of_file = of_read | {(one.rule, one.key) for one in found.errors}
    margins = dict.fromkeys((start.layout.cautious.margin_fraction, 0.0))
    origins = [start.layout, at_least(start.layout)] if start.layout.assumes else [start.layout]
    deadline = Deadline(start.job.request.time_limit_s)
    deadline.num_left = 2 * len(margins) * len(origins)
    for origin, allowed, margin in product(origins, dict.fromkeys((of_read, of_file)), margins):
        if allowed != of_read and not refused:
            continue
        context = replace(start.layout.context, margin_fraction=margin)
        answer = repair(
            replace(origin.context, margin_fraction=margin),
            origin.strategy,
            num_gpus=start.num_gpus,
            accepts=partial(start.accepts, origin, context, allowed, refused),
            time_limit_s=deadline.share_s(),
            progress=progress,
        )
        if answer.near.gave_up:
            continue
        is_usual = origin is start.layout
        if not is_usual and not answer.repaired:
            continue
        wrong = found.answer
        if not is_usual:
            wrong = diagnosis(replace(origin.context, margin_fraction=0.0), origin.strategy)
            usual = (*OF_SCRIPT.values(), "sequences of ")
            kept = [each for each in found.assumed if not each.startswith(usual)]
            least = [ASSUMED[name]["least"] for name in start.layout.assumes]
            found = replace(found, assumed=(*kept, *least))
        answer = replace(answer, deficits=wrong.deficits, before=wrong.before)
        found = replace(found, answer=answer)
        if answer.repaired:
            return _with_fix(found, start, origin, context)
    if not refused:
        return found
    raise ExpressError(
        f"{found.source.path}: no fix was found that the file can hold and that breaks no "
        f"rule of {start.kind.title}; the first one tried: {refused[0]}"
    )


def _with_fix(found: FixedFile, start: Start, origin: Layout, context: Context) -> FixedFile:
    """The file with the best repair; InputError where a misspelt key may state a field."""
    best = found.answer.repaired[0].plan.strategy
    written = start.written(origin, context, best)
    keys = set(written.reading.settings) - set(start.reading.settings)
    # Some formats edit files and write no new ones.
    with suppress(ExpressError):
        keys |= {each.key for each in start.kind.emitted(context, best).decided}
    # A key that is not known and nearly one of these may state a field.
    parts = {part for key in keys for part in key.split(".")}
    unknown = (one for one in start.reading.findings if one.kind == "unknown_key")
    misspelt = ((one, alike(one.key.rpartition(".")[2], parts, 0.8)) for one in unknown)
    message = "unknown, but nearly {}, which states a decision; correct it first"
    refuse(replace(one, message=message.format(close)) for one, close in misspelt if close)
    before, after = _stated_in(start.reading), _stated_in(written.reading)
    first, *others = (
        replace(one, changes=tuple(_placed(change, before, after) for change in one.changes))
        for one in found.answer.repaired
    )
    changes = (*first.changes, *_dropped(first.changes, before, after))
    repaired = (replace(first, changes=changes), *others)
    return replace(
        found,
        fixed=written.source,
        errors_left=written.errors,
        answer=replace(found.answer, repaired=repaired),
    )


Stated = Mapping[str, tuple[str, Located]]


def _stated_in(reading: ParsedConfig) -> Stated:
    """Decisions by name, each with the file that states it where that is one that it names."""
    own_places = {**reading.left_open, **reading.decisions}
    found = {name: ("", place) for name, place in own_places.items()}
    # Keys that name a file, or turn on what it configures.
    stated = reading.settings.values()
    named = {each.key for each in stated if isinstance(each.value, str | bool)}
    for each in reading.named:
        for name, place in each.decisions.items():
            own = found.get(name)
            if place.line and (own is None or own[1].key in named):
                found[name] = (each.path, place)
    return found


def _dropped(
    changes: Sequence[FieldChange], before: Stated, after: Stated
) -> Iterator[FieldChange]:
    """Changes for decisions that the file states and the fixed file no longer does."""
    shown = {change.key for change in changes}
    for name, (path, old) in before.items():
        _, new = after.get(name, ("", NOWHERE))
        is_stated = old.line and old.value not in (None, new.value)
        if is_stated and old.key not in shown and not new.line:
            yield FieldChange(
                field=name,
                before=old.value,
                after="not stated",
                counts=False,
                key=old.key,
                path=path,
                line=old.line,
            )


def _placed(change: FieldChange, before: Stated, after: Stated) -> FieldChange:
    """The change with the key that states it and its lines in the file and in the fixed one."""
    # Which layers are recomputed is one field, which files state by policy.
    names = POLICY_COUNT_FIELDS if change.field == RECOMPUTE else (change.field,)
    nowhere = ("", NOWHERE)
    path, old = next((before[name] for name in names if name in before), nowhere)
    new_path, new = next((after[name] for name in names if name in after), nowhere)
    return replace(
        change, key=old.key or new.key, line=old.line, new_line=new.line, path=path or new_path
    )
