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
    *("power_percent", "pue", "grid"),
)
"""What a saved plan takes too."""
MOST_PUE, MOST_G_PER_KWH, MOST_GB_PER_S = 10.0, 5000.0, 1e6


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
    power_percent: Annotated[
        float | None,
        typer.Option(help="Percent of rated power drawn in the mean [82 of nodes, 100 of boards]."),
    ] = None,
    pue: Annotated[
        float | None, typer.Option(help="Power of the data centre over its machines' [1.1].")
    ] = None,
    grid: Annotated[
        float | None,
        typer.Option("--grid-gco2-per-kwh", help="Carbon of electricity [445, the world's]."),
    ] = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Say what a whole job takes: days with failures, money, energy, carbon, checkpoints, input."""
    from planner.cli.collector import Collector
    from planner.cli.output import console
    from planner.report.job import print_job, render_job_json

    collector = Collector()
    terms = _terms(
        collector,
        times=(node_mtbf, restart, checkpoint_interval),
        numbers=(storage, power_percent, pue, grid),
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
    numbers: tuple[float | None, float | None, float | None, float | None],
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
    storage, percent, pue, grid = numbers
    usual = Terms()
    for name, value, least, most in (
        ("--storage-gb-per-s", storage, 1e-3, MOST_GB_PER_S),
        ("--power-percent", percent, 1.0, 100.0),
        ("--pue", pue, 1.0, MOST_PUE),
        ("--grid-gco2-per-kwh", grid, 0.0, MOST_G_PER_KWH),
    ):
        if value is not None and not least <= value <= most:
            collector.add(name, f"must be from {least:g} to {most:g}; given {value:g}")
    return Terms(
        storage_bytes_per_s=None if storage is None else storage * GB,
        node_mtbf_s=node_mtbf_s,
        restart_s=usual.restart_s if restart_s is None else restart_s,
        interval_s=interval_s,
        is_async=is_async,
        drawn_fraction=None if percent is None else percent / 100.0,
        pue=usual.pue if pue is None else pue,
        grid_g_per_kwh=usual.grid_g_per_kwh if grid is None else grid,
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
    from planner.plans.job import job_of

    return job_of(read_saved(plan_file(path))[0], terms)


def _asked(
    model: str, cluster: str, collector: "Collector", question: Question, terms: "Terms"
) -> "tuple[Job, tuple[str, ...]]":
    """The job of the best plan of a question, and what was assumed."""
    from planner.cli import ask
    from planner.cli.progress import delayed_progress
    from planner.plans.job import job_of

    if question["tokens"] is None:
        collector.add("--tokens", "needed: tokens of the whole job, such as 15T")
    asked = ask.read(model, cluster, collector=collector, **question)
    with delayed_progress() as progress:
        found = asked.answered(1, progress)
    if not found.plans:
        raise ask.unmet_limits(found)
    return job_of(found.plans[0], terms), found.notes
