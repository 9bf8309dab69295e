"""``planner collective``: one collective on one group, by algorithm and by level."""

from enum import StrEnum
from typing import Annotated

import typer

from planner.cli import options
from planner.cli.output import say


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
    plot: options.Plot = False,
    plot_file: options.PlotFile = None,
    force: options.Force = False,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Show what a collective takes by algorithm and level, and in plans."""
    from planner.cli.collective_inputs import read_collective
    from planner.cli.output import console
    from planner.plans.collective import collective_answer
    from planner.report.collective import (
        plot_collective,
        print_collective,
        render_collective_json,
    )
    from planner.report.plot import check_chart

    as_json = output_format is options.TableOrJson.json
    if plot:
        check_chart(None, beside_json=as_json)
    if plot_file is not None:
        check_chart(plot_file, force=force)
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
    if plot:
        plot_collective(answer, None, force=force)
    if plot_file is not None:
        plot_collective(answer, plot_file, force=force)
        say(f"drew the curves into {plot_file}")
