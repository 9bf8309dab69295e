"""``planner explain``: where a saved plan's memory and time go, item by item."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.saved import say_drift


def explain(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save.")],
    what: Annotated[
        str,
        typer.Argument(help="memory, time, or an item such as tensor_parallel.", metavar="[ITEM]"),
    ] = "",
) -> None:
    """Print the memory and time trees of a plan, or one item with formula, inputs and source."""
    from planner.cli.output import console
    from planner.cost.estimate import estimate
    from planner.cost.simulated import simulated_makespan_s
    from planner.cost.subject import subject_of
    from planner.plans.plan_file import load_plan
    from planner.report.assumptions import assumptions_line
    from planner.report.evidence import evidence_line, range_line
    from planner.report.explain import print_item, print_memory, print_simulation, print_time

    context, strategy, file = load_plan(plan)
    result = estimate(context, strategy)
    screen = console()
    if what in ("", "memory"):
        print_memory(result, screen)
    if what in ("", "time"):
        print_time(result, screen)
        if strategy.pp > 1:
            simulated_s = simulated_makespan_s(subject_of(context, strategy))
            print_simulation(result, simulated_s, strategy, screen)
        screen.print(range_line(result))
        screen.print(evidence_line(context, strategy), markup=False)
    if what not in ("", "memory", "time"):
        print_item(what, context, strategy, result, screen)
    if what in ("", "memory", "time"):
        screen.print(assumptions_line(context, [strategy]), style="dim", markup=False)
        screen.print("`planner explain PLAN ITEM` shows formula, inputs and source of an item.")
    say_drift(result, file)
