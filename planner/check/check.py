"""Checks configuration files one by one; each gives a result, whatever is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.check.plan import PLAN, check_format_name, is_plan_file, read_plan_layout
from planner.check.result import FileResult, finding_of, in_order, is_ignored
from planner.errors import InputError
from planner.formats import registry as formats
from planner.formats.format import (
    SEVERITIES,
    CheckContext,
    Finding,
    Format,
    ParsedConfig,
    SourceText,
)
from planner.formats.settings import first_of, which
from planner.limits import one_line
from planner.query.from_file import (
    AUTO,
    EXAMPLES,
    Job,
    Request,
    UnrecognisedError,
    format_of,
    job_of,
    named,
    read_for,
    source_of,
)
from planner.query.values import LEGALITY, Values, known_of, read_batch, read_gpus, shape_of
from planner.spec.strategy import MODEL_PARALLEL_DEGREES, gpus_of_replica

if TYPE_CHECKING:
    from planner.query.layout import Completed, Layout

BATCH, STAGES = "batch.arithmetic", "legality.stages"
# Rules that say nothing more where one of these, of the search or of a format, is broken.
SAID_BY = {
    "optimizer_runs_under_zero": ("zero_stage_offered",),
    "zero_stage_offered": ("megatron_fsdp_takes_all_processes",),
    "expert_mesh_fits": ("expert_degrees_divide_processes", "ep_divides_experts"),
    "replicas_divide_dp": ("expert_mesh_fits", "expert_degrees_divide_processes"),
    "vpp_micro_batches": ("micro_batches_fill_chunks",),
    "chunks_offered": ("chunk_divides_stage", "chunks_divide_stage", "ends_leave_even_middle"),
}
# Replicas that a job of unknown size may have.
REPLICAS = (*range(1, 33), 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)


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
    from planner.check.layout import layout_findings

    more, figures = layout_findings(layout, request, findings)
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
    job, (model, _) = job_of(request, reading), named(request, reading)
    result = FileResult(
        path=source.path,
        format=kind.name,
        framework=kind.framework_of(reading),
        model=request.model or (model.name if model else ""),
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
        from planner.check.layout import layout_findings
        from planner.check.start import Start

        num_gpus = layout.strategy.num_gpus
        start = Start(kind, source, reading, job, layout, completed, num_gpus)
        more, figures = layout_findings(layout, request, findings, start)
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
    model, cluster = named(request, reading)
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
        if {*reading.findings}.issuperset(kept):
            break
    missing = which({"--model": model is None, "--cluster": cluster is None})
    rule, message = "job.unpriced", f"{reading.unpriced}; memory and time are not checked"
    if not reading.unpriced:
        rule, names = "job.unknown", [*missing]
        message = (
            "keys, types and contradictions are checked; memory, network and time are not: "
            f"{' and '.join(names)} {'say' if names[1:] else 'says'} for what job, such as "
            f"{' '.join(f'{name} {EXAMPLES[name]}' for name in names)}"
        )
    return num_gpus or 0, (
        *_as_likely(kept, reading),
        Finding(rule=rule, severity="note", message=message, path=reading.path),
    )


def _as_likely(findings: Sequence[Finding], reading: ParsedConfig) -> tuple[Finding, ...]:
    """Turn errors into warnings if the training script is not the framework's own."""
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
    num_gpus, (_, cluster) = sum(slots.values()), named(request)
    most = cluster.num_accelerators if cluster else num_gpus
    wrong = {
        f"the job has {request.num_gpus} GPUs; given {num_gpus}": (
            request.num_gpus not in (None, num_gpus)
        ),
        f"the cluster has {most} GPUs; given {num_gpus}": num_gpus > most,
    }
    findings += tuple(
        Finding(rule="job.gpus", severity="error", message=message, path=source.path)
        for message in first_of(wrong)
    )
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
        findings += [one for one in said if one.severity != "note"]
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


def legality_findings(layout: "Layout", *, is_plan: bool) -> Iterator[Finding]:
    """Every broken rule of the search, at the decision that breaks it.

    What a framework offers its format knows better than the traits of plans: where a file other
    than a plan uses what they lack, that is a warning.
    """
    from planner.search.space.legality import violations

    for one in violations(layout.context, layout.strategy):
        if not one.rule:
            rule = BATCH if one.key == "num_micro_batches" else STAGES
            yield layout.places.finding(rule, one.text, one.key)
            continue
        # Decisions that are neutral come at the end.
        neutral = (0, 1, "none", "1f1b")
        last_first = reversed(one.needs)
        needs = sorted(last_first, key=lambda name: getattr(layout.strategy, name) in neutral)
        text, severity = " ".join(one.text.split()), SEVERITIES[0]
        if one.offered_by == "framework" and not is_plan:
            severity = "warning"
            text = f"Plans do not model it: {text}. Memory, network and time are not checked."
        yield layout.places.finding(f"{LEGALITY}.{one.rule}", text, *needs, severity=severity)


def not_said_yet(findings: Sequence[Finding], said: Sequence[Finding]) -> list[Finding]:
    """Drop findings at keys with errors in ``said``, or of rules that another covers (SAID_BY)."""
    errors = [one for one in said if one.severity == "error"]
    keys = {one.key for one in errors if one.key}
    rules = {one.kind for one in (*errors, *findings)}
    return [
        one
        for one in findings
        if one.key not in keys and rules.isdisjoint(SAID_BY.get(one.kind, ()))
    ]


def lint_cases(
    reading: ParsedConfig,
    *,
    num_gpus: int | None,
    of_cluster: int | None,
    global_batch: int | None,
    shape: Mapping[str, Any],
) -> Iterator[tuple[CheckContext, Sequence[Finding]]]:
    """Yield the inputs of rules for a file, and its contradictions, on every number of GPUs.

    The number is the file's, the job's (``num_gpus``) or the cluster's, else any that the file may
    be for: what is wrong on all of them is wrong.
    """
    is_open = any(name in reading.left_open for name in (*MODEL_PARALLEL_DEGREES, "num_gpus"))
    values = Values(reading)
    gpus = read_gpus(values, asked=num_gpus, of_cluster=of_cluster or 1)
    counts = [gpus.num_gpus]
    if not (of_cluster or num_gpus or values.whole("num_gpus") or values.whole("dp")):
        counts = [gpus_of_replica(gpus.degrees) * count for count in REPLICAS]
    for count in counts:
        values = Values(reading)
        gpus = read_gpus(values, asked=num_gpus, of_cluster=count)
        gpus = replace(gpus, dp=None) if is_open else gpus
        batch = None if gpus.dp is None else read_batch(values, gpus.dp, asked=global_batch)
        world = CheckContext(
            num_gpus=gpus.num_gpus, decisions=known_of(reading, shape, gpus, batch)
        )
        yield world, () if is_open else values.findings
