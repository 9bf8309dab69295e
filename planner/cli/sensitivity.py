"""``planner sensitivity``: what time and the best layout do when a figure is another one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import completion, options
from planner.cli.question import Question, asks
from planner.cli.saved import ARGUMENT, is_plan, refuse_question, saved_plan

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.plans.plan import Plan
    from planner.plans.sensitivity import Planner

OF_ANY_PLAN = ("context", "model", "cluster", "verbose", "output_format", "time_limit")
RANKED_BY_TIME = ("objective", "pareto", "deadline", "min_tokens_per_s", "budget")
"""Options that ask for something else than the fastest plan."""


@asks
def sensitivity(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar=ARGUMENT,
            autocompletion=completion.models,
            help="Plan file of --save, folder of --emit; or a model, as `planner plan` takes it.",
        ),
    ],
    cluster: options.BesideModel = None,
    *,
    question: Question,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Turn every figure of hardware and job, plan again: what moves time, where others win."""
    from planner.cli.following import measuring
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.errors import NothingFitsError
    from planner.plans.sensitivity import sensitivity as turned
    from planner.report.sensitivity import print_sensitivity, render_sensitivity_json

    plan: Plan | None = None
    notes: tuple[str, ...] = ()
    if is_plan(context, model, cluster):
        refuse_question(context, model, OF_ANY_PLAN)
        plan, contexts, planner = _saved(Path(model), question["time_limit"])
    else:
        contexts, planner, notes = _asked(model, cluster or "", question)
    with delayed_progress() as progress:
        result = turned(contexts, planner, plan=plan, progress=progress)
    if result is None:
        if planner.clock.limit_s is not None:
            raise planner.clock.nothing_found()
        raise NothingFitsError("nothing fits; `planner plan` on the same says what is missing")
    following = measuring(result, cluster or "")
    if output_format is options.TableOrJson.json:
        typer.echo(render_sensitivity_json(result, notes, following))
    else:
        print_sensitivity(result, notes, console(), verbose=verbose, following=following)


def _saved(path: Path, time_limit: str | None) -> "tuple[Plan, tuple[Context, ...], Planner]":
    """The plan of a file, what a search around it asks, and how it is planned again."""
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.plans.around import context_around
    from planner.plans.clock import Clock
    from planner.plans.sensitivity import Planner

    collector = Collector()
    found = collector.read(lambda: saved_plan(path))
    limit_s = read_time_limit(collector, time_limit)
    collector.finish()
    assert found is not None
    plan = found[1]
    return plan, (context_around(plan),), Planner(keeps_margin=True, clock=Clock(limit_s))


def _asked(
    model: str, cluster: str, question: Question
) -> "tuple[tuple[Context, ...], Planner, tuple[str, ...]]":
    """The contexts of a question, how it is planned again, and what was assumed."""
    from planner.cli import ask
    from planner.cli.collector import Collector
    from planner.plans.clock import Clock
    from planner.plans.sensitivity import Planner

    collector = Collector()
    for name in RANKED_BY_TIME:
        if question[name] not in (None, "time"):
            option = f"--{name.replace('_', '-')}"
            collector.add(option, "not for sensitivity, which asks for the fastest plan")
    asked = ask.read(model, cluster, collector=collector, **question)
    planner = Planner(
        narrowing=asked.narrowing, keeps_margin=asked.keeps_margin, clock=Clock(asked.time_limit_s)
    )
    return asked.contexts, planner, asked.notes
