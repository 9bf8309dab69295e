"""``planner explain`` and ``collective``: where memory and time go."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner.cli import options
from planner.errors import did_you_mean
from planner.limits import number_in
from planner.notes import Note, Problems
from planner.query.query import Query
from planner.report.document import Shown
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
    form=("tree", "json"),
)
def explain(
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
        bool, typer.Option("--all", help="Show every item, and all of what is said of one.")
    ] = False,
    verbose: options.Verbose = False,
) -> Shown:
    """``planner explain``: exits with 3 where the layout does not fit."""
    from planner.answers.explain import MemoryDocument
    from planner.cli.saved import saved_plan
    from planner.cost.estimate import estimate
    from planner.cost.ledger import stage_ledgers
    from planner.cost.stage_model import price
    from planner.report.explain import print_memory

    if not query.cluster or (not item and _is_plan(query.model)):
        item = query.cluster
        options.refuse_all(
            {
                "--recompute-layers": recompute_layers,
                "--layers-per-stage": layers_per_stage,
                "--offload-activations": offload_activations,
            },
            "belongs to a layout (MODEL CLUSTER); a plan has its own",
        )
        plan, file = saved_plan(query)
        priced = plan.context, plan.strategy, plan.estimate
        return _explained(*priced, item, file, show_all=show_all or verbose)
    context, strategy, notes = _layout(
        query, recompute_layers, layers_per_stage, offload_activations
    )
    result, whole = estimate(context, strategy), verbose or show_all
    if item == "memory":
        ledgers = stage_ledgers(price(context, strategy))
        screen = partial(print_memory, context=context, strategy=strategy, memory=result.memory)
        shown = Shown(
            kind="memory",
            found=MemoryDocument.of(context, strategy, result, ledgers, notes),
            screen=partial(screen, ledgers=ledgers, show_all=show_all, verbose=whole),
        )
    else:
        shown = _explained(context, strategy, result, item, show_all=whole)
    return replace(shown, exit_code=0 if result.memory.fits else 3)


def _is_plan(name: str) -> bool:
    """Return True if a file is a plan, or a folder has one; a cluster follows a model."""
    from planner.check.plan import is_plan_file
    from planner.formats.format import read_source
    from planner.report.emitted import PLAN

    path = Path(name)
    path = path / PLAN if path.is_dir() else path
    return path.is_file() and is_plan_file(read_source(path))


def _layout(
    query: Query,
    recompute_layers: int | None,
    layers_per_stage: str | None,
    offload_activations: str | None,
) -> "tuple[Context, Strategy, tuple[Note, ...]]":
    from planner.answers.layout import fill_in, option_problems, requested
    from planner.query.narrowing import (
        one_layout,
        parse_layers,
        parse_offloaded_layers,
    )
    from planner.query.options import FIXED
    from planner.query.resolve import resolve

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
    if query.get("recompute_modules") is not None and request.get("recompute") != "selective":
        problems.add("--recompute-modules", "needs --recompute selective")
    left_open = query.with_(**dict.fromkeys(FIXED))
    asked = resolve(left_open, problems=problems).without_note("margin")
    context, strategy = fill_in(replace(asked.contexts[0], margin_fraction=0.0), request)
    if any(note.subject == "global_batch" for note in asked.notes):
        batch = context.job.global_batch
        asked = asked.with_batch(batch, f"global batch {batch} sequences, in whole micro-batches")
    return context, strategy, asked.notes


def _explained(
    context: "Context",
    strategy: Strategy,
    result: "Estimate",
    item: str,
    file: "PlanFile | None" = None,
    *,
    show_all: bool,
) -> Shown:
    from planner.answers.explain import ExplainDocument
    from planner.report.explain import print_explained

    screen = partial(print_explained, context=context, strategy=strategy, result=result)
    return Shown(
        kind="explain",
        found=ExplainDocument.of(context, strategy, result, item, file),
        screen=partial(screen, show_all=show_all),
    )


ALL = "all"
Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all", "p2p"]


@options.shows()
def collective(
    kind: Annotated[Kind, typer.Argument(help="The collective.", metavar="COLLECTIVE")],
    size: Annotated[
        str,
        typer.Argument(help="Size such as 350GB or 64MiB: vector, gathered vector, send buffer."),
    ],
    cluster: options.Cluster,
    algorithm: Annotated[
        str, typer.Option(help="One, several with commas, or all that can do it.")
    ] = ALL,
    group: Annotated[
        int | None,
        typer.Option(help="Ranks that take part, the first ones [all that fill whole units]."),
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(min=1, help="Reduce gradients in so many equal buckets.")
    ] = None,
    priority: Annotated[
        bool, typer.Option("--priority", help="Those of the first layers overtake the others.")
    ] = False,
    backward_s: Annotated[
        float | None,
        typer.Option(
            "--backward-s", min=0.0, help="Seconds of computation beside buckets or servers."
        ),
    ] = None,
    compress: Annotated[
        str, typer.Option(metavar="topk:0.01|int8", help="Compressed gradients; changes training.")
    ] = "",
    server: Annotated[
        int | None, typer.Option(min=1, help="Gradients by so many parameter servers.")
    ] = None,
    verbose: options.Verbose = False,
) -> Shown:
    """``planner collective``."""
    from planner.answers.collective import collective_answer, most_whole_ranks
    from planner.catalog.clusters import load_cluster
    from planner.collectives.algorithms import BY_NAME
    from planner.report.show import print_collective
    from planner.units import parse_bytes

    problems = Problems()
    ways: dict[str, Any] = {"servers": server, "buckets": buckets, "by_priority": priority}
    ways |= {} if backward_s is None else {"backward_s": backward_s}
    ways |= _compression(problems, compress)
    is_other = kind != "all-reduce" and bool(server or buckets or compress)
    is_alone = buckets is None and server is None and backward_s is not None
    wrong = (
        (is_other, "COLLECTIVE", "buckets, compression and servers are of an all-reduce"),
        (buckets is None and priority, "--priority", "needs --buckets"),
        (is_alone, "--backward-s", "needs --buckets or --server"),
    )
    for is_wrong, option, message in wrong:
        if is_wrong:
            problems.add(option, message)
    num_bytes = problems.parsed("SIZE", size, parse_bytes)
    machines = problems.read(lambda: load_cluster(cluster))
    names = [] if algorithm == ALL else [name.strip() for name in algorithm.split(",")]
    for name in names:
        if name not in BY_NAME:
            hint = did_you_mean(name, BY_NAME) or f"allowed are all, {', '.join(BY_NAME)}"
            problems.add("--algorithm", f"unknown algorithm; given {name!r}, {hint}")
    if machines is not None and group is not None and not 2 <= group <= machines.num_accelerators:
        message = f"must be 2 to {machines.num_accelerators:,}, the cluster's; given {group}"
        problems.add("--group", message)
    if machines is not None and machines.num_accelerators < 2:
        problems.add("CLUSTER", "has one accelerator; a collective needs two")
    problems.finish()
    assert machines is not None
    assert num_bytes is not None
    num_ranks = group or most_whole_ranks(machines)
    is_part = group is None and num_ranks < machines.num_accelerators
    note = (
        f"the largest group that fills whole units of every level: {num_ranks:,} of "
        f"{machines.num_accelerators:,} ranks; --group takes another"
    )
    return Shown(
        kind="collective",
        found=collective_answer(
            kind.replace("-", "_"),  # type: ignore[arg-type]
            num_bytes,
            machines,
            num_ranks,
            names=tuple(dict.fromkeys(names)),
            note=note if is_part else "",
            **ways,
        ),
        screen=partial(print_collective, verbose=verbose),
    )


def _compression(problems: Problems, text: str) -> dict[str, Any]:
    """Return the compression of gradients: the density of ``topk:SHARE``, or 8 bits."""
    name, _, share = text.partition(":")
    if text in ("", "int8"):
        return {"compress": text}
    density = number_in(share)
    if name != "topk" or not 0.0 < density <= 1.0:
        problems.add("--compress", f"must be int8, or topk:SHARE above 0 to 1; given {text!r}")
    return {"compress": "topk", "density": density}
