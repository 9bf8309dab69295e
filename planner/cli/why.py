"""``planner why``: why a layout is not the one chosen."""

from typing import Annotated

import typer

from planner.cli import options


def why(
    model: options.Model,
    cluster: options.Cluster,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Degrees to have: tp=4,pp=8.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="COMPARISON", help="A limit to keep: tp<=4.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(metavar="CONDITION", help="What must hold: tp*cp <= 8.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="FEATURE", help="What else may be searched.")
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="FEATURE", help="What must not be used: offload.")
    ] = None,
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
    optimizer: options.Optimizer = "adam",
    recompute_modules: options.RecomputeModules = None,
    placement: Annotated[
        str | None,
        typer.Option(help="Order of the axes on the cluster, or any [the framework's usual one]."),
    ] = None,
    precision: options.Precision = "bf16",
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Pipeline schedules to search, such as 1f1b,zb-v, or all."),
    ] = None,
    margin: options.Margin = None,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Say why a layout is not chosen: illegal, too large, or slower, and by what."""
    from planner.cli.collector import Collector
    from planner.cli.inputs import margin_notes, read_question, with_placement
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.plans.why import why as explain
    from planner.report.why import print_why, render_why_json
    from planner.search.narrow import read_narrowing

    collector = Collector()
    narrowing = collector.read(
        lambda: read_narrowing(
            fix=fix or (),
            limit=limit or (),
            where=where or (),
            allow=allow or (),
            forbid=forbid or (),
        )
    )
    if not (fix or limit or where or forbid):
        text = "needed: what the layout is, such as tp=4,pp=8; --limit, --where, --forbid will do"
        collector.add("--fix", text)
    question = read_question(
        collector=collector,
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
        tokens=None,
        margin_percent=margin,
    )
    assert narrowing is not None
    contexts = with_placement(question.contexts, placement)
    notes = (*question.notes, *margin_notes(contexts, given=margin is not None))
    with delayed_progress() as progress:
        answer = explain(contexts, narrowing, notes=notes, progress=progress)
    if output_format is options.TableOrJson.json:
        typer.echo(render_why_json(answer))
    else:
        print_why(answer, console())
    if answer.asked is None:
        raise typer.Exit(3)
