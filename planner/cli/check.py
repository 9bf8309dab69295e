"""``planner check``: what is wrong with configuration files, for people and for CI."""

from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options

if TYPE_CHECKING:
    from planner.check.result import FileResult
    from planner.query.from_file import Request

DEFAULT_TIME_LIMIT_S = 30.0


class Format(StrEnum):
    """Forms of the findings."""

    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"
    junit = "junit"


class FailOn(StrEnum):
    """Severities, worst first."""

    error = "error"
    warning = "warning"
    note = "note"


def check(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Configuration and plan files, or folders of them."),
    ],
    model: Annotated[str | None, typer.Option(help="Model name, YAML file or config.json.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help=f"{options.NODES_OF_A_KIND}, or a YAML file.")
    ] = None,
    framework: options.FileFormat = None,
    gpus: options.JobGpus = None,
    seq_len: options.FileSeqLen = None,
    global_batch: options.FileGlobalBatch = None,
    imbalance: options.Imbalance = None,
    documents: options.Documents = None,
    host_memory: options.HostMemory = None,
    profile: options.FileProfile = None,
    settings: options.Settings = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Least severity that makes the exit code 1 [error].")
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What a script or recipe decides: recompute=none|selective|full, optimizer, "
            "precision, micro_batch, zero_stage, tp, pp, cp, ep; repeatable.",
        ),
    ] = None,
    advice: Annotated[
        bool, typer.Option("--advice/--no-advice", help="Search for a faster plan.")
    ] = True,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Pass over files that no format recognises.")
    ] = False,
    time_limit: options.TimeLimit = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Form of the findings.")
    ] = Format.text,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Find the fewest changes that make the file legal and fit."),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="With --fix: edit it in place.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the findings, with --fix the fixed copy, to this file."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Find what is wrong with configuration files, and fix it; planner.toml says the rest."""
    from planner.check.check import check_file
    from planner.check.folder import check_folder
    from planner.check.result import exit_code
    from planner.cli.fix import FixOptions, refuse
    from planner.cli.fix import fix as fix_one
    from planner.cli.progress import delayed_progress
    from planner.query.from_file import Request, read_assumed, read_software
    from planner.query.query import read_options
    from planner.report.files import check_writable, write_atomically

    read = read_options(time_limit=time_limit, imbalance=imbalance)
    if apply and not fix:
        refuse("--apply", "is for --fix")
    if fix and len(files) > 1:
        refuse("--fix", f"one file at a time (--cluster names the cluster); given {len(files)}")
    if fix and output_format not in (Format.text, Format.json):
        refuse("--format", f"{output_format.value} is of findings; with --fix it is text or json")
    if out is not None and not fix:
        check_writable(out, force=force, option="--out")
    given = Request(
        model=model,
        cluster=cluster,
        num_gpus=gpus,
        seq_len=seq_len,
        global_batch=global_batch,
        imbalance_fraction=None if imbalance is None else imbalance / 100,
        documents=documents,
        software=read_software(profile, settings),
        assumed=read_assumed(assume or ()),
        with_advice=advice,
        time_limit_s=read.get("time_limit", DEFAULT_TIME_LIMIT_S),
    )
    request_for = partial(
        _with_settings, given, framework=framework, host_memory=host_memory, fail_on=fail_on
    )
    if fix:
        said = {
            "--model": model,
            "--gpus": gpus,
            "--seq-len": seq_len,
            "--global-batch": global_batch,
            "--imbalance": imbalance,
            "--documents": documents,
            "--profile": profile,
            "--set": settings or None,
            "--assume": assume or None,
        }
        how = FixOptions(
            apply=apply,
            out=out,
            force=force,
            as_json=output_format is Format.json,
            of_job=tuple(option for option, value in said.items() if value is not None),
        )
        fix_one(files[0], request_for(files[0]), how)
        return
    results = []
    with delayed_progress() as progress:
        for number, name in enumerate(files):
            progress(f"checking {name}", number / len(files))
            if Path(name).is_dir():
                results += check_folder(name, request_for(f"{name}/plan.yaml"))
            else:
                results.append(check_file(name, request_for(name)))
    if skip_unknown:
        results = [result for result in results if result.is_recognised]
    if out is None:
        _print(results, output_format)
    else:
        write_atomically(out, _text(results, output_format), option="--out")
    raise typer.Exit(exit_code(results))


def _with_settings(
    given: "Request",
    name: str,
    *,
    framework: str | None,
    host_memory: str | None,
    fail_on: FailOn | None,
) -> "Request":
    """Options first, then the settings nearest to the file."""
    from planner.check.settings import settings_for
    from planner.query.from_file import AUTO

    project = settings_for(Path(name))
    cluster = given.cluster or project.cluster
    if host_memory is not None:
        from planner.query.places import place_of

        cluster = place_of(cluster, host_memory)
    return replace(
        given,
        model=given.model or project.model,
        cluster=cluster,
        framework=framework or project.framework or AUTO,
        num_gpus=given.num_gpus or project.gpus,
        seq_len=given.seq_len or project.seq_len,
        global_batch=given.global_batch or project.global_batch,
        fail_on=fail_on.value if fail_on else project.fail_on or "error",
        ignore=project.ignore,
    )


def _print(results: "list[FileResult]", output_format: Format) -> None:
    from planner.cli.output import console
    from planner.report.findings import print_findings

    if output_format is Format.text:
        print_findings(results, console())
    else:
        typer.echo(_text(results, output_format), nl=False)


def _text(results: "list[FileResult]", output_format: Format) -> str:
    """The findings in a form that is the same on every terminal."""
    from planner.report.findings import RENDERERS

    text = RENDERERS[output_format](results)
    return f"{text}\n" if text else ""
