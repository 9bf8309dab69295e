"""Checks configuration files one by one; each gives a result, whatever is wrong with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.check.findings import (
    NO_SHARDS,
    advice_findings,
    legality_findings,
    lint_cases,
    network_findings,
    not_said_yet,
)
from planner.check.plan import PLAN, check_format_name, is_plan_file, read_plan_layout
from planner.check.result import Figures, FileResult, finding_of, in_order, is_ignored
from planner.errors import ExpressError, InputError
from planner.formats import registry as formats
from planner.formats.format import CheckContext, Finding, Format, ParsedConfig, SourceText
from planner.limits import one_line
from planner.query.from_file import (
    AUTO,
    Job,
    Request,
    UnrecognisedError,
    format_of,
    job_of,
    named,
    read_for,
    source_of,
)
from planner.query.values import shape_of

if TYPE_CHECKING:
    from planner.query.layout import Completed, Layout
    from planner.search.near import Accepts
    from planner.spec.strategy import Strategy


def check_file(path: str, request: Request) -> FileResult:
    """Check one file; what cannot be read is a finding, too.

    Raises InputError where the request itself cannot be used: an unknown model, cluster or format.
    """
    named(request)
    check_format_name(request.framework)
    try:
        source = source_of(path)
        if is_plan_file(source, request.framework):
            result = _check_plan(source, request)
        else:
            result = _check_beside(source, request) or _check_config(source, request)
    except InputError as error:
        result = FileResult(
            path=path,
            findings=tuple(finding_of(problem, path) for problem in error.problems),
            is_recognised=not isinstance(error, UnrecognisedError),
        )
    kept = [one for one in result.findings if not is_ignored(one, request.ignore)]
    return replace(
        result,
        path=one_line(path),
        findings=in_order(kept),
        num_ignored=len(result.findings) - len(kept),
        fail_on=request.fail_on,
    )


def _check_plan(source: SourceText, request: Request) -> FileResult:
    layout, findings, model, cluster = read_plan_layout(source, request.cluster)
    result = FileResult(
        path=source.path, format=PLAN, model=model, cluster=cluster, findings=findings
    )
    if layout is None:
        return result
    # What the plan was made for that is not the job.
    job, own = layout.context.job, named(request)[0]
    compared = (
        ("job.model", "model", own and own.name, layout.context.model.name),
        ("job.gpus", "dp", request.num_gpus, layout.strategy.num_gpus),
        ("job.seq_len", "seq_len", request.seq_len, job.seq_len),
        ("job.global_batch", "global_batch", request.global_batch, job.global_batch),
    )
    findings += tuple(
        layout.places.finding(rule, f"the plan has {given}; the job has {asked}", decision)
        for rule, decision, asked, given in compared
        if asked is not None and asked != given
    )
    more, figures = _layout_findings(layout, request, findings)
    return replace(
        result,
        framework=layout.context.traits.name,
        num_gpus=layout.strategy.num_gpus,
        findings=(*findings, *more),
        figures=figures,
    )


def _check_config(source: SourceText, request: Request) -> FileResult:
    kind = format_of(source, request.framework)
    reading = read_for(kind, kind.read(source), request)
    job = job_of(request, reading)
    result = FileResult(
        path=source.path,
        format=kind.name,
        framework=kind.framework_of(reading),
        model=job.model.name if job and not request.model else request.model or "",
        cluster=request.cluster or "",
        findings=reading.findings,
    )
    if reading.made_for:
        return result
    if job is None:
        num_gpus, linted = _linted(kind, reading, request)
        return replace(result, num_gpus=num_gpus, findings=linted)
    completed = completed_of(kind, reading, job)
    layout, figures = completed.layout, None
    findings = file_findings(kind, reading, completed.world, completed.findings)
    if layout is not None:
        context = layout.context

        def accepts(strategy: "Strategy") -> bool:
            """Whether the file can be written with it and then starts the part it did."""
            try:
                text = kind.written_into(source, context, strategy)
                after = kind.read(SourceText(path=source.path, text=text))
            except (ExpressError, InputError):
                return False
            return kind.part(after.settings) == kind.part(reading.settings)

        more, figures = _layout_findings(layout, request, findings, accepts, kind)
        findings += more
    return replace(
        result,
        num_gpus=completed.world.num_gpus,
        findings=_as_likely(findings, reading),
        assumed=completed.assumed,
        figures=figures,
    )


def completed_of(kind: Format, reading: ParsedConfig, job: Job, framework: str = "") -> "Completed":
    """The layout of a reading for a job, under traits of the format's framework or of another."""
    # Costs and the search's rules are imported with it; a file without a job needs neither.
    from planner.query.layout import complete

    framework = framework or kind.framework_of(reading)
    return complete(reading, job, framework, script_recomputes=kind.script_recomputes)


def _linted(
    kind: Format, reading: ParsedConfig, request: Request
) -> tuple[int, tuple[Finding, ...]]:
    """Return the number of GPUs, if that is known, and findings that hold for any model."""
    model, cluster = named(request)
    cases = lint_cases(
        reading,
        num_gpus=request.num_gpus,
        of_cluster=cluster.num_accelerators if cluster else None,
        global_batch=request.global_batch,
        shape=shape_of(model) if model else {},
    )
    num_gpus, kept = None, list[Finding]()
    for world, contradictions in cases:
        found = file_findings(kind, reading, world, contradictions)
        rules = {(one.rule, one.key) for one in found}
        is_first = num_gpus is None
        kept = found if is_first else [one for one in kept if (one.rule, one.key) in rules]
        num_gpus = world.num_gpus if is_first else 0
        if all(one in reading.findings for one in kept):
            break
    if reading.unpriced:
        rule, message = "job.unpriced", f"{reading.unpriced}; memory and time are not checked"
    else:
        missing = [f"--{name}" for name in ("model", "cluster") if getattr(request, name) is None]
        rule = "job.unknown"
        message = (
            "keys, types and contradictions are checked; memory, network and time are not: "
            f"{' and '.join(missing)} {'say' if missing[1:] else 'says'} for what job"
        )
    note = Finding(rule=rule, severity="note", message=message, path=reading.path)
    return num_gpus or 0, (*_as_likely(kept, reading), note)


def _as_likely(findings: Sequence[Finding], reading: ParsedConfig) -> tuple[Finding, ...]:
    """Errors are warnings where nobody knows that the training script keeps to the rules."""
    if not reading.run_by:
        return tuple(findings)
    why = f"; {reading.run_by[-60:]} is not {reading.format}'s own, and may do otherwise"
    return tuple(
        replace(one, severity="warning", message=one.message + why)
        if one.severity == "error"
        else one
        for one in findings
    )


def _check_beside(source: SourceText, request: Request) -> FileResult | None:
    """Check a file that a launcher takes beside a configuration; None where it is none."""
    found = formats.hosts_in(source)
    if found is None or request.framework not in (AUTO, found[0].name):
        return None
    kind, (slots, findings) = found
    num_gpus = sum(slots.values())
    _, cluster = named(request)
    wrong = ""
    if request.num_gpus not in (None, num_gpus):
        wrong = f"the job has {request.num_gpus} GPUs; given {num_gpus}"
    elif cluster and num_gpus > cluster.num_accelerators:
        wrong = f"the cluster has {cluster.num_accelerators} GPUs; given {num_gpus}"
    if wrong:
        finding = Finding(rule="job.gpus", severity="error", message=wrong, path=source.path)
        findings += (finding,)
    return FileResult(
        path=source.path,
        format=f"{kind.name} hostfile",
        framework=kind.framework,
        cluster=request.cluster or "",
        num_gpus=num_gpus,
        findings=findings,
    )


def file_findings(
    kind: Format, reading: ParsedConfig, world: CheckContext, contradictions: Sequence[Finding]
) -> list[Finding]:
    """Return the findings before the layout is examined; those of the format come first."""
    findings = [*reading.findings, *_rule_findings(kind, reading, world)]
    # What is wrong with the files that a file names, at their own lines.
    for each in reading.named:
        said = [*each.findings, *_rule_findings(formats.load_format(each.format), each, world)]
        findings += [one for one in said if one.severity == "error"]
    return findings + not_said_yet(contradictions, findings)


def _rule_findings(kind: Format, reading: ParsedConfig, world: CheckContext) -> list[Finding]:
    rules = {kind.name: kind.rules, **kind.borrowed}
    return [
        Finding(
            rule=f"{name}.{rule.name}",
            severity=rule.severity,
            message=broken.message,
            path=reading.path,
            key=broken.key,
            line=reading.line_of(broken.key),
        )
        for name, own in rules.items()
        for rule in own
        for broken in rule.check(reading.settings, world)
    ]


def _layout_findings(
    layout: "Layout",
    request: Request,
    said: Sequence[Finding],
    accepts: "Accepts | None" = None,
    kind: Format | None = None,
) -> tuple[list[Finding], Figures | None]:
    """Legality, then network, memory and advice of what is legal.

    ``accepts`` says what the file of a format can express; without both, it is a plan. Where advice
    was looked for and no plan is clearly better, there is nothing to note about where groups lie.
    """
    from planner.check.memory import memory_findings
    from planner.cost.estimate import estimate

    limit_s = request.time_limit_s
    illegal = list(legality_findings(layout, is_plan=accepts is None))
    # Whole replicas where plans always shard: their memory is known all the same.
    has_known_memory = {one.rule for one in illegal} == {NO_SHARDS}
    if illegal and not (has_known_memory and layout.strategy.zero_stage == 0):
        return not_said_yet(illegal, said), None
    made = estimate(layout.context, layout.strategy)
    memory = list(memory_findings(layout, made, accepts=accepts, time_limit_s=limit_s))
    if illegal:
        return [*not_said_yet(illegal, said), *memory], None
    network = not_said_yet(list(network_findings(layout)), said)
    advice: list[Finding] = []
    if request.with_advice and not any(
        finding.severity == "error" for finding in (*said, *network, *memory)
    ):
        advice = list(advice_findings(layout, made.iter_time_s, limit_s, kind))
        network = network if advice else [one for one in network if one.severity != "note"]
    return [*network, *memory, *advice], Figures.of(made)
