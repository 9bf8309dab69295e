"""One log beside its price."""

from dataclasses import dataclass, fields, replace
from statistics import median

from planner.answers.evidence import published_runs
from planner.check.priced import Priced, priced_file, priced_reading
from planner.compare.causes import Case, Cause, causes_of, steps_causes
from planner.compare.log import Log, Measured, Memory, Sizes, measured
from planner.cost.estimate import Estimate, estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.priced import price
from planner.errors import InputError
from planner.query.from_file import Request
from planner.query.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of a log's layout."""

    layout: Layout
    estimate: Estimate
    memory: Memory
    """As the allocator counts it, of the fullest rank."""
    assumed: tuple[str, ...]
    unusual: tuple[str, ...]
    """What the run does that plans would not."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """How usual an error is among published runs of the same kind of model."""

    kind: str
    num_runs: int
    nearer: float
    """Share of them on which the model was less far off."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A log, what it measured, and its price where its layout is known."""

    log: Log
    measured: Measured | None
    """None where a rate needs a batch that nothing says."""
    predicted: Prediction | None = None
    unpriced: tuple[str, ...] = ()
    """Why there is no price."""
    causes: tuple[Cause, ...] = ()
    """Of the difference."""
    steps: tuple[Cause, ...] = ()
    """What the steps alone show."""
    published: Published | None = None

    @property
    def rate(self) -> float:
        """The median of what is printed, in the log's unit."""
        return median(step.value for step in self.log.steps)

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, minus one."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted.estimate.iter_time_s / self.measured.median_s - 1.0

    @property
    def is_usual(self) -> bool | None:
        """Whether eight of ten published runs of its regime lie around the price as it does."""
        if self.predicted is None or self.measured is None:
            return None
        made = self.predicted.estimate
        return made.iter_time_s_lower <= self.measured.median_s <= made.iter_time_s_upper


def compare(log: Log, request: Request, config: str | None = None) -> Comparison:
    """Price the layout of a log, or of a file given with it, and set the two side by side.

    Raises InputError where the file that was given cannot be used; a log that says too little is
    no error, and ``unpriced`` says what is missing.
    """
    try:
        priced = _priced(log, request, config)
    except InputError as error:
        if config is not None:
            raise
        found = measured(log, _stated(log))
        reasons = tuple(str(problem) for problem in error.problems)
        steps = tuple(steps_causes(found)) if found else ()
        return Comparison(log=log, measured=found, unpriced=reasons, steps=steps)
    return _compared(log, priced)


def _priced(log: Log, request: Request, config: str | None) -> Priced:
    if config is not None:
        return priced_file(config, _with_sizes(request, log.sizes))
    if log.dump is None:
        message = "says no layout that can be read: --config FILE gives it"
        raise InputError.single(log.path, "layout", message)
    stated = log.dump.reading.decisions
    known = replace(log.sizes, **{each.name: None for each in fields(Sizes) if each.name in stated})
    return priced_reading(log.dump.reading, _with_sizes(request, known), log.dump.framework)


def _stated(log: Log) -> Sizes:
    """What the lines of a log say of its sizes, and where they do not, its settings."""
    decisions = log.dump.reading.decisions if log.dump else {}

    def size(name: str) -> int | None:
        own: int | None = getattr(log.sizes, name)
        place = decisions.get(name)
        given = place.value if place else None
        return own or (given if isinstance(given, int) else None)

    return Sizes(**{each.name: size(each.name) for each in fields(Sizes)})


def _with_sizes(request: Request, sizes: Sizes) -> Request:
    """The request with what the log says; what was asked for comes first."""
    names = [each.name for each in fields(Sizes)]
    known = {name: getattr(request, name) or getattr(sizes, name) for name in names}
    return replace(request, **known)


def _compared(log: Log, priced: Priced) -> Comparison:
    layout = priced.layout
    made = estimate(layout.context, layout.strategy)
    ledgers = stage_ledgers(price(layout.context, layout.strategy))
    predicted = Prediction(
        layout=layout,
        estimate=made,
        memory=Memory(
            allocated_bytes=max(ledger.allocated_bytes for ledger in ledgers),
            reserved_bytes=max(ledger.reserved_bytes for ledger in ledgers),
        ),
        assumed=priced.assumed,
        unusual=priced.unusual,
    )
    job = layout.context.job
    sizes = Sizes(
        global_batch=job.global_batch, seq_len=job.seq_len, num_gpus=layout.strategy.num_gpus
    )
    found = measured(log, sizes)
    if found is None:
        return Comparison(log=log, measured=None, predicted=predicted)
    case = Case(measured=found, layout=layout, made=made)
    error = abs(made.iter_time_s / found.median_s - 1.0)
    return Comparison(
        log=log,
        measured=found,
        predicted=predicted,
        causes=causes_of(case),
        steps=tuple(steps_causes(found)),
        published=_published(layout.context.model.kind, error),
    )


def _published(kind: str, error: float) -> Published | None:
    errors = [abs(run.time_error) for run in published_runs() if run.kind == kind]
    if not errors:
        return None
    nearer = sum(one < error for one in errors) / len(errors)
    return Published(kind=kind, num_runs=len(errors), nearer=nearer)
