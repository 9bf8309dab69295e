"""``planner scale``: strong and weak scaling, and where each limit bites."""

from typing import Annotated

import typer

from planner.cli import options
from planner.cli.output import say
from planner.query.query import Query

BATCHES = ("global_batch", "global_batch_tokens")


@options.takes(
    *options.OF_THE_FASTEST,
    refused="`scale` asks for the fastest plan of every size",
    cluster=options.NodeOrAccelerator,
)
def scale(
    *,
    query: Query,
    gpus: Annotated[
        str, typer.Option(help="Numbers of GPUs: 8..65536 (doubling) or 8,24,64.")
    ] = "8..1024",
    weak: Annotated[bool, typer.Option("--weak", help="Let the batch grow with the GPUs.")] = False,
    days: Annotated[
        float | None, typer.Option(help="Days the whole job may take; needs --tokens.")
    ] = None,
    plot: options.Plot = False,
    plot_file: options.PlotFile = None,
    force: options.Force = False,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Search the best plan at every size; show efficiency and what limits it."""
    from functools import partial

    from planner.answers.deadline import Deadline
    from planner.answers.scale import nothing_scales, scaling
    from planner.answers.whatif import Case
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.notes import Note, NoteKind, Problems
    from planner.query.job import read_clusters, weak_batch
    from planner.query.places import with_host_memory
    from planner.query.resolve import resolve
    from planner.report.plot import check_chart
    from planner.report.scaling import plot_scaling, print_scaling, render_scaling_json

    problems = Problems()
    node = with_host_memory(query.cluster, query.get("host_memory"), Problems())
    clusters = read_clusters(node, gpus, problems)
    if days is not None and (query.get("tokens") is None or not days > 0):
        problems.add("--days", f"must be above 0, with --tokens; given {days:g}")
    as_json = output_format is options.TableOrJson.json
    if plot:
        problems.read(partial(check_chart, None, beside_json=as_json))
    if plot_file is not None:
        problems.read(partial(check_chart, plot_file, force=force))
    num_gpus = clusters[-1].num_accelerators if clusters else 1
    resolved = resolve(query, num_gpus=num_gpus, problems=problems)
    if weak:
        job = resolved.contexts[0].job
        is_stated = any(query.get(name) is not None for name in BATCHES)
        given = job.global_batch if is_stated else None
        resolved = resolved.with_batch(*weak_batch(clusters, job.seq_len, given))
    texts = resolved.narrowing.texts
    said = [Note(kind=NoteKind.given, text=f"given: {', '.join(texts)}")] if texts else []
    notes = (*said, *resolved.notes)
    with delayed_progress() as progress:
        deadline = Deadline(resolved.time_limit_s)
        result = scaling(
            Case(contexts=resolved.contexts, narrowing=resolved.narrowing),
            clusters,
            is_weak=weak,
            deadline=deadline,
            progress=progress,
        )
    if not result.fitting and result.late_at:
        raise deadline.nothing_found()
    if not result.fitting:
        raise nothing_scales(resolved.contexts[0], result)
    if as_json:
        typer.echo(render_scaling_json(result, notes))
    else:
        print_scaling(result, notes, days, console(), verbose=verbose)
    if plot:
        plot_scaling(result)
    if plot_file is not None:
        plot_scaling(result, path=plot_file, force=force)
        say(f"saved the curves to {plot_file}")
