"""``planner size``: the smallest cluster that does a job in time and within a budget."""

from typing import Annotated

import typer

from planner.cli import options
from planner.query.query import Query

DEFAULT_MAX_GPUS = 65536
BATCHES = ("global_batch", "global_batch_tokens")


@options.takes(
    *options.OF_THE_FASTEST,
    "limits",
    refused="`size` asks for the fewest GPUs",
    cluster=options.NodeOrAccelerator,
)
def size(
    *,
    query: Query,
    max_gpus: Annotated[
        int | None,
        typer.Option(help="Largest cluster to look at [65536; without limits a few times enough]."),
    ] = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Find the fewest GPUs that do a job in time, or just hold it, and the sizes around them."""
    from functools import partial

    from planner.answers.deadline import Deadline
    from planner.answers.size import Sizer, nothing_at_any_size
    from planner.answers.whatif import Case
    from planner.catalog.clusters import load_cluster_of
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.notes import Problems
    from planner.query.job import fixed_batch, growing_clusters, read_largest
    from planner.query.places import with_host_memory
    from planner.query.resolve import resolve
    from planner.report.sizing import print_sizing, render_sizing_json
    from planner.report.sizing_words import no_size

    problems = Problems()
    node = with_host_memory(query.cluster, query.get("host_memory"), Problems())
    most = max_gpus if max_gpus is not None else DEFAULT_MAX_GPUS
    largest = read_largest(node, most, problems)
    if query.get("tokens") is None and query.get("min_tokens_per_s") is not None:
        problems.add("--min-tokens-per-s", "needs --tokens, the tokens of the whole job")
    if query.get("budget") and not (query.get("deadline") or query.get("min_tokens_per_s")):
        problems.add("--deadline", "needed (or --min-tokens-per-s), such as 30d; given none")
    num_gpus = largest.num_accelerators if largest else 1
    resolved = resolve(query, num_gpus=num_gpus, problems=problems)
    if all(query.get(name) is None for name in BATCHES):
        resolved = resolved.with_batch(*fixed_batch(resolved.contexts[0].job.seq_len))
    limits, deadline = resolved.aim.limits, Deadline(resolved.time_limit_s)
    case = Case(contexts=resolved.contexts, narrowing=resolved.narrowing)
    with delayed_progress() as progress:
        sizer = Sizer(
            limits=limits,
            cluster_of=partial(load_cluster_of, node),
            deadline=deadline,
            progress=progress,
        )
        if limits.is_empty and max_gpus is None:
            result = sizer.fewest(case, partial(growing_clusters, node, most))
        else:
            larger = read_largest(node, max(most, DEFAULT_MAX_GPUS), problems)
            result = sizer.sizing(case, larger)
    if not result.sizes and not result.is_complete:
        raise deadline.nothing_found()
    if not result.sizes:
        raise nothing_at_any_size(result)
    if output_format is options.TableOrJson.json:
        typer.echo(render_sizing_json(result, resolved.notes))
    else:
        print_sizing(result, resolved.notes, console(), verbose=verbose)
    if result.chosen is None:
        raise no_size(result)
