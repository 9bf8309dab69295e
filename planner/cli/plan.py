"""``planner plan``: ranked plans for a model on a cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"


def plan(
    model: options.Model,
    cluster: options.Cluster,
    framework: Annotated[
        str, typer.Option(help="megatron, deepspeed, torchtitan, accelerate, or any.")
    ] = "megatron",
    profile: options.Profile = "current",
    settings: options.Settings = None,
    global_batch: Annotated[int | None, typer.Option(help="Batch in sequences.")] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="Batch in tokens, such as 4M.")
    ] = None,
    seq_len: options.SeqLen = None,
    tokens: options.Tokens = None,
    optimizer: options.Optimizer = "adam",
    recompute_modules: options.RecomputeModules = None,
    placement: Annotated[
        str | None,
        typer.Option(help="Order of the axes on the cluster, or any [the framework's usual one]."),
    ] = None,
    precision: options.Precision = "bf16",
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Pipeline schedules to search, such as 1f1b,zb-v, or all [1f1b]."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Plans to show.")] = 5,
    margin: options.Margin = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.")
    ] = Format.table,
    save: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    force: options.Force = False,
) -> None:
    """Search all layouts, keep what fits, rank by iteration time."""
    from planner.cli.inputs import (
        argument_for_file,
        margin_notes,
        read_question,
        with_placement,
    )
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.plans.plan import answer
    from planner.report.files import check_writable, write_atomically

    if save is not None:
        check_writable(save, force=force)
    question = read_question(
        model=model,
        cluster=cluster,
        framework=framework,
        profile=profile,
        settings=settings or (),
        precision=precision,
        optimizer=optimizer,
        recompute_modules=recompute_modules,
        schedules=schedule,
        global_batch=global_batch,
        global_batch_tokens=global_batch_tokens,
        seq_len=seq_len,
        tokens=tokens,
        margin_percent=margin,
    )
    contexts = with_placement(question.contexts, placement)
    with delayed_progress() as progress:
        notes = (*question.notes, *margin_notes(contexts, given=margin is not None))
        result = answer(contexts, top=top, notes=notes, progress=progress)
    if not result.plans:
        from planner.plans.whynot import nothing_fits

        raise nothing_fits(contexts, result)
    if save is not None:
        from planner.plans.plan_file import plan_text

        text = plan_text(
            result.plans[0], model=argument_for_file(model), cluster=argument_for_file(cluster)
        )
        write_atomically(save, text)
        typer.echo(f"saved plan 1 to {save}", err=True)
    if output_format is Format.json:
        from planner.report.json import render_json

        typer.echo(render_json(result))
    elif output_format is Format.csv:
        from planner.report.csv import render_csv

        typer.echo(render_csv(result), nl=False)
    else:
        from planner.report.text import print_answer

        print_answer(result, console())
