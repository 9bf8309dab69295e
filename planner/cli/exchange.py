"""``planner exchange``: other ways to keep the replicas of a saved plan in step."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options


def exchange(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save, or folder of --emit.")],
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="NAME[:KEY=NUMBER]",
            help="Only these, such as powersgd:rank=2 or diloco:every=100; several with commas; "
            "repeatable [all, with usual numbers].",
        ),
    ] = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Price compressed, local and asynchronous exchanges between replicas, and bucket sizes."""
    from planner.cli.collector import Collector
    from planner.cli.output import console
    from planner.cli.saved import saved_plan
    from planner.plans.exchange import USUAL, exchanges
    from planner.report.exchange import print_exchanges, render_exchanges_json
    from planner.spec.exchange import read_exchange

    collector = Collector()
    found = collector.read(lambda: saved_plan(plan))
    words = [word for text in ways or () for word in text.split(",")]
    asked = [collector.parsed("--way", word, read_exchange) for word in words]
    collector.finish()
    assert found is not None
    answer = exchanges(found[1], [each for each in asked if each is not None] or USUAL)
    if output_format is options.TableOrJson.json:
        typer.echo(render_exchanges_json(answer))
    else:
        print_exchanges(answer, console(), verbose=verbose)
