"""One log beside its price."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from planner.answers.layout import short_layout
from planner.answers.row import field_values
from planner.answers.rows import EstimateRow
from planner.check.check import BATCH, STAGES, completed_of, legality_findings
from planner.check.plan import check_format_name, is_plan_file, read_plan_layout
from planner.check.result import refusal
from planner.compare.causes import Cause, MeasuredRun, causes_of, steps_causes
from planner.compare.log import Log, Measured, Memory, Sizes, measured
from planner.cost.estimate import estimate
from planner.cost.ledger import stage_ledgers
from planner.cost.stage_model import price
from planner.errors import InputError
from planner.formats.format import Finding, ParsedConfig
from planner.formats.registry import load_format
from planner.query.from_file import Request, format_of, needed_job, read_for, source_of
from planner.query.layout import Layout


class Prediction(Memory, EstimateRow):
    """The price of a log's layout; memory as the allocator counts it on the fullest rank."""

    model: str
    cluster: str
    framework: str
    profile: str
    gpus: int
    layout: str
    global_batch: int
    seq_len: int
    assumed: tuple[str, ...]
    """Values that were assumed, as nothing states them."""
    unusual: tuple[str, ...]
    """Features of the run that plans would not use."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A log, what it measured, and its price where its layout is known."""

    log: Log
    measured: Measured | None  # None where a rate needs a batch that nothing says
    layout: Layout | None = None
    predicted: Prediction | None = None
    unpriced: tuple[str, ...] = ()  # why there is no price
    causes: tuple[Cause, ...] = ()  # of the difference
    steps: tuple[Cause, ...] = ()  # what the steps alone show

    @property
    def rate(self) -> float:
        """The median of what is printed, in the log's unit."""
        return median(step.value for step in self.log.steps)

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, minus one."""
        own, real = self.predicted, self.measured
        return own.iter_time_s / real.iter_time_s - 1.0 if own and real else None

    @property
    def is_usual(self) -> bool | None:
        """True if the run is in the range of eight of ten published runs of its regime."""
        if self.predicted is None or self.measured is None:
            return None
        price, time_s = self.predicted, self.measured.iter_time_s
        return price.iter_time_s_lower <= time_s <= price.iter_time_s_upper


def compare(log: Log, request: Request, config: str | None = None) -> Comparison:
    """Price the layout of a log, or of a file given with it, and set the two side by side.

    Raises InputError where the file that was given cannot be used; a log that says too little is
    no error, and ``unpriced`` says what is missing.
    """
    try:
        layout, assumed, is_plan = _layout_of(log, request, config)
        # A run that was started has kept its framework's rules: what it broke is said, not judged,
        # but where numbers do not add up there is nothing to price.
        broken = list(legality_findings(layout, is_plan=is_plan))
        if wrong := [one for one in broken if one.rule in (BATCH, STAGES)]:
            raise _refused(wrong)
    except InputError as error:
        if config is not None:
            raise
        # What its lines say of its sizes, and where they do not, its settings.
        stated = log.dump.reading.decisions if log.dump else {}
        given = {name: one.value for name, one in stated.items() if isinstance(one.value, int)}
        found = measured(log, {**given, **log.sizes})
        reasons = tuple(str(problem) for problem in error.problems)
        steps = tuple(steps_causes(found)) if found else ()
        return Comparison(log=log, measured=found, unpriced=reasons, steps=steps)
    context, strategy = layout.context, layout.strategy
    made = estimate(context, strategy)
    ledgers = stage_ledgers(price(context, strategy))
    predicted = Prediction(
        model=context.model.name,
        cluster=context.cluster.name,
        framework=context.traits.name,
        profile=context.traits.profile,
        gpus=strategy.num_gpus,
        layout=short_layout(strategy),
        global_batch=context.job.global_batch,
        seq_len=context.job.seq_len,
        assumed=assumed,
        unusual=tuple(one.message for one in broken),
        allocated_bytes=max(ledger.allocated_bytes for ledger in ledgers),
        reserved_bytes=max(ledger.reserved_bytes for ledger in ledgers),
        **field_values(EstimateRow, made),
    )
    job = context.job
    sizes = {"global_batch": job.global_batch, "seq_len": job.seq_len}
    found = measured(log, {**sizes, "num_gpus": strategy.num_gpus})
    priced = Comparison(log=log, measured=found, layout=layout, predicted=predicted)
    if found is None:
        return priced
    causes = causes_of(MeasuredRun(measured=found, layout=layout, made=made))
    return replace(priced, causes=causes, steps=tuple(steps_causes(found)))


def _layout_of(
    log: Log, request: Request, config: str | None
) -> tuple[Layout, tuple[str, ...], bool]:
    """The layout of a log or file, what was assumed, whether it is a plan's; raises InputError."""
    if config is not None:
        request = _with_sizes(request, log.sizes)
        check_format_name(request.framework)
        source = source_of(config)
        if not is_plan_file(source, request.framework):
            return _completed(format_of(source, request.framework).read(source), request)
        layout, findings, _, _ = read_plan_layout(source, request.cluster)
        if layout is None:
            raise _refused(findings)
        return layout, (), True
    if log.dump is None:
        message = "says no layout that can be read: --config FILE gives it"
        raise InputError.single(log.path, "layout", message)
    stated = log.dump.reading.decisions
    known = {name: size for name, size in log.sizes.items() if name not in stated}
    return _completed(log.dump.reading, _with_sizes(request, known), log.dump.framework)


def _completed(
    reading: ParsedConfig, request: Request, framework: str = ""
) -> tuple[Layout, tuple[str, ...], bool]:
    """The layout of settings, under the traits of their format's framework or of another."""
    kind = load_format(reading.format)
    reading = read_for(kind, reading, request)
    completed = completed_of(kind, reading, needed_job(request, reading), framework)
    if completed.layout is None:
        raise _refused((*reading.findings, *completed.findings))
    return completed.layout, completed.assumed, False


def _refused(findings: Sequence[Finding]) -> InputError:
    """Return the error for a layout that cannot be determined: its errors, or all findings."""
    return refusal([one for one in findings if one.severity == "error"] or findings)


def _with_sizes(request: Request, sizes: Sizes) -> Request:
    """The request with what the log says; what was asked for comes first."""
    known: dict[str, Any] = {
        name: size for name, size in sizes.items() if getattr(request, name) is None
    }
    return replace(request, **known)
