"""``planner job``: days, energy and failures of a whole training job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import completion, options
from planner.cli.question import Question, asks
from planner.cli.saved import (
    ARGUMENT,
    is_plan,
    plan_file,
    read_saved,
    refuse_question,
)

if TYPE_CHECKING:
    from planner.cli.collector import Collector
    from planner.plans.job import Job, Terms

OF_ANY_PLAN = (
    *("context", "model", "cluster", "tokens", "verbose", "output_format"),
    *("storage", "node_mtbf", "restart", "checkpoint_interval", "async_checkpoints"),
)
"""What a saved plan takes too."""
LEAST_GB_PER_S, MOST_GB_PER_S = 1e-3, 1e6


@asks
def job(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar=ARGUMENT,
            autocompletion=completion.models,
            help="Plan file of --save, folder of --emit; or a model, as `planner plan` takes it.",
        ),
    ],
    cluster: options.BesideModel = None,
    *,
    question: Question,
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
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Say what a whole job takes: days with failures, money, energy, checkpoints, input."""
    from planner.cli.collector import Collector
    from planner.cli.output import console
    from planner.report.job import print_job, render_job_json

    collector = Collector()
    terms = _terms(
        collector,
        times=(node_mtbf, restart, checkpoint_interval),
        storage=storage,
        is_async=async_checkpoints,
    )
    if is_plan(context, model, cluster):
        refuse_question(context, model, OF_ANY_PLAN)
        made, notes = _saved(Path(model), collector, question["tokens"], terms)
    else:
        made, notes = _asked(model, cluster or "", collector, question, terms)
    made.check()
    if output_format is options.TableOrJson.json:
        typer.echo(render_job_json(made, notes))
    else:
        print_job(made, notes, console(), verbose=verbose)


def _terms(
    collector: "Collector",
    *,
    times: tuple[str | None, str | None, str | None],
    storage: float | None,
    is_async: bool,
) -> "Terms":
    """The terms given; what is wrong with them is noted."""
    from planner.plans.job import Terms
    from planner.units import GB, parse_duration

    names = ("--node-mtbf", "--restart", "--checkpoint-interval")
    node_mtbf_s, restart_s, interval_s = (
        collector.parsed(name, text, parse_duration)
        for name, text in zip(names, times, strict=True)
    )
    if storage is not None and not LEAST_GB_PER_S <= storage <= MOST_GB_PER_S:
        allowed = f"{LEAST_GB_PER_S:g} to {MOST_GB_PER_S:g}"
        collector.add("--storage-gb-per-s", f"must be from {allowed}; given {storage:g}")
    return Terms(
        storage_bytes_per_s=None if storage is None else storage * GB,
        node_mtbf_s=node_mtbf_s,
        restart_s=Terms().restart_s if restart_s is None else restart_s,
        interval_s=interval_s,
        is_async=is_async,
    )


def _saved(
    path: Path, collector: "Collector", tokens: str | None, terms: "Terms"
) -> "tuple[Job, tuple[str, ...]]":
    """The job of a plan file, for so many tokens where they are given."""
    made = collector.read(lambda: _of_file(path, terms))
    total = collector.count("--tokens", tokens)
    if made and tokens is None and not made.total_tokens:
        collector.add("--tokens", f"needed: {path} was saved without; such as 15T")
    collector.finish()
    assert made is not None
    return made if total is None else made.of_tokens(total), ()


def _of_file(path: Path, terms: "Terms") -> "Job":
    from planner.plans.job import Job

    return Job(plan=read_saved(plan_file(path))[0], terms=terms)


def _asked(
    model: str, cluster: str, collector: "Collector", question: Question, terms: "Terms"
) -> "tuple[Job, tuple[str, ...]]":
    """The job of the best plan of a question, and what was assumed."""
    from planner.cli import ask
    from planner.cli.progress import delayed_progress
    from planner.plans.job import Job

    if question["tokens"] is None:
        collector.add("--tokens", "needed: tokens of the whole job, such as 15T")
    asked = ask.read(model, cluster, collector=collector, **question)
    with delayed_progress() as progress:
        found = asked.answered(1, progress)
    if not found.plans:
        raise ask.unmet_limits(found)
    return Job(plan=found.plans[0], terms=terms), found.notes
