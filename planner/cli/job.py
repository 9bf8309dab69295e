"""``planner job``: days, energy and failures of a whole training job."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.saved import best_of, is_plan, refuse_question, saved_plan
from planner.query.query import Query

if TYPE_CHECKING:
    from planner.answers.job import Job, JobAssumptions
    from planner.notes import Note, Problems

LEAST_GB_PER_S, MOST_GB_PER_S = 1e-3, 1e6


@options.takes(model=options.PlanOrModel, cluster=options.BesideModel)
def job(
    context: typer.Context,
    *,
    query: Query,
    storage: Annotated[
        float | None,
        typer.Option(
            "--storage-gb-per-s",
            "--storage-gbps",
            help="GB (bytes) per second that the file system takes of all nodes together "
            "[0.12 a GPU: Llama 3's].",
        ),
    ] = None,
    node_mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Mean time between failures of one node, such as 200d [264d with 8 GPUs: "
            "Llama 3's].",
        ),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From a failure until the checkpoint is loaded [10m]."),
    ] = None,
    checkpoint_interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Work between checkpoints, such as 1h [Daly's]."),
    ] = None,
    async_checkpoints: Annotated[
        bool,
        typer.Option("--async-checkpoints", help="Only the copy to host memory stops training."),
    ] = False,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = "table",
) -> None:
    """Say what a whole job takes: days with failures, money, energy, checkpoints, input."""
    from planner.cli.output import show_as
    from planner.notes import Problems
    from planner.report.job import print_job, render_job_json

    problems = Problems()
    terms = _terms(
        problems,
        times=(node_mtbf, restart, checkpoint_interval),
        storage=storage,
        is_async=async_checkpoints,
    )
    if is_plan(context, query):
        refuse_question(query, ("tokens",))
        made, notes = _saved(Path(query.model), query.get("tokens"), terms, problems)
    else:
        made, notes = _asked(query, terms, problems)
    made.check()
    show_as(
        output_format,
        partial(render_job_json, made, notes),
        partial(print_job, made, notes, verbose=verbose),
    )


def _terms(
    problems: "Problems",
    *,
    times: tuple[str | None, str | None, str | None],
    storage: float | None,
    is_async: bool,
) -> "JobAssumptions":
    """The terms given; what is wrong with them is noted."""
    from planner.answers.job import JobAssumptions
    from planner.units import GB, parse_duration

    names = ("--node-mtbf", "--restart", "--checkpoint-interval")
    node_mtbf_s, restart_s, interval_s = (
        problems.parsed(name, text, parse_duration) for name, text in zip(names, times, strict=True)
    )
    if storage is not None and not LEAST_GB_PER_S <= storage <= MOST_GB_PER_S:
        allowed = f"{LEAST_GB_PER_S:g} to {MOST_GB_PER_S:g}"
        problems.add("--storage-gb-per-s", f"must be from {allowed}; given {storage:g}")
    return JobAssumptions(
        storage_bytes_per_s=None if storage is None else storage * GB,
        node_mtbf_s=node_mtbf_s,
        restart_s=JobAssumptions().restart_s if restart_s is None else restart_s,
        interval_s=interval_s,
        is_async=is_async,
    )


def _saved(
    path: Path, tokens: str | None, terms: "JobAssumptions", problems: "Problems"
) -> "tuple[Job, tuple[Note, ...]]":
    """The job of a plan file, for so many tokens where they are given."""
    from planner.answers.job import Job

    made = problems.read(lambda: Job(plan=saved_plan(path)[1], terms=terms))
    total = problems.count("--tokens", tokens)
    if made and tokens is None and not made.total_tokens:
        problems.add("--tokens", f"needed: {path} was saved without; such as 15T")
    problems.finish()
    assert made is not None
    return made if total is None else made.of_tokens(total), ()


def _asked(
    query: Query, terms: "JobAssumptions", problems: "Problems"
) -> "tuple[Job, tuple[Note, ...]]":
    """The job of the best plan of a question, and what was assumed."""
    from planner.answers.job import Job

    if query.get("tokens") is None:
        problems.add("--tokens", "needed: tokens of the whole job, such as 15T")
    found = best_of(query, problems=problems)
    return Job(plan=found.plans[0], terms=terms), found.notes
