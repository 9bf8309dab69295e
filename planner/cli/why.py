"""``planner why``: why a layout is not the one chosen."""

from typing import Annotated

import typer

from planner.cli import options
from planner.cli.layout import fixes_layout


@fixes_layout
def why(
    model: options.Model,
    cluster: options.Cluster,
    fix: options.Fix = None,
    limit: options.LimitOption = None,
    where: options.Where = None,
    allow: options.Allow = None,
    forbid: options.Forbid = None,
    framework: options.Framework = None,
    profile: options.Profile = "current",
    settings: options.Settings = None,
    global_batch: Annotated[int | None, typer.Option(help="Batch in sequences.")] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="Batch in tokens, such as 4M.")
    ] = None,
    seq_len: options.SeqLen = None,
    optimizer: options.Optimizer = "adam",
    train: options.Train = "full",
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    recompute_modules: options.RecomputeModules = None,
    placement: options.Placement = None,
    precision: options.Precision = None,
    schedule: options.Schedule = None,
    host_memory: options.HostMemory = None,
    margin: options.Margin = None,
    imbalance: options.Imbalance = None,
    documents: options.Documents = None,
    mtp_layers: options.MtpLayers = None,
    time_limit: options.TimeLimit = None,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Say why a layout is not chosen: illegal, too large, or slower, and by what."""
    from planner.answers.deadline import Deadline
    from planner.answers.whatif import Case
    from planner.answers.why import why as explain
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.cli.inputs import margin_notes, read_question, with_host_memory, with_placement
    from planner.cli.narrowing import narrowing_of
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.why import print_why, render_why_json

    collector = Collector()
    cluster = with_host_memory(collector, cluster, host_memory)
    narrowing = narrowing_of(
        collector, fix=fix, limit=limit, where=where, allow=allow, forbid=forbid
    )
    if not (fix or limit or where or forbid):
        text = "needed: what the layout is, such as tp=4,pp=8; --limit, --where, --forbid will do"
        collector.add("--fix", text)
    limit_s = read_time_limit(collector, time_limit)
    question = read_question(
        collector=collector,
        model=model,
        cluster=cluster,
        framework=framework,
        profile=profile,
        settings=settings or (),
        precision=precision,
        optimizer=optimizer,
        training=(train, lora_rank, lora_targets),
        recompute_modules=recompute_modules,
        schedules=schedule,
        global_batch=global_batch,
        global_batch_tokens=global_batch_tokens,
        seq_len=seq_len,
        tokens=None,
        margin_percent=margin,
        imbalance_percent=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
    )
    contexts = with_placement(question.contexts, placement)
    notes = (*question.notes, *margin_notes(contexts, given=margin is not None))
    with delayed_progress() as progress:
        deadline = Deadline(limit_s)
        case = Case(contexts=contexts, narrowing=narrowing)
        answer = explain(case, notes=notes, deadline=deadline, progress=progress)
    if output_format is options.TableOrJson.json:
        typer.echo(render_why_json(answer))
    else:
        print_why(answer, console())
    if answer.asked is None:
        raise typer.Exit(3)
