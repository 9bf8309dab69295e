"""``planner collective``: one collective on one group, by algorithm and by level."""

from enum import StrEnum
from typing import Annotated

import typer

from planner.cli import options


class KindName(StrEnum):
    """Collectives as they are typed."""

    all_reduce = "all-reduce"
    reduce_scatter = "reduce-scatter"
    all_gather = "all-gather"
    broadcast = "broadcast"
    all_to_all = "all-to-all"
    p2p = "p2p"


def collective(
    kind: Annotated[KindName, typer.Argument(help="The collective.", metavar="COLLECTIVE")],
    size: Annotated[
        str,
        typer.Argument(help="Size such as 350GB or 64MiB: vector, gathered vector, send buffer."),
    ],
    cluster: options.Cluster,
    algorithm: Annotated[
        str, typer.Option(help="One, several with commas, or all that can do it.")
    ] = "all",
    group: Annotated[
        int | None,
        typer.Option(help="Ranks that take part, the first ones [all that fill whole units]."),
    ] = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Show what a collective takes by algorithm and level, and in plans."""
    from planner.cli.collective_inputs import read_collective
    from planner.cli.output import console
    from planner.plans.collective import collective_answer
    from planner.report.collective import (
        print_collective,
        render_collective_json,
    )

    as_json = output_format is options.TableOrJson.json
    question = read_collective(
        kind=kind.name,
        size=size,
        cluster=cluster,
        algorithm=algorithm,
        group=group,
    )
    answer = collective_answer(question)
    if as_json:
        typer.echo(render_collective_json(answer))
    else:
        print_collective(answer, console(), verbose=verbose)
