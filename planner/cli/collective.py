"""``planner collective``: one collective on one group, by algorithm and by level."""

from functools import partial
from typing import Annotated, Any, Literal

import typer

from planner.cli import options
from planner.cli.output import show_as
from planner.notes import Problems
from planner.spelling import did_you_mean

ALL = "all"
Kind = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast", "all-to-all", "p2p"]


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
    output_format: options.OutputFormat = "table",
) -> None:
    """``planner collective``."""
    from planner.answers.collective import CollectiveQuestion, collective_answer, most_whole_ranks
    from planner.catalog.clusters import load_cluster
    from planner.collectives.algorithms import BY_NAME
    from planner.report.collective import print_collective
    from planner.units import parse_bytes

    problems = Problems()
    ways: dict[str, Any] = {"servers": server, "buckets": buckets, "by_priority": priority}
    ways |= {} if backward_s is None else {"backward_s": backward_s}
    ways |= _compression(problems, compress)
    if kind != "all-reduce" and (server or buckets or compress):
        problems.add("COLLECTIVE", "buckets, compression and servers are of an all-reduce")
    if buckets is None and priority:
        problems.add("--priority", "needs --buckets")
    if buckets is None and server is None and backward_s is not None:
        problems.add("--backward-s", "needs --buckets or --server")
    num_bytes = problems.parsed("SIZE", size, parse_bytes)
    machines = problems.read(lambda: load_cluster(cluster))
    # Given with commas; none stands for all that can do it.
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
    note = ""
    if group is None and num_ranks < machines.num_accelerators:
        note = (
            f"the largest group that fills whole units of every level: {num_ranks:,} of "
            f"{machines.num_accelerators:,} ranks; --group takes another"
        )
    question = CollectiveQuestion(
        kind=kind.replace("-", "_"),  # type: ignore[arg-type]
        num_bytes=num_bytes,
        cluster=machines,
        num_ranks=num_ranks,
        algorithms=tuple(dict.fromkeys(names)),
        note=note,
        **ways,
    )
    answer = collective_answer(question)
    screen = partial(print_collective, answer, verbose=verbose)
    show_as(output_format, "collective", lambda: answer, screen)


def _compression(problems: Problems, text: str) -> dict[str, Any]:
    """Return the compression of gradients: the density of ``topk:SHARE``, or 8 bits."""
    name, _, share = text.partition(":")
    if text in ("", "int8"):
        return {"compress": text}
    try:
        density = float(share)
    except ValueError:
        density = 0.0
    if name != "topk" or not 0.0 < density <= 1.0:
        problems.add("--compress", f"must be int8, or topk:SHARE above 0 to 1; given {text!r}")
    return {"compress": "topk", "density": density}
