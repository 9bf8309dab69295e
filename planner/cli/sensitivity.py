"""``planner sensitivity``: what time and the best layout do when a figure is another one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import completion, options
from planner.cli.question import Question, asks
from planner.cli.saved import ARGUMENT, is_plan, refuse_question, saved_plan

if TYPE_CHECKING:
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.plans.plan import Plan

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
    from planner.answers.sensitivity import sensitivity as scaled
    from planner.cli.following import measuring
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.errors import NothingFitsError
    from planner.report.sensitivity import print_sensitivity, render_sensitivity_json

    if is_plan(context, model, cluster):
        refuse_question(context, model, OF_ANY_PLAN)
        asking = _saved(Path(model), question["time_limit"])
    else:
        asking = _asked(model, cluster or "", question)
    with delayed_progress() as progress:
        result = scaled(
            asking.case,
            keeps_margin=asking.keeps_margin,
            deadline=asking.deadline,
            plan=asking.plan,
            progress=progress,
        )
    notes = asking.notes
    if result is None:
        if asking.deadline.limit_s is not None:
            raise asking.deadline.nothing_found()
        raise NothingFitsError("nothing fits; `planner plan` on the same says what is missing")
    following = measuring(result, cluster or "")
    if output_format is options.TableOrJson.json:
        typer.echo(render_sensitivity_json(result, notes, following))
    else:
        print_sensitivity(result, notes, console(), verbose=verbose, following=following)


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """What is planned again, and how."""

    case: "Case"
    keeps_margin: bool
    deadline: "Deadline"
    plan: "Plan | None" = None
    """That of the file."""
    notes: tuple[str, ...] = ()
    """What was assumed."""


def _saved(path: Path, time_limit: str | None) -> _Asking:
    """The plan of a file, and what a search around it asks."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.plans.around import context_around

    collector = Collector()
    found = collector.read(lambda: saved_plan(path))
    limit_s = read_time_limit(collector, time_limit)
    collector.finish()
    assert found is not None
    plan = found[1]
    return _Asking(
        case=Case(contexts=(context_around(plan),)),
        keeps_margin=True,
        deadline=Deadline(limit_s),
        plan=plan,
    )


def _asked(model: str, cluster: str, question: Question) -> _Asking:
    """What a question asks, and what was assumed."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.cli import ask
    from planner.cli.collector import Collector

    collector = Collector()
    for name in RANKED_BY_TIME:
        if question[name] not in (None, "time"):
            option = f"--{name.replace('_', '-')}"
            collector.add(option, "not for sensitivity, which asks for the fastest plan")
    asked = ask.read(model, cluster, collector=collector, **question)
    return _Asking(
        case=Case(contexts=asked.contexts, narrowing=asked.narrowing),
        keeps_margin=asked.keeps_margin,
        deadline=Deadline(asked.time_limit_s),
        notes=asked.notes,
    )
