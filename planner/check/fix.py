"""Repairs plan and configuration files: the fewest changed fields after which one checks clean.

A layout counts only where the format writes it into the file, and the file, read again, states it
and breaks no rule of the format.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import partial
from pathlib import Path

from planner.answers.base import Deadline
from planner.answers.plan_file import plan_text, read_plan
from planner.answers.repair import RECOMPUTE, FieldChange, RepairAnswer, diagnosis, repair
from planner.check.check import completed_of, file_findings
from planner.check.findings import legality_findings, not_said_yet
from planner.check.plan import PLAN
from planner.check.result import refusal
from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.format import Finding, Format, Located, ParsedConfig, SourceText
from planner.query.from_file import Job, Request, format_of, needed_job, read_for
from planner.query.layout import Completed, Layout, complete
from planner.query.resolve import cluster_for_file
from planner.query.values import NOWHERE, Values
from planner.search.search import Progress
from planner.spec.strategy import POLICY_COUNT_FIELDS, Strategy, gpus_of_replica
from planner.spelling import alike


@dataclass(frozen=True, kw_only=True)
class RepairStart:
    """A whole strategy, however broken the file is, and what it is to become legal for."""

    kind: Format
    source: SourceText
    reading: ParsedConfig
    job: Job  # its GPUs, batch and length are those that every fix keeps
    layout: Layout
    completed: Completed  # the file as it stands
    num_gpus: int  # that every fix uses


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file with a strategy in it."""

    text: str
    errors: tuple[Finding, ...] = ()
    settings: Mapping[str, Located] = field(default_factory=dict)
    layout: Layout | None = None  # as the text, read again, states it


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
    written: Written | None = None  # None: nothing fixes it, or nothing is wrong with it

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        # A configuration may use what plans do not model: that is no error of it.
        broken = self.answer.violations if self.format == PLAN else self.errors
        return not broken and not self.answer.deficits

    @property
    def text(self) -> str | None:
        """Text to write; None if nothing fixes the file."""
        if self.written is not None:
            return self.written.text
        return self.source.text if self.is_sound else None

    @property
    def errors_left(self) -> tuple[Finding, ...]:
        """Errors that no layout fixes."""
        return self.written.errors if self.written else ()

    @property
    def diff(self) -> tuple[str, ...]:
        """Changes of the fix to a configuration file, as a unified diff."""
        if self.written is None or self.format == PLAN:
            return ()
        before, after = self.source.text.splitlines(), self.written.text.splitlines()
        name = self.source.path
        return tuple(unified_diff(before, after, name, name, n=1, lineterm=""))


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
    text = None
    if answer.plan is not None:
        text = plan_text(answer.plan, model=model, cluster=cluster_for_file(cluster))
    return FixedFile(
        source=source,
        format=PLAN,
        model=model,
        cluster=cluster,
        num_gpus=strategy.num_gpus,
        answer=answer,
        written=None if text is None else Written(text=text),
    )


def fix_file(
    source: SourceText, request: Request, *, progress: Progress = lambda _message, _fraction: None
) -> FixedFile:
    """Find the smallest fix of a configuration file, for the same request as its check.

    Fixes leave the framework's uncertainty of memory free where they can. Raises InputError where
    the file or the request cannot be used, ExpressError where something fits and the format
    cannot say it.
    """
    kind = format_of(source, request.framework)
    reading = read_for(kind, kind.read(source), request)
    if reading.made_for:
        message = f"is for {reading.made_for}, whose rules are not known"
        raise InputError.single(reading.path, "file", message)
    start = start_of(kind, source, reading, needed_job(request, reading))
    context = replace(start.layout.context, margin_fraction=0.0)
    found = FixedFile(
        source=source,
        format=kind.name,
        model=request.model or "",
        cluster=request.cluster or "",
        num_gpus=start.num_gpus,
        errors=_errors(kind, reading, start.completed),
        answer=diagnosis(context, start.layout.strategy),
        assumed=start.completed.assumed,
    )
    return found if found.is_sound else _fixed(found, start, progress)


def _fixed(found: FixedFile, start: RepairStart, progress: Progress) -> FixedFile:
    """The file with the smallest fix after which it is clean, else no worse than before."""
    wrong, refused = found.answer, list[str]()
    of_read = frozenset((one.rule, one.key) for one in start.reading.findings)
    of_file = of_read | {(one.rule, one.key) for one in found.errors}
    margins = dict.fromkeys((start.layout.cautious.margin_fraction, 0.0))
    deadline = Deadline(start.job.request.time_limit_s)
    deadline.num_left = 2 * len(margins)
    for allowed in (of_read, of_file):
        for margin in margins:
            context = replace(start.layout.context, margin_fraction=margin)
            answer = repair(
                context,
                start.layout.strategy,
                num_gpus=start.num_gpus,
                accepts=partial(_accepts, start, context, allowed, refused),
                time_limit_s=deadline.share_s(),
                progress=progress,
            )
            if answer.near.gave_up:
                continue
            answer = replace(answer, deficits=wrong.deficits, before=wrong.before)
            found = replace(found, answer=answer)
            if answer.repaired:
                return _with_fix(found, start, context)
        if not refused:
            return found
    raise ExpressError(
        f"{found.source.path}: no fix was found that the file can hold and that breaks no "
        f"rule of {start.kind.title}; the first one tried: {refused[0]}"
    )


def _with_fix(found: FixedFile, start: RepairStart, context: Context) -> FixedFile:
    """The file with the best repair; InputError where a misspelt key may state a field."""
    best = found.answer.repaired[0].plan.strategy
    written = _written(start, context, best)
    keys = set(written.settings) - set(start.reading.settings)
    # Some formats edit files and write no new ones.
    with suppress(ExpressError):
        keys |= {each.key for each in start.kind.emitted(context, best).decided}
    # A key that is not known and nearly one of these may state a field.
    parts = {part for key in keys for part in key.split(".")}
    misspelt = list[Finding]()
    unknown = [one for one in start.reading.findings if one.kind == "unknown_key"]
    for one in unknown:
        if close := alike(one.key.rpartition(".")[2], parts, 0.8):
            message = f"unknown, but nearly {close}, which states a decision; correct it first"
            misspelt.append(replace(one, message=message))
    _refuse(misspelt)
    before = start.layout.places.of
    after = written.layout.places.of if written.layout else {}
    repaired = tuple(
        replace(one, changes=tuple(_placed(change, before, after) for change in one.changes))
        for one in found.answer.repaired
    )
    return replace(found, written=written, answer=replace(found.answer, repaired=repaired))


def _placed(
    change: FieldChange, before: Mapping[str, Located], after: Mapping[str, Located]
) -> FieldChange:
    """The change with the key that states it and its lines in the file and in the fixed one."""
    # Which layers are recomputed is one field, which files state by policy.
    names = POLICY_COUNT_FIELDS if change.field == RECOMPUTE else (change.field,)
    old = next((before[name] for name in names if name in before), NOWHERE)
    new = next((after[name] for name in names if name in after), NOWHERE)
    return replace(change, key=old.key or new.key, line=old.line, new_line=new.line)


def _errors(kind: Format, reading: ParsedConfig, completed: Completed) -> tuple[Finding, ...]:
    """Return the errors of a check, except memory."""
    found = file_findings(kind, reading, completed.world, completed.findings)
    if completed.layout is not None:
        found += not_said_yet(list(legality_findings(completed.layout, is_plan=False)), found)
    return tuple(one for one in found if one.severity == "error")


def _accepts(
    start: RepairStart,
    context: Context,
    allowed: AbstractSet[tuple[str, str]],
    refused: list[str],
    strategy: Strategy,
) -> bool:
    """Return True if the file can express a strategy, then without errors but those allowed.

    Why it cannot is added to what is ``refused``.
    """
    part = start.kind.part(start.reading.settings)
    try:
        made = _written(start, context, strategy)
    except (ExpressError, InputError) as error:
        refused.append(str(error))
        return False
    rest = [str(one) for one in made.errors if (one.rule, one.key) not in allowed]
    if part is not None and start.kind.part(made.settings) != part:
        rest = [f"the file is for {part}, which does not express it"]
    elif missing := not_stated(context, strategy, made.layout):
        rest = [f"the file, read again, does not state {missing}"]
    refused += rest[:1]
    return not rest


def _written(start: RepairStart, context: Context, strategy: Strategy) -> Written:
    """Write a strategy into the file and read that; raises ExpressError and InputError."""
    text = start.kind.written_into(start.source, context, strategy)
    again = SourceText(path=start.source.path, text=text)
    reading = read_for(start.kind, start.kind.read(again), start.job.request)
    completed = completed_of(start.kind, reading, start.job)
    return Written(
        text=text,
        errors=_errors(start.kind, reading, completed),
        settings=reading.settings,
        layout=completed.layout,
    )


def not_stated(context: Context, strategy: Strategy, layout: Layout | None) -> str:
    """Fields that a file, read again, does not state as they were written."""
    if layout is None:
        return "all of it"
    wanted, found = _fields(context, strategy), _fields(layout.context, layout.strategy)
    return ", ".join(name for name, value in wanted.items() if found[name] != value)


def _fields(context: Context, strategy: Strategy) -> dict[str, object]:
    """Every field by name, without what has no effect."""
    job = context.job
    values = {**vars(strategy), "global_batch": job.global_batch, "seq_len": job.seq_len}
    values |= zip(POLICY_COUNT_FIELDS, strategy.policy_counts, strict=True)
    selected = strategy.recompute_modules or context.traits.recompute.selected
    values["recompute_modules"] = selected if strategy.layers_under["selective"] else None
    if strategy.offload == "none":
        values["offload_percent"] = 100
    return values


def start_of(kind: Format, source: SourceText, reading: ParsedConfig, job: Job) -> RepairStart:
    """Complete a file whose numbers may contradict each other or the job.

    The job's GPUs, batch and sequence length come before the file's; data parallelism and
    micro-batches follow. Raises InputError where values cannot be read, the file is for another
    model, or nothing says the batch.
    """
    completed = completed_of(kind, reading, job)
    # Rules that no other layout satisfies.
    unfixable = ("job.value", "job.model", "job.precision", "job.optimizer")
    _refuse(
        one
        for one in (*reading.findings, *completed.findings)
        if one.rule in unfixable or one.kind == "bad_value"
    )
    num_gpus = job.request.num_gpus or completed.world.num_gpus
    num_gpus = min(num_gpus, job.cluster.num_accelerators)
    layout = completed.layout
    is_whole = layout is not None and layout.strategy.num_gpus == num_gpus
    # Rules of what the job decides, or what follows from it.
    of_job = ("job.gpus", "job.seq_len", "job.global_batch", "gpus.divide")
    if not is_whole or any(one.rule in of_job for one in completed.findings):
        layout = _without_contradictions(kind, reading, job, completed, num_gpus)
    assert layout is not None
    own = layout.context.job
    request = replace(
        job.request, num_gpus=num_gpus, global_batch=own.global_batch, seq_len=own.seq_len
    )
    return RepairStart(
        kind=kind,
        source=source,
        reading=reading,
        job=replace(job, request=request),
        layout=layout,
        completed=completed,
        num_gpus=num_gpus,
    )


def _refuse(findings: Iterable[Finding]) -> None:
    error = refusal(findings)
    if error.problems:
        raise error


def _without_contradictions(
    kind: Format, reading: ParsedConfig, job: Job, completed: Completed, num_gpus: int
) -> Layout:
    """The layout without what follows from the job, which is filled in as it may be."""
    known = completed.world.decisions
    pp = int(known["pp"])
    replica_gpus = int(gpus_of_replica(known))
    dp = max(1, num_gpus // replica_gpus)
    dropped = {"dp", "num_gpus", "global_batch"}
    dropped |= {"seq_len"} if job.request.seq_len else set()
    if pp > job.model.num_blocks:
        dropped.add("pp")
        replica_gpus //= pp
    kept = {name: value for name, value in reading.decisions.items() if name not in dropped}
    asked = replace(job.request, num_gpus=replica_gpus * dp, global_batch=None)
    framework = kind.framework_of(reading)
    free = complete(replace(reading, decisions=kept), replace(job, request=asked), framework)
    if free.layout is None:
        _refuse(completed.findings)
        raise InputError.single(reading.path, "layout", "the layout cannot be made out")
    total = job.request.global_batch or known.get("global_batch")
    if not isinstance(total, int):
        message = "the file does not say it; give --global-batch"
        raise InputError.single(reading.path, "global_batch", message)
    context = free.layout.context
    strategy = replace(free.layout.strategy, pp=pp, dp=dp)
    # What the file does not state of the batch follows as far as it can in whole numbers.
    if "num_micro_batches" not in reading.decisions:
        number = max(1, total // (dp * strategy.micro_batch))
        strategy = replace(strategy, num_micro_batches=number)
    elif "micro_batch" not in reading.decisions:
        size = max(1, total // (dp * strategy.num_micro_batches))
        strategy = replace(strategy, micro_batch=size)
    return Layout(
        context=context.with_job(global_batch=total),
        strategy=replace(strategy, dp=int(known.get("dp", dp))),
        places=Values(reading).places,
    )
