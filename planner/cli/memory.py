"""``planner memory``: the memory of one given configuration, without search."""

from typing import Annotated

import typer

from planner.cli import options
from planner.query.query import Query


@options.takes("job", "software", "layout", refused="one layout is given here, not searched")
def memory(
    *,
    query: Query,
    recompute_layers: Annotated[
        int | None, typer.Option(help="Layers per stage under the policy [all].")
    ] = None,
    layers_per_stage: Annotated[
        str | None, typer.Option(help="Layers of every stage, such as 10,11,11,10 [even].")
    ] = None,
    offload_activations: Annotated[
        str | None,
        typer.Option(help="Layers per stage, or all, whose activations go to the host [none]."),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every item.")] = False,
    verbose: options.Verbose = False,
    output_format: options.TreeFormat = options.TreeOrJson.tree,
) -> None:
    """Show where one configuration's memory goes, per stage, and what would save how much."""
    from dataclasses import replace

    from planner.cli.output import console
    from planner.notes import Problems
    from planner.plans.layout import option_problems, requested, resolve
    from planner.plans.memory import memory_answer
    from planner.query import resolve as question
    from planner.query.layout import (
        one_layout,
        parse_offloaded_layers,
        read_layers,
        without_layout,
    )
    from planner.report.memory import print_memory_answer, render_memory_json

    problems = Problems()
    request = requested(
        **one_layout(query, problems),
        global_batch=query.get("global_batch"),
        recompute_layers=recompute_layers,
        offloaded_layers=problems.parsed(
            "--offload-activations", offload_activations, parse_offloaded_layers
        ),
        layers_per_stage=problems.read(lambda: read_layers(layers_per_stage)),
    )
    for option, message in option_problems(request):
        problems.add(option, message)
    if query.get("framework") == "any":
        problems.add("--framework", "one framework is needed here; given any")
    if query.get("recompute_modules") is not None and request.recompute != "selective":
        problems.add("--recompute-modules", "needs --recompute selective")
    asked = question.resolve(without_layout(query), problems=problems)
    asked = asked.without_note("margin")
    context, strategy = resolve(replace(asked.contexts[0], margin_fraction=0.0), request)
    if any(note.subject == "global_batch" for note in asked.notes):
        batch = context.job.global_batch
        asked = asked.with_batch(batch, f"global batch {batch} sequences, in whole micro-batches")
    answer = memory_answer(context, strategy, asked.notes)
    if output_format is options.TreeOrJson.json:
        typer.echo(render_memory_json(answer))
    else:
        whole = verbose or show_all
        print_memory_answer(answer, console(), show_all=show_all, verbose=whole)
    if not answer.estimate.memory.fits:
        raise typer.Exit(3)
