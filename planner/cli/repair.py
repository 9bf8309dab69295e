"""``planner repair``: the smallest edit that makes a plan or a configuration legal and fit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.plans.plan_file import PlanFile


def _margin_fraction(percent: float | None) -> float | None:
    from planner.errors import InputError

    if percent is None:
        return None
    if not 0.0 <= percent < 100.0:
        message = f"must be from 0 to below 100 percent; given {percent}"
        raise InputError.single("command line", "--margin", message)
    return percent / 100.0


def _search_command(file: "PlanFile", context: "Context", cluster: str) -> str:
    """``planner plan`` with the plan's own question."""
    import shlex

    from planner.plans.trait_settings import software_options

    inputs, job = file.inputs, context.job
    words = ["planner", "plan", inputs.model, cluster, "--framework", inputs.framework]
    words += software_options(context.traits)
    words += ["--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)]
    words += ["--precision", job.precision, "--optimizer", inputs.optimizer]
    words += context.traits.training.options
    words += ["--margin", f"{100.0 * context.margin_fraction:g}"]
    return shlex.join(words)


def repair(
    file: Annotated[Path, typer.Argument(help="Plan file, or configuration file of any format.")],
    cluster: Annotated[
        str | None,
        typer.Argument(
            help=f"{options.NODES_OF_A_KIND}, or a YAML file [planner.toml's, the plan's]."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model of a configuration file.")] = None,
    framework: options.FileFormat = None,
    gpus: options.JobGpus = None,
    seq_len: options.FileSeqLen = None,
    global_batch: options.FileGlobalBatch = None,
    host_memory: options.HostMemory = None,
    profile: options.FileProfile = None,
    settings: options.Settings = None,
    margin: Annotated[
        float | None, typer.Option(help="Percent of HBM to leave free [the plan's].")
    ] = None,
    time_limit: options.TimeLimit = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
    apply: Annotated[bool, typer.Option("--apply", help="Edit the file in place.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the edited copy to this file.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the repaired plan to this file.")] = None,
    force: options.Force = False,
) -> None:
    """Find the fewest changes that make a plan or a configuration legal and fit on a cluster."""
    from planner.check.job import AUTO
    from planner.check.recognise import check_format_name, is_plan_file
    from planner.check.settings import settings_for
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.cli.inputs import place_of
    from planner.cli.repair_file import Given, repair_configuration
    from planner.cli.software import read_software
    from planner.formats.source import read_source

    collector = Collector()
    limit_s = read_time_limit(collector, time_limit)
    collector.finish()
    target = _target(file, apply=apply, out=out, save=save, force=force)
    project = settings_for(file)
    name = framework or project.framework or AUTO
    check_format_name(name)
    source = read_source(file)
    margin_fraction = _margin_fraction(margin)
    as_json = output_format is options.TableOrJson.json
    if is_plan_file(source, name):
        _refuse_for_plans(
            model=model,
            gpus=gpus,
            seq_len=seq_len,
            global_batch=global_batch,
            profile=profile,
            set=settings or None,
        )
        place = place_of(cluster or project.cluster, host_memory)
        _repair_plan(
            file, place, margin_fraction, limit_s, target=target, as_json=as_json, verbose=verbose
        )
        return
    if save is not None:
        _refuse("--save", "writes plan files; --out writes this one")
    given = Given(
        cluster=place_of(cluster or project.cluster, host_memory),
        model=model,
        framework=framework,
        gpus=gpus,
        seq_len=seq_len,
        global_batch=global_batch,
        software=read_software(profile, settings),
        margin_fraction=margin_fraction,
        time_limit_s=limit_s,
    )
    repair_configuration(source, given, target=target, as_json=as_json, verbose=verbose)


def _refuse(option: str, message: str) -> NoReturn:
    from planner.errors import InputError

    raise InputError.single("command line", option, message)


def _refuse_for_plans(**options_given: object) -> None:
    """A plan file knows its own job."""
    for name, value in options_given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            _refuse(option, "is for configuration files; a plan file states its own")


def _target(
    file: Path, *, apply: bool, out: Path | None, save: Path | None, force: bool
) -> Path | None:
    """Where the repair is to be written; None: nowhere."""
    from planner.report.files import check_replaceable, check_writable

    if sum((apply, out is not None, save is not None)) > 1:
        _refuse("--apply", "only one of --apply, --out and --save can be given")
    if apply:
        check_replaceable(file, option="--apply")
        return file
    if out is not None:
        check_writable(out, force=force, option="--out")
    if save is not None:
        check_writable(save, force=force)
    return out or save


def _repair_plan(
    plan: Path,
    cluster: str | None,
    margin_fraction: float | None,
    time_limit_s: float | None,
    *,
    target: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Repair a plan file for a cluster, its own where none is given."""
    from planner.cli.inputs import argument_for_file
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.plans.plan_file import plan_text
    from planner.plans.repair import own_context, read_for_repair, repaired_plan
    from planner.plans.repair import repair as find_repair
    from planner.report.files import write_atomically
    from planner.report.repair import print_repair, render_repair_json

    context, strategy, file = read_for_repair(plan, cluster, margin_fraction)
    with delayed_progress() as progress:
        answer = find_repair(
            context,
            strategy,
            own=own_context(plan),
            time_limit_s=time_limit_s,
            progress=progress,
        )
    place = cluster or file.inputs.cluster
    command = _search_command(file, context, place)
    if as_json:
        typer.echo(render_repair_json(answer, plan=str(plan), command=command))
    else:
        print_repair(answer, console(), plan=str(plan), command=command, verbose=verbose)
    chosen = repaired_plan(answer)
    if chosen is None:
        raise typer.Exit(3)
    if target == plan and answer.is_sound:
        say(f"{plan} stays as it is")
    elif target is not None:
        text = plan_text(chosen, model=file.inputs.model, cluster=argument_for_file(place))
        write_atomically(target, text)
        say(f"saved the plan to {target}")
