"""``planner job``: days, energy and failures of a whole training job."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from planner.answers.job import Job, JobAssumptions
from planner.cli import options
from planner.cli.output import show_as
from planner.cli.saved import best_of, is_plan, refuse_question, saved_plan
from planner.notes import Note, Problems
from planner.query.query import Query
from planner.report.job import job_document, print_job
from planner.units import GB, parse_duration


@options.takes(model=options.PLAN_OR_MODEL, cluster=options.BESIDE_MODEL)
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
    """``planner job``."""
    problems = Problems()
    times = {
        "--node-mtbf": node_mtbf,
        "--restart": restart,
        "--checkpoint-interval": checkpoint_interval,
    }
    node_mtbf_s, restart_s, interval_s = (
        problems.parsed(name, text, parse_duration) for name, text in times.items()
    )
    if storage is not None and not 1e-3 <= storage <= 1e6:
        problems.add("--storage-gb-per-s", f"must be from 0.001 to 1e+06; given {storage:g}")
    terms = JobAssumptions(
        storage_bytes_per_s=None if storage is None else storage * GB,
        node_mtbf_s=node_mtbf_s,
        restart_s=JobAssumptions().restart_s if restart_s is None else restart_s,
        interval_s=interval_s,
        is_async=async_checkpoints,
    )
    notes: tuple[Note, ...] = ()
    tokens, path = query.get("tokens"), Path(query.model)
    if is_plan(context, query):
        refuse_question(query, ("tokens",))
        read = problems.read(lambda: Job(plan=saved_plan(path)[1], terms=terms))
        total = problems.count("--tokens", tokens)
        if read and tokens is None and not read.total_tokens:
            problems.add("--tokens", f"needed: {path} was saved without; such as 15T")
        problems.finish()
        assert read is not None
        made = read if total is None else read.of_tokens(total)
    else:
        if tokens is None:
            problems.add("--tokens", "needed: tokens of the whole job, such as 15T")
        found = best_of(query, problems=problems)
        made, notes = Job(plan=found.plans[0], terms=terms), found.notes
    made.check()
    screen = partial(print_job, made, notes, verbose=verbose)
    show_as(output_format, "job", partial(job_document, made, notes), screen)
