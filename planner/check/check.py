"""Checks configuration files one by one; each gives a result, whatever is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.catalog.clusters import load_cluster
from planner.check.advice import advice_findings
from planner.check.assume import assuming
from planner.check.complete import Completed, complete
from planner.check.job import Job, Request, job_of, named, shape_of
from planner.check.layout import Layout
from planner.check.legality import NO_SHARDS, legality_findings, not_said_yet
from planner.check.lint import lints
from planner.check.memory import memory_findings
from planner.check.network import network_findings
from planner.check.plan import NAME as PLAN
from planner.check.plan import read_plan_layout
from planner.check.recognise import check_format_name, is_plan_file
from planner.check.result import (
    Figures,
    FileResult,
    finding_of,
    in_order,
    is_ignored,
)
from planner.cost.estimate import Estimate, estimate
from planner.errors import ExpressError, InputError
from planner.formats import registry as formats
from planner.formats.finding import Finding
from planner.formats.format import Format, Reading, SourceText, World
from planner.limits import one_line
from planner.query.from_file import AUTO, UnrecognisedError, format_of, source_of, with_model
from planner.search.near import Accepts
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """What was found out about a file before anything is left out."""

    format: str
    framework: str = ""
    model: str = ""
    cluster: str = ""
    num_gpus: int = 0
    findings: tuple[Finding, ...]
    assumed: tuple[str, ...] = ()
    figures: Figures | None = None


def check_file(path: str, request: Request) -> FileResult:
    """Check one file; what cannot be read is a finding, too.

    Raises InputError where the request itself cannot be used: an unknown model, cluster or format.
    """
    named(request)
    check_format_name(request.framework)
    is_recognised = True
    try:
        source = source_of(path)
        checked = (
            _check_plan(source, request)
            if is_plan_file(source, request.framework)
            else _check_beside(source, request) or _check_config(source, request)
        )
    except InputError as error:
        found = tuple(finding_of(problem, path) for problem in error.problems)
        checked = _Checked(format="", findings=found)
        is_recognised = not isinstance(error, UnrecognisedError)
    kept = [one for one in checked.findings if not is_ignored(one, request.ignore)]
    return FileResult(
        path=one_line(path),
        format=checked.format,
        framework=checked.framework,
        model=checked.model,
        cluster=checked.cluster,
        num_gpus=checked.num_gpus,
        findings=in_order(kept),
        num_ignored=len(checked.findings) - len(kept),
        assumed=checked.assumed,
        figures=checked.figures,
        fail_on=request.fail_on,
        is_recognised=is_recognised,
    )


def _check_plan(source: SourceText, request: Request) -> _Checked:
    layout, findings, model, cluster = read_plan_layout(source, request.cluster)
    if layout is None:
        return _Checked(format=PLAN, model=model, cluster=cluster, findings=findings)
    findings += tuple(_unlike_job(layout, request))
    more, figures = _layout_findings(layout, request, findings)
    return _Checked(
        format=PLAN,
        framework=layout.context.traits.name,
        model=model,
        cluster=cluster,
        num_gpus=layout.num_gpus,
        findings=(*findings, *more),
        figures=figures,
    )


def _unlike_job(layout: Layout, request: Request) -> list[Finding]:
    """What a plan was made for that is not the job."""
    job, model = layout.context.job, layout.context.model
    own, _ = named(request)
    compared = (
        ("job.model", "model", own and own.name, model.name),
        ("job.gpus", "dp", request.num_gpus, layout.num_gpus),
        ("job.seq_len", "seq_len", request.seq_len, job.seq_len),
        ("job.global_batch", "global_batch", request.global_batch, job.global_batch),
    )
    return [
        layout.places.finding(rule, f"the plan has {given}; the job has {asked}", decision)
        for rule, decision, asked, given in compared
        if asked is not None and asked != given
    ]


def _check_config(source: SourceText, request: Request) -> _Checked:
    kind = format_of(source, request.framework)
    reading = read_configuration(kind, source, request)
    framework = kind.framework_of(reading)
    job = job_of(request, reading)
    checked = _Checked(
        format=kind.name,
        framework=framework,
        model=job.model.name if job and not request.model else request.model or "",
        cluster=request.cluster or "",
        findings=reading.findings,
    )
    if reading.made_for:
        return checked
    if job is None:
        return replace(checked, **_linted(kind, reading, request))
    completed = completed_of(kind, reading, job)
    findings = file_findings(kind, reading, completed)
    figures = None
    if completed.layout is not None:
        accepts = _can_express(kind, source, completed.layout, kind.part(reading.settings))
        more, figures = _layout_findings(completed.layout, request, findings, accepts, kind)
        findings += more
    return replace(
        checked,
        num_gpus=completed.world.num_gpus,
        findings=_as_likely(findings, reading),
        assumed=completed.assumed,
        figures=figures,
    )


def read_configuration(kind: Format, source: SourceText, request: Request) -> Reading:
    """A file's settings, with what the request says of its launch, its model and its script."""
    reading = kind.launched(with_model(kind.read(source)), request.environment)
    return assuming(reading, request.assumed)


def completed_of(kind: Format, reading: Reading, job: Job) -> Completed:
    """The layout of a reading for a job."""
    framework = kind.framework_of(reading)
    return complete(reading, job, framework, script_recomputes=kind.script_recomputes)


def _can_express(kind: Format, source: SourceText, layout: Layout, part: str | None) -> Accepts:
    """Whether the file can be written with a strategy and then starts the ``part`` it did."""

    def accepts(strategy: Strategy) -> bool:
        try:
            text = kind.written_into(source, layout.context, strategy)
            after = kind.read(SourceText(path=source.path, text=text))
        except (ExpressError, InputError):
            return False
        return kind.part(after.settings) == part

    return accepts


def _linted(kind: Format, reading: Reading, request: Request) -> dict[str, Any]:
    """Findings that hold whatever the model, and on how many GPUs if that is known."""
    model, cluster = named(request)
    shape = shape_of(model) if model else {}
    found: list[Finding] | None = None
    for completed in lints(
        reading,
        num_gpus=request.num_gpus,
        of_cluster=cluster.num_accelerators if cluster else None,
        global_batch=request.global_batch,
        shape=shape,
    ):
        num_gpus = completed.world.num_gpus if found is None else 0
        rules = file_findings(kind, reading, completed)
        kept = {(one.rule, one.key) for one in rules}
        found = rules if found is None else [one for one in found if (one.rule, one.key) in kept]
        if all(one in reading.findings for one in found):
            break
    if reading.unpriced:
        message = f"{reading.unpriced}; memory and time are not checked"
        note = Finding(rule="job.unpriced", severity="note", message=message, path=reading.path)
        return {"num_gpus": num_gpus, "findings": (*_as_likely(found or [], reading), note)}
    missing = [f"--{name}" for name in ("model", "cluster") if getattr(request, name) is None]
    message = (
        "keys, types and contradictions are checked; memory, network and time are not: "
        f"{' and '.join(missing)} {'say' if missing[1:] else 'says'} for what job"
    )
    note = Finding(rule="job.unknown", severity="note", message=message, path=reading.path)
    return {"num_gpus": num_gpus, "findings": (*_as_likely(found or [], reading), note)}


def _as_likely(findings: Sequence[Finding], reading: Reading) -> tuple[Finding, ...]:
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


def _check_beside(source: SourceText, request: Request) -> _Checked | None:
    """Check a file that a launcher takes beside a configuration; None where it is none."""
    found = formats.recognised_beside(source)
    if found is None or request.framework not in (AUTO, found[0].name):
        return None
    kind, beside = found
    num_gpus, findings = beside.read(source)
    asked = request.num_gpus
    there = None if request.cluster is None else load_cluster(request.cluster).num_accelerators
    if asked is not None and num_gpus != asked:
        findings += (_unlike_gpus(source, f"the job has {asked} GPUs; given {num_gpus}"),)
    elif there is not None and num_gpus > there:
        findings += (_unlike_gpus(source, f"the cluster has {there} GPUs; given {num_gpus}"),)
    return _Checked(
        format=f"{kind.name} {beside.name}",
        framework=kind.framework,
        cluster=request.cluster or "",
        num_gpus=num_gpus,
        findings=findings,
    )


def _unlike_gpus(source: SourceText, message: str) -> Finding:
    return Finding(rule="job.gpus", severity="error", message=message, path=source.path)


def file_findings(kind: Format, reading: Reading, completed: Completed) -> list[Finding]:
    """What is wrong with a file before its layout is looked at; the format's words come first."""
    world = completed.world
    findings = [*reading.findings, *_rule_findings(kind, reading, world)]
    findings += _named_findings(reading, world)
    return findings + not_said_yet(completed.findings, findings)


def _rule_findings(kind: Format, reading: Reading, world: World) -> list[Finding]:
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


def _named_findings(reading: Reading, world: World) -> list[Finding]:
    """What is wrong with the files that a file names, at their own lines."""
    found: list[Finding] = []
    for each in reading.named:
        said = [*each.findings, *_rule_findings(formats.load_format(each.format), each, world)]
        found += [one for one in said if one.severity == "error"]
    return found


def _layout_findings(
    layout: Layout,
    request: Request,
    said: Sequence[Finding],
    accepts: Accepts | None = None,
    kind: Format | None = None,
) -> tuple[list[Finding], Figures | None]:
    """Legality, then network, memory and advice of what is legal.

    ``accepts`` says what the file of a format can express; without both, it is a plan. Where advice
    was looked for and no plan is clearly better, there is nothing to note about where groups lie.
    """
    illegal = list(legality_findings(layout, is_plan=accepts is None))
    if illegal:
        found = not_said_yet(illegal, said)
        if {one.rule for one in illegal} == {NO_SHARDS} and layout.strategy.zero_stage == 0:
            made = estimate(layout.context, layout.strategy)
            found += memory_findings(
                layout, made, accepts=accepts, time_limit_s=request.time_limit_s
            )
        return found, None
    made = estimate(layout.context, layout.strategy)
    network = not_said_yet(list(network_findings(layout)), said)
    limit_s = request.time_limit_s
    memory = list(memory_findings(layout, made, accepts=accepts, time_limit_s=limit_s))
    advice: list[Finding] = []
    if request.with_advice and not any(
        finding.severity == "error" for finding in (*said, *network, *memory)
    ):
        advice = list(advice_findings(layout, made.iter_time_s, limit_s, kind))
        network = network if advice else [one for one in network if one.severity != "note"]
    return [*network, *memory, *advice], _figures(made, layout.strategy.pp)


def _figures(made: Estimate, num_stages: int) -> Figures:
    return Figures(
        iter_time_s=made.iter_time_s,
        tokens_per_s=made.tokens_per_s,
        peak_bytes=made.memory.peak_bytes,
        usable_bytes=made.memory.usable_bytes,
        peak_stage=made.memory.peak_stage,
        num_stages=num_stages,
    )
