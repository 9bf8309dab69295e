"""``planner plan``: ranked plans for a model on a cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"


def plan(
    model: Annotated[str, typer.Argument(help="Model name (see `planner models`) or YAML file.")],
    cluster: Annotated[
        str,
        typer.Argument(help="NODESxNODE such as 16xdgx-h100, GPUSxACCELERATOR, or a YAML file."),
    ],
    framework: Annotated[
        str, typer.Option(help="megatron, deepspeed, torchtitan, accelerate, or any.")
    ] = "megatron",
    global_batch: Annotated[int | None, typer.Option(help="Batch in sequences.")] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="Batch in tokens, such as 4M.")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(help="Sequence length in tokens.")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of the whole job, such as 15T.")
    ] = None,
    optimizer: Annotated[
        str, typer.Option(help="adam, adam-bf16, adam-8bit, sgd, lion, adafactor, muon, ...")
    ] = "adam",
    recompute_modules: Annotated[
        str | None,
        typer.Option(help="What selective recomputation repeats, such as layernorm,mlp."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="bf16, fp16, fp8, fp8_block, mxfp8 or fp4.")
    ] = "bf16",
    top: Annotated[int, typer.Option(min=1, help="Plans to show.")] = 5,
    margin: Annotated[
        float | None,
        typer.Option(help="Percent of HBM to leave free [the error on published runs]."),
    ] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output format.")
    ] = Format.table,
    save: Annotated[Path | None, typer.Option(help="Write the best plan to this file.")] = None,
    force: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
) -> None:
    """Search all layouts, keep what fits, rank by iteration time."""
    from planner.cli.inputs import argument_for_file, margin_notes, read_question
    from planner.cli.output import check_writable, console, write_atomically
    from planner.cli.progress import delayed_progress
    from planner.plans.plan import answer

    if save is not None:
        check_writable(save, force=force)
    question = read_question(
        model=model,
        cluster=cluster,
        framework=framework,
        precision=precision,
        optimizer=optimizer,
        recompute_modules=recompute_modules,
        global_batch=global_batch,
        global_batch_tokens=global_batch_tokens,
        seq_len=seq_len,
        tokens=tokens,
        margin_percent=margin,
    )
    with delayed_progress() as progress:
        notes = (*question.notes, *margin_notes(question.contexts, given=margin is not None))
        result = answer(question.contexts, top=top, notes=notes, progress=progress)
    if not result.plans:
        from planner.plans.whynot import nothing_fits

        raise nothing_fits(question.contexts, result)
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
