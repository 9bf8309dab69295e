"""Repairs configuration files: the fewest changed decisions after which a file checks clean.

A candidate counts only where the format writes it into the file, and the file, read again, states
it and breaks no rule of the format.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from difflib import unified_diff

from planner.answers.deadline import Deadline
from planner.check.check import file_findings
from planner.check.complete import complete
from planner.check.holds import GaveUpError, Patience
from planner.check.job import Job, Request, job_of
from planner.check.layout import Layout, Place
from planner.check.legality import legality_findings, not_said_yet
from planner.check.own_model import with_model
from planner.check.recognise import format_of
from planner.check.start import Start, start_of
from planner.cost.context import Context
from planner.errors import ExpressError, InputError, Problem
from planner.formats.finding import Finding
from planner.formats.format import Format, Reading, SourceText
from planner.plans.repair import RepairAnswer, diagnosis, repair, repaired_strategy
from planner.search.edits import Edit
from planner.search.repair import Progress
from planner.spec.strategy import COUNTS, Strategy
from planner.spelling import alike

MOST_REFUSED = 200
"""Repairs in a row that the format refuses before the search gives up."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file with a strategy in it."""

    text: str
    keys: frozenset[str]
    """Of all settings."""
    part: str | None
    """Of the framework, that the file starts."""
    layout: Layout | None
    """As the text, read again, states it."""
    errors: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class RepairedFile:
    """What is wrong with a configuration file, and the smallest repair written into it."""

    source: SourceText
    kind: Format
    start: Start
    errors: tuple[Finding, ...]
    """Of the file as it stands; that a stage does not fit is in ``answer``."""
    answer: RepairAnswer
    written: Written | None
    """None where nothing is wrong, or nothing mends it."""

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong."""
        return not self.errors and not self.answer.shortages

    @property
    def places(self) -> Mapping[str, Place]:
        """Where the file states its decisions."""
        return self.start.layout.places.of

    @property
    def new_places(self) -> Mapping[str, Place]:
        """Where the repaired file does."""
        layout = self.written and self.written.layout
        return layout.places.of if layout else {}

    @property
    def diff(self) -> list[str]:
        """What the repair changes in the file, as a unified diff."""
        if self.written is None:
            return []
        before, after = self.source.text.splitlines(), self.written.text.splitlines()
        name = self.source.path
        return list(unified_diff(before, after, name, name, n=1, lineterm=""))


@dataclass(kw_only=True)
class _Trial:
    """Asks of edits whether the file can hold them, and stays as clean as it may."""

    kind: Format
    source: SourceText
    job: Job
    context: Context
    before: Strategy
    part: str | None
    """Of the framework, that the file starts."""
    allowed: frozenset[tuple[str, str]]
    """Rules and keys of errors that may stay."""
    reasons: list[str] = field(default_factory=list)
    patience: Patience = field(default_factory=lambda: Patience(most=MOST_REFUSED))

    def __call__(self, edit: Edit) -> bool:
        """Whether it counts. Raises GaveUpError."""
        reason = self._reason(repaired_strategy(self.before, edit))
        self.reasons += [] if reason is None else [reason]
        return self.patience.note(is_accepted=reason is None)

    def _reason(self, strategy: Strategy) -> str | None:
        """Why the file cannot hold a strategy."""
        try:
            made = write(self.kind, self.source, self.job, self.context, strategy)
        except (ExpressError, InputError) as error:
            return str(error)
        if self.part is not None and made.part != self.part:
            return f"the file is for {self.part}, which does not express it"
        missing = lost(self.context, strategy, made.layout)
        if missing:
            return f"the file, read again, does not state {missing}"
        rest = [one for one in made.errors if (one.rule, one.key) not in self.allowed]
        return str(rest[0]) if rest else None


def repair_file(
    source: SourceText,
    request: Request,
    *,
    margin_fraction: float | None = None,
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> RepairedFile:
    """Find the smallest repair of a configuration file.

    Without ``margin_fraction`` repairs leave the framework's uncertainty free where they can, and
    only what does not fit at all is wrong. Raises InputError where the file or the request cannot
    be used, ExpressError where something fits and the format cannot say it.
    """
    kind = format_of(source, request.framework)
    reading = with_model(kind.read(source))
    job = _needed_job(request, reading, kind)
    start = start_of(reading, job, kind.framework_of(reading))
    errors = _errors(kind, reading, start)
    context = replace(start.layout.context, margin_fraction=margin_fraction or 0.0)
    start = replace(start, layout=replace(start.layout, context=context))
    answer = diagnosis(context, start.layout.strategy)
    made = RepairedFile(
        source=source, kind=kind, start=start, errors=errors, answer=answer, written=None
    )
    if made.is_sound:
        return made
    batch, seq_len = context.job.global_batch, context.job.seq_len
    job = replace(job, num_gpus=start.num_gpus, global_batch=batch, seq_len=seq_len)
    margins = [start.layout.cautious.margin_fraction, 0.0]
    if margin_fraction is not None:
        margins = [margin_fraction]
    return _mended(made, reading, job, margins, Deadline(time_limit_s), progress)


def _needed_job(request: Request, reading: Reading, kind: Format) -> Job:
    """The job; InputError where none is known, or the file is another program's."""
    if reading.made_for:
        message = f"is for {reading.made_for}, whose rules are not known"
        raise InputError.single(reading.path, "file", message)
    job = job_of(request, reading)
    if job is not None:
        return job
    missing = [f"--{name}" for name in ("model", "cluster") if getattr(request, name) is None]
    message = f"{' and '.join(missing)} needed, here or in planner.toml, to repair {kind.title}"
    raise InputError.single(reading.path, "file", message)


def write(
    kind: Format, source: SourceText, job: Job, context: Context, strategy: Strategy
) -> Written:
    """Write a strategy into a file and read that; raises ExpressError and InputError."""
    text = kind.written_into(source, context, strategy)
    reading = kind.read(SourceText(path=source.path, text=text))
    completed = complete(reading, job, kind.framework_of(reading))
    found = file_findings(kind, reading, completed)
    if completed.layout is not None:
        found += not_said_yet(list(legality_findings(completed.layout, is_plan=False)), found)
    errors = tuple(one for one in found if one.severity == "error")
    part = kind.part(reading.settings)
    keys = frozenset(reading.settings)
    return Written(text=text, keys=keys, part=part, layout=completed.layout, errors=errors)


def _errors(kind: Format, reading: Reading, start: Start) -> tuple[Finding, ...]:
    """What a check calls errors, but memory."""
    found = file_findings(kind, reading, start.completed)
    layout = start.completed.layout
    if layout is not None:
        found += not_said_yet(list(legality_findings(layout, is_plan=False)), found)
    return tuple(one for one in found if one.severity == "error")


def _mended(
    made: RepairedFile,
    reading: Reading,
    job: Job,
    margins: list[float],
    deadline: Deadline,
    progress: Progress,
) -> RepairedFile:
    """The file with the smallest repair after which it is clean, else no worse than before."""
    strategy, num_gpus, wrong = made.start.layout.strategy, made.start.num_gpus, made.answer
    foreign = frozenset((one.rule, one.key) for one in reading.findings)
    reasons: list[str] = []
    deadline.plan_for(2 * len(set(margins)))
    for allowed in (foreign, foreign | {(one.rule, one.key) for one in made.errors}):
        for margin in dict.fromkeys(margins):
            context = replace(made.start.layout.context, margin_fraction=margin)
            trial = _Trial(
                kind=made.kind,
                source=made.source,
                job=job,
                context=context,
                before=strategy,
                part=made.kind.part(reading.settings),
                allowed=allowed,
            )
            try:
                answer = repair(
                    context,
                    strategy,
                    num_gpus=num_gpus,
                    accepts=trial,
                    time_limit_s=deadline.share_s(),
                    progress=progress,
                )
            except GaveUpError:
                reasons += trial.reasons
                continue
            reasons += trial.reasons
            answer = replace(answer, shortages=wrong.shortages, before=wrong.before)
            if answer.repaired:
                best = answer.repaired[0].strategy
                written = write(made.kind, made.source, job, context, best)
                added = written.keys - set(reading.settings)
                _refuse_misspelt(reading, added | _deciding(made.kind, context, best))
                return replace(made, answer=answer, written=written)
            made = replace(made, answer=answer)
        if not reasons:
            return made
    raise ExpressError(
        f"{made.source.path}: no repair was found that the file can hold and that breaks no rule "
        f"of {made.kind.title}; the first one tried: {reasons[0]}"
    )


def _deciding(kind: Format, context: Context, strategy: Strategy) -> AbstractSet[str]:
    """Keys that state a plan's decisions in a new file; none where no new file can be written."""
    try:
        return {each.key for each in kind.emitted(context, strategy).decided}
    except ExpressError:
        return frozenset()


def _refuse_misspelt(reading: Reading, deciding: AbstractSet[str]) -> None:
    """InputError where a key that is not known is nearly one that states a decision."""
    parts = {part for key in deciding for part in key.split(".")}
    unknown = [one for one in reading.findings if one.kind == "unknown_key"]
    near = [(one, alike(one.key.rpartition(".")[2], parts, 0.8)) for one in unknown]
    problems = [
        Problem(
            where=f"{one.path}:{one.line}",
            key=one.key,
            message=f"unknown, but nearly {close}, which states a decision; mend it first",
        )
        for one, close in near
        if close
    ]
    if problems:
        raise InputError(problems)


def lost(context: Context, strategy: Strategy, layout: Layout | None) -> str:
    """Decisions that a file, read again, does not state as they were written."""
    if layout is None:
        return "all of it"
    wanted, found = _plain(context, strategy), _plain(layout.context, layout.strategy)
    return ", ".join(name for name, value in wanted.items() if found[name] != value)


def _plain(context: Context, strategy: Strategy) -> dict[str, object]:
    """Every decision by name, without what has no effect."""
    job = context.job
    values = {**vars(strategy), "global_batch": job.global_batch, "seq_len": job.seq_len}
    values |= zip(COUNTS, strategy.policy_counts, strict=True)
    selected = strategy.recompute_modules or context.traits.recompute.selected
    values["recompute_modules"] = selected if strategy.layers_under["selective"] else None
    if strategy.offload == "none":
        values["offload_percent"] = 100
    return values
