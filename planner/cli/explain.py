"""``planner explain``: where the memory and time of a plan or a given layout go, item by item."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.options import MEMORY, is_given
from planner.cli.output import show_as
from planner.documents.file import read_text
from planner.notes import Note, Problems
from planner.query.query import Query
from planner.spec.strategy import Strategy

if TYPE_CHECKING:
    from planner.answers.plan_file import PlanFile
    from planner.cost.context import Context
    from planner.cost.estimate import Estimate


@options.takes(
    "job",
    "software",
    "layout",
    refused="one layout is given here, not searched",
    model=options.PLAN_OR_MODEL,
    cluster=options.BESIDE_MODEL,
)
def explain(
    context: typer.Context,
    *,
    query: Query,
    item: Annotated[
        str,
        typer.Argument(
            help="memory, time, or an item such as tensor_parallel; of a plan the second word.",
            metavar="[ITEM]",
        ),
    ] = "",
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
    show_all: Annotated[
        bool, typer.Option("--all", help="Of a layout's memory: show every item.")
    ] = False,
    verbose: options.Verbose = False,
    output_format: options.TreeFormat = "tree",
) -> None:
    """``planner explain``: exits with 3 where the layout does not fit."""
    from planner.answers.explain import MemoryDocument, memory_answer
    from planner.cli.saved import is_plan, read_saved, refuse_question
    from planner.cost.estimate import estimate
    from planner.report.explain import print_memory_answer

    if context.info_name == MEMORY:
        item = MEMORY
    elif is_plan(context, query) or (not item and _is_plan_file(query.model)):
        item = "" if is_plan(context, query) else query.cluster
        own = ("recompute_layers", "layers_per_stage", "offload_activations")
        given = (f"--{name.replace('_', '-')}" for name in own if is_given(context, name))
        options.refuse_all(given, "belongs to a layout (MODEL CLUSTER); a plan has its own")
        refuse_question(query)
        plan, file = read_saved(Path(query.model))
        _print(plan.context, plan.strategy, plan.estimate, item, file, output_format)
        return
    model_context, strategy, notes = _layout(
        query, recompute_layers, layers_per_stage, offload_activations
    )
    if item == MEMORY:
        answer = memory_answer(model_context, strategy, notes)
        fits, whole = answer.estimate.memory.fits, verbose or show_all
        screen = partial(print_memory_answer, answer, show_all=show_all, verbose=whole)
        show_as(output_format, "memory", partial(MemoryDocument.of_answer, answer), screen)
    else:
        result = estimate(model_context, strategy)
        fits = result.memory.fits
        _print(model_context, strategy, result, item, None, output_format)
    if not fits:
        raise typer.Exit(3)


def _is_plan_file(name: str) -> bool:
    """Return True if a file is a plan, or a folder has one; a cluster follows a model."""
    from planner.report.emitted import PLAN

    path = Path(name)
    path = path / PLAN if path.is_dir() else path
    if not path.is_file():
        return False
    return any(line.startswith("strategy:") for line in read_text(path).splitlines())


def _layout(
    query: Query,
    recompute_layers: int | None,
    layers_per_stage: str | None,
    offload_activations: str | None,
) -> "tuple[Context, Strategy, tuple[Note, ...]]":
    from planner.answers.layout import option_problems, requested, resolve
    from planner.query import resolve as question
    from planner.query.narrowing import (
        one_layout,
        parse_layers,
        parse_offloaded_layers,
        without_layout,
    )

    problems = Problems()
    request = requested(
        **one_layout(query, problems),
        global_batch=query.get("global_batch"),
        recompute_layers=recompute_layers,
        offloaded_layers=problems.parsed(
            "--offload-activations", offload_activations, parse_offloaded_layers
        ),
        layers_per_stage=problems.parsed("--layers-per-stage", layers_per_stage, parse_layers),
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
    return context, strategy, asked.notes


def _print(
    context: "Context",
    strategy: Strategy,
    result: "Estimate",
    item: str,
    file: "PlanFile | None",
    output_format: str,
) -> None:
    from planner.answers.explain import ExplainDocument
    from planner.report.explain import print_explained

    document = ExplainDocument.of(context, strategy, result, item, file)
    screen = partial(print_explained, context, strategy, result, document)
    show_as(output_format, "explain", lambda: document, screen)
