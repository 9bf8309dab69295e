"""``planner largest``: the largest micro-batch and the longest sequence that fit."""

import shlex

import typer

from planner.cli import options
from planner.query.query import Query


@options.takes(*options.OF_THE_FASTEST, refused="`largest` asks what fits")
def largest(
    context: typer.Context,
    *,
    query: Query,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Find the largest micro-batch at a length, the longest sequence, and what binds them."""
    from planner.answers.deadline import Deadline
    from planner.answers.largest import largest as find
    from planner.answers.nothing_fits import nothing_fits
    from planner.answers.whatif import Case
    from planner.cli.following import typed
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.query.resolve import resolve
    from planner.report.plan_options import print_largest, render_largest_json

    resolved = resolve(query)
    has_batch = any(query.get(name) is not None for name in ("global_batch", "global_batch_tokens"))
    case = Case(contexts=resolved.contexts, narrowing=resolved.narrowing)
    deadline = Deadline(resolved.time_limit_s)
    with delayed_progress() as progress:
        answer = find(
            case,
            has_batch=has_batch,
            keeps_margin=resolved.keeps_margin,
            notes=resolved.without_note("global_batch").notes,
            deadline=deadline,
            progress=progress,
        )
    if not answer.has_any:
        if answer.is_cut:
            raise deadline.nothing_found()
        raise nothing_fits(case)
    if output_format is options.TableOrJson.json:
        typer.echo(render_largest_json(answer))
    else:
        words = typed(context)
        following = shlex.join([words[0], "plan", *words[2:]])
        print_largest(answer, console(), verbose=verbose, following=following)
