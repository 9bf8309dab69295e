"""``planner explain``: where a saved plan's memory and time go, item by item."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.saved import say_drift

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.cost.estimate import Estimate
    from planner.spec.strategy import Strategy


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    what: Annotated[
        str,
        typer.Argument(help="memory, time, or an item such as tensor_parallel.", metavar="[ITEM]"),
    ] = "",
    output_format: options.TreeFormat = options.TreeOrJson.tree,
) -> None:
    """Print the memory and time trees of a plan, or one item with formula, inputs and source."""
    from planner.cost.estimate import estimate
    from planner.plans.plan_file import load_plan
    from planner.report.document import serialise
    from planner.report.explain_document import explain_body

    context, strategy, file = load_plan(plan)
    result = estimate(context, strategy)
    if output_format is options.TreeOrJson.json:
        typer.echo(serialise("explain", explain_body(context, strategy, file, result, what)))
    else:
        _print(context, strategy, result, what)
    say_drift(result.iter_time_s, file)


def _print(context: "Context", strategy: "Strategy", result: "Estimate", what: str) -> None:
    from planner.answers.software import assumptions_line
    from planner.cli.output import console
    from planner.cost.passes import simulated_makespan_s
    from planner.cost.priced import price
    from planner.report.explain import print_item, print_memory, print_simulation, print_time
    from planner.report.words import evidence_line, range_line

    screen = console()
    if what in ("", "memory"):
        print_memory(result, screen)
    if what in ("", "time"):
        print_time(result, screen)
        if strategy.pp > 1:
            simulated_s = simulated_makespan_s(price(context, strategy))
            print_simulation(result, simulated_s, strategy, screen)
        screen.print(range_line(result))
        screen.print(evidence_line(context, strategy), markup=False)
    if what not in ("", "memory", "time"):
        print_item(what, context, strategy, result, screen)
    if what in ("", "memory", "time"):
        screen.print(assumptions_line(context, [strategy]), style="dim", markup=False)
        screen.print("`planner explain PLAN ITEM` shows formula, inputs and source of an item.")
