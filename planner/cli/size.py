"""``planner size``: the smallest cluster that does a job in time and within a budget."""

from typing import Annotated

import typer

from planner.cli import options
from planner.cli.layout import fixes_layout

DEFAULT_MAX_GPUS = 65536


@fixes_layout
def size(
    model: options.Model,
    node: options.NodeOrAccelerator,
    tokens: options.Tokens = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    min_tokens_per_s: options.MinTokensPerS = None,
    max_gpus: Annotated[
        int | None,
        typer.Option(help="Largest cluster to look at [65536; without limits a few times enough]."),
    ] = None,
    framework: options.Framework = None,
    profile: options.Profile = "current",
    settings: options.Settings = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Batch in sequences [4M tokens, at any size].")
    ] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="The same in tokens, such as 4M.")
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
    fix: options.Fix = None,
    limit: options.LimitOption = None,
    where: options.Where = None,
    allow: options.Allow = None,
    forbid: options.Forbid = None,
    host_memory: options.HostMemory = None,
    margin: options.Margin = None,
    imbalance: options.Imbalance = None,
    documents: options.Documents = None,
    mtp_layers: options.MtpLayers = None,
    time_limit: options.TimeLimit = None,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Find the fewest GPUs that do a job in time, or just hold it, and the sizes around them."""
    from functools import partial

    from planner.answers.deadline import Deadline
    from planner.answers.size import Sizer, nothing_at_any_size
    from planner.answers.whatif import Case
    from planner.catalog.clusters import load_cluster_of
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.cli.inputs import margin_notes, read_question, with_host_memory, with_placement
    from planner.cli.limits import check_price, growing_clusters, read_largest, read_limits
    from planner.cli.narrowing import narrowing_of, offering
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.cli.sizes import with_fixed_batch
    from planner.report.sizing import print_sizing, render_sizing_json
    from planner.report.sizing_words import no_size

    collector = Collector()
    node = with_host_memory(collector, node, host_memory)
    limits = read_limits(
        collector,
        tokens=tokens,
        deadline=deadline,
        min_tokens_per_s=min_tokens_per_s,
        budget=budget,
    )
    narrowing = narrowing_of(
        collector,
        fix=fix,
        limit=limit,
        where=where,
        allow=allow,
        forbid=forbid,
        schedule=schedule,
        placement=placement,
    )
    most = max_gpus if max_gpus is not None else DEFAULT_MAX_GPUS
    largest = read_largest(collector, node, most)
    limit_s = read_time_limit(collector, time_limit)
    question = read_question(
        collector=collector,
        model=model,
        cluster=node,
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
        tokens=tokens,
        margin_percent=margin,
        imbalance_percent=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
        num_accelerators=largest.num_accelerators if largest else 1,
    )
    check_price(question.contexts[0].cluster, limits)
    if global_batch is None and global_batch_tokens is None:
        question = with_fixed_batch(question)
    question = offering(question, narrowing)
    contexts = with_placement(question.contexts, placement)
    notes = (*question.notes, *margin_notes(contexts, given=margin is not None))
    clock = Deadline(limit_s)
    case = Case(contexts=contexts, narrowing=narrowing)
    with delayed_progress() as progress:
        sizer = Sizer(
            limits=limits,
            cluster_of=partial(load_cluster_of, node),
            deadline=clock,
            progress=progress,
        )
        if limits.is_empty and max_gpus is None:
            result = sizer.fewest(case, partial(growing_clusters, collector, node, most))
        else:
            larger = read_largest(collector, node, max(most, DEFAULT_MAX_GPUS))
            result = sizer.sizing(case, larger)
    if not result.sizes and not result.is_complete:
        raise clock.nothing_found()
    if not result.sizes:
        raise nothing_at_any_size(result)
    if output_format is options.TableOrJson.json:
        typer.echo(render_sizing_json(result, notes))
    else:
        print_sizing(result, notes, console(), verbose=verbose)
    if result.chosen is None:
        raise no_size(result)
