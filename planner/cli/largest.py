"""``planner largest``: the largest micro-batch and the longest sequence that fit."""

import shlex
from typing import Annotated

import typer

from planner.cli import options
from planner.cli.layout import fixes_layout


@fixes_layout
def largest(
    context: typer.Context,
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
    global_batch: Annotated[
        int | None,
        typer.Option(help="Batch in sequences, which micro-batches divide [what they need]."),
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
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Find the largest micro-batch at a length, the longest sequence, and what binds them."""
    from planner.answers.deadline import Deadline
    from planner.answers.largest import largest as find
    from planner.answers.nothing_fits import nothing_fits
    from planner.answers.whatif import Case
    from planner.cli import ask
    from planner.cli.following import typed
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.largest import print_largest, render_largest_json

    asked = ask.read(
        model,
        cluster,
        fix=fix,
        limit=limit,
        where=where,
        allow=allow,
        forbid=forbid,
        framework=framework,
        profile=profile,
        settings=settings,
        global_batch=global_batch,
        seq_len=seq_len,
        optimizer=optimizer,
        train=train,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        recompute_modules=recompute_modules,
        placement=placement,
        precision=precision,
        schedule=schedule,
        host_memory=host_memory,
        margin=margin,
        imbalance=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
        time_limit=time_limit,
    )
    case = Case(contexts=asked.contexts, narrowing=asked.narrowing)
    with delayed_progress() as progress:
        answer = find(
            case,
            has_batch=global_batch is not None,
            keeps_margin=asked.keeps_margin,
            notes=[note for note in asked.notes if not note.startswith("global batch")],
            deadline=Deadline(asked.time_limit_s),
            progress=progress,
        )
    if not answer.has_any:
        if answer.is_cut:
            raise asked.nothing_in_time()
        raise nothing_fits(case)
    if output_format is options.TableOrJson.json:
        typer.echo(render_largest_json(answer))
    else:
        words = typed(context)
        following = shlex.join([words[0], "plan", *words[2:]])
        print_largest(answer, console(), verbose=verbose, following=following)
