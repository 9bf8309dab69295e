"""``planner why``: why a layout is not the one chosen."""

import typer

from planner.cli import options
from planner.query.query import Query

SAID = ("fix", "limit", "where", "forbid")


@options.takes(*options.OF_THE_FASTEST, refused="`why` asks for the fastest plan")
def why(
    *,
    query: Query,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Say why a layout is not chosen: illegal, too large, or slower, and by what."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.answers.why import why as explain
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.notes import Problems
    from planner.query.narrowing import fixed
    from planner.query.resolve import resolve
    from planner.report.why import print_why, render_why_json

    problems = Problems()
    if not (fixed(query) or any(query.get(name) for name in SAID)):
        text = "needed: what the layout is, such as tp=4,pp=8; --limit, --where, --forbid will do"
        problems.add("--fix", text)
    resolved = resolve(query, problems=problems)
    with delayed_progress() as progress:
        answer = explain(
            Case(contexts=resolved.contexts, narrowing=resolved.narrowing),
            notes=resolved.notes,
            deadline=Deadline(resolved.time_limit_s),
            progress=progress,
        )
    if output_format is options.TableOrJson.json:
        typer.echo(render_why_json(answer))
    else:
        print_why(answer, console())
    if answer.asked is None:
        raise typer.Exit(3)
