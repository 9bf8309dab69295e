"""``planner plan``: ranked plans for a model on a cluster."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.catalog.names import EXAMPLE_NODE
from planner.cli import completion, options
from planner.cli.layout import fixes_layout
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.cli.ask import Asked
    from planner.cli.collector import Collector
    from planner.cli.versus import Asking
    from planner.formats.format import Format as FileFormat
    from planner.launchers.launcher import Launcher
    from planner.plans.plan import Answer, Plan


TOP = 5
"""Layouts that are shown."""


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What ``--emit`` asks for."""

    made: "FileFormat"
    launcher: "Launcher"
    out: Path


@fixes_layout
def plan(
    context: typer.Context,
    model: options.Model,
    cluster: options.Cluster,
    framework: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.frameworks,
            help="megatron, deepspeed, torchtitan, accelerate, or any [of --emit, else megatron; "
            "for adapters accelerate].",
        ),
    ] = None,
    profile: options.Profile = "current",
    settings: options.Settings = None,
    global_batch: Annotated[int | None, typer.Option(help="Batch in sequences.")] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="Batch in tokens, such as 4M.")
    ] = None,
    like: options.Like = None,
    seq_len: options.SeqLen = None,
    tokens: options.Tokens = None,
    optimizer: options.Optimizer = "adam",
    train: options.Train = "full",
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    recompute_modules: options.RecomputeModules = None,
    placement: options.Placement = None,
    precision: options.Precision = None,
    schedule: options.Schedule = None,
    fix: options.Fix = None,
    limit: options.LimitOption = None,
    where: options.Where = None,
    allow: options.Allow = None,
    forbid: options.Forbid = None,
    objective: options.ObjectiveOption = "time",
    deadline: options.Deadline = None,
    min_tokens_per_s: options.MinTokensPerS = None,
    budget: options.Budget = None,
    pareto: options.Pareto = None,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Show the fastest plan of every number of GPUs.")
    ] = False,
    time_limit: options.TimeLimit = None,
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
    top: Annotated[int, typer.Option(min=1, help="Layouts to show.")] = TOP,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show the variants of every layout too.")
    ] = False,
    verbose: options.Verbose = False,
    host_memory: options.HostMemory = None,
    margin: options.Margin = None,
    imbalance: options.Imbalance = None,
    documents: options.Documents = None,
    mtp_layers: options.MtpLayers = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.")
    ] = Format.table,
    save: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    emit: Annotated[
        str | None,
        typer.Option(help="Write the best plan as files of this format, into --out."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for --emit.")] = None,
    launcher: options.LauncherName = None,
    force: options.Force = False,
) -> None:
    """Search all layouts, keep what fits, rank by iteration time or another objective."""
    from planner.cli import ask
    from planner.cli.collector import Collector
    from planner.cli.inputs import place_of
    from planner.cli.progress import delayed_progress
    from planner.cli.versus import Asking
    from planner.report.files import check_writable

    if save is not None:
        check_writable(save, force=force)
    if like is not None:
        from planner.cli.like import with_recipe

        started = with_recipe(
            like,
            cluster=cluster,
            fix=fix or (),
            settings=settings or (),
            global_batch=global_batch,
            global_batch_tokens=global_batch_tokens,
        )
        fix, settings, global_batch = started.fix, started.settings, started.global_batch
    collector = Collector()
    target = collector.read(lambda: _target(emit, out, launcher, force=force))
    options = ask.Options(
        framework=framework,
        profile=profile,
        settings=settings,
        global_batch=global_batch,
        global_batch_tokens=global_batch_tokens,
        seq_len=seq_len,
        tokens=tokens,
        optimizer=optimizer,
        train=train,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        recompute_modules=recompute_modules,
        placement=placement,
        precision=precision,
        schedule=schedule,
        limit=limit,
        where=where,
        allow=allow,
        forbid=forbid,
        objective=objective,
        deadline=deadline,
        min_tokens_per_s=min_tokens_per_s,
        budget=budget,
        pareto=pareto if pareto is not None else "time,gpus" if frontier else "",
        time_limit=time_limit,
        host_memory=host_memory,
        margin=margin,
        imbalance=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
    )
    if versus:
        _refuse_writing(collector, writes=bool(target or save or space), to=output_format)
        _compare(
            Asking(model=model, cluster=cluster, fix=fix or (), options=options),
            versus,
            output_format,
        )
        return
    asked = ask.read(
        model,
        cluster,
        collector=collector,
        made=target.made if target else None,
        fix=fix,
        **options,
    )
    if space:
        _print_space(asked, output_format)
        return
    with delayed_progress() as progress:
        result = asked.answered(top, progress)
    cluster = place_of(cluster, host_memory) or cluster
    if save is not None and result.plans:
        _save(result.plans[0], save, model=model, cluster=cluster)
    if output_format is Format.table:
        from planner.answers.beside import beside_screen
        from planner.cli.following import writing
        from planner.cli.output import console
        from planner.report.text import print_answer

        is_last = result.plans and target is None
        following = writing(context, result.plans[0], asked.made) if is_last else ""
        told = beside_screen(result, verbose=verbose, show_all=show_all)
        print_answer(
            result, told, console(), verbose=verbose, show_all=show_all, following=following
        )
    else:
        _render(result, output_format)
    if not result.plans:
        raise ask.unmet_limits(result)
    if target is not None:
        _emit(result, target, model=model, cluster=cluster, force=force)


def _refuse_writing(collector: "Collector", *, writes: bool, to: Format) -> None:
    """Raise InputError where a comparison is to be written."""
    if writes or to is Format.csv:
        collector.add("--versus", "compares, and writes nothing; without --emit, --save, csv")
    collector.finish()


def _compare(asking: "Asking", versus: list[str], output_format: Format) -> None:
    """Show the best plan as asked beside those of the question asked otherwise."""
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.cli.versus import compare
    from planner.report.versus import print_versus, render_versus_json

    with delayed_progress() as progress:
        found = compare(asking, versus, progress)
    if output_format is Format.json:
        typer.echo(render_versus_json(found))
    else:
        print_versus(found, console())


def _print_space(asked: "Asked", output_format: Format) -> None:
    """Show the space; raises InputError where there is no such form of it."""
    from planner.cli.output import console
    from planner.errors import InputError
    from planner.report.space import print_spaces, render_spaces_json
    from planner.search.space.count import count_space

    if output_format is Format.csv:
        message = "--space has the forms table and json; given csv"
        raise InputError.single("command line", "--format", message)
    spaces = [count_space(context, asked.narrowing) for context in asked.contexts]
    if output_format is Format.json:
        typer.echo(render_spaces_json(spaces, asked.notes))
    else:
        print_spaces(spaces, asked.notes, console())


def _target(
    emit: str | None, out: Path | None, launcher: str | None, *, force: bool
) -> _Target | None:
    """Read the options that belong to ``--emit``; raises InputError."""
    from planner.cli.emit import read_target
    from planner.errors import InputError, Problem
    from planner.report.emitted import ALWAYS
    from planner.report.folder import check_targets

    if emit is None:
        problems = [
            Problem(where="command line", key=option, message="belongs to --emit, which is missing")
            for option, given in (("--out", out), ("--launcher", launcher))
            if given is not None
        ]
        if problems:
            raise InputError(problems)
        return None
    made, starter = read_target(emit, launcher, option="--emit", needs_out=False)
    if out is None:
        message = "writes files, which needs a folder; give --out DIR"
        raise InputError.single("command line", "--emit", message)
    check_targets(out, ALWAYS, force=force)
    return _Target(made=made, launcher=starter, out=out)


def _emit(result: "Answer", target: _Target, *, model: str, cluster: str, force: bool) -> None:
    """Write the best plan of the format's framework."""
    from planner.cli.emit import write
    from planner.cli.inputs import argument_for_file, model_for_file
    from planner.plans.plan_file import plan_text
    from planner.report.emitted import PlanText

    framework = target.made.framework
    best = next((plan for plan in result.plans if plan.framework == framework), result.plans[0])
    model, cluster = model_for_file(model), argument_for_file(cluster)
    text = PlanText(
        text=plan_text(best, model=model, cluster=cluster), model=model, cluster=cluster
    )
    write(
        target.made,
        target.launcher,
        best.context,
        best.strategy,
        text,
        target.out,
        force=force,
    )


def _save(best: "Plan", path: Path, *, model: str, cluster: str) -> None:
    from planner.cli.inputs import argument_for_file, model_for_file
    from planner.plans.plan_file import plan_text
    from planner.report.files import write_atomically

    text = plan_text(best, model=model_for_file(model), cluster=argument_for_file(cluster))
    write_atomically(path, text)
    say(f"saved plan 1 to {path}")


def _render(result: "Answer", output_format: Format) -> None:
    """Write the answer for programs."""
    if output_format is Format.json:
        from planner.answers.beside import beside_document
        from planner.report.json import render_json

        typer.echo(render_json(result, beside_document(result)))
    else:
        from planner.report.tables import render_csv

        typer.echo(render_csv(result), nl=False)
