"""``planner scale``: strong and weak scaling, and where each limit bites."""

from typing import Annotated

import typer

from planner.cli import options
from planner.cli.layout import fixes_layout
from planner.cli.output import say


@fixes_layout
def scale(
    model: options.Model,
    cluster: options.NodeOrAccelerator,
    gpus: Annotated[
        str, typer.Option(help="Numbers of GPUs: 8..65536 (doubling) or 8,24,64.")
    ] = "8..1024",
    weak: Annotated[bool, typer.Option("--weak", help="Let the batch grow with the GPUs.")] = False,
    framework: options.Framework = None,
    profile: options.Profile = "current",
    settings: options.Settings = None,
    global_batch: Annotated[
        int | None, typer.Option(help="Batch in sequences; with --weak, of the fewest GPUs.")
    ] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option(help="The same in tokens, such as 4M.")
    ] = None,
    seq_len: options.SeqLen = None,
    tokens: options.Tokens = None,
    days: Annotated[
        float | None, typer.Option(help="Days the whole job may take; needs --tokens.")
    ] = None,
    optimizer: options.Optimizer = "adam",
    train: options.Train = "full",
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    recompute_modules: options.RecomputeModules = None,
    precision: options.Precision = None,
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
    plot: options.Plot = False,
    plot_file: options.PlotFile = None,
    force: options.Force = False,
    verbose: options.Verbose = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Search the best plan at every size; show efficiency and what limits it."""
    from functools import partial

    from planner.answers.deadline import Deadline
    from planner.answers.scale import nothing_scales, scaling
    from planner.answers.whatif import Case
    from planner.cli.aims import read_time_limit
    from planner.cli.collector import Collector
    from planner.cli.inputs import margin_notes, read_question, with_host_memory
    from planner.cli.narrowing import narrowing_of, offering
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.cli.sizes import read_clusters, with_base_batch
    from planner.report.plot import check_chart
    from planner.report.scaling import plot_scaling, print_scaling, render_scaling_json

    collector = Collector()
    cluster = with_host_memory(collector, cluster, host_memory)
    clusters = read_clusters(collector, cluster, gpus)
    if days is not None and (tokens is None or not days > 0):
        collector.add("--days", f"must be above 0, with --tokens; given {days:g}")
    as_json = output_format is options.TableOrJson.json
    if plot:
        collector.read(partial(check_chart, None, beside_json=as_json))
    if plot_file is not None:
        collector.read(partial(check_chart, plot_file, force=force))
    narrowing = narrowing_of(
        collector, fix=fix, limit=limit, where=where, allow=allow, forbid=forbid
    )
    limit_s = read_time_limit(collector, time_limit)
    question = read_question(
        collector=collector,
        model=model,
        cluster=cluster,
        framework=framework,
        precision=precision,
        optimizer=optimizer,
        training=(train, lora_rank, lora_targets),
        profile=profile,
        settings=settings or (),
        recompute_modules=recompute_modules,
        global_batch=global_batch,
        global_batch_tokens=global_batch_tokens,
        seq_len=seq_len,
        tokens=tokens,
        margin_percent=margin,
        imbalance_percent=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
        num_accelerators=clusters[-1].num_accelerators if clusters else 1,
    )
    if weak:
        is_given = global_batch is not None or global_batch_tokens is not None
        question = with_base_batch(question, clusters, given=is_given)
    question = offering(question, narrowing)
    given = [f"given: {', '.join(narrowing.texts)}"] * bool(narrowing.texts)
    notes = (*given, *question.notes, *margin_notes(question.contexts, given=margin is not None))
    with delayed_progress() as progress:
        deadline = Deadline(limit_s)
        result = scaling(
            Case(contexts=question.contexts, narrowing=narrowing),
            clusters,
            is_weak=weak,
            deadline=deadline,
            progress=progress,
        )
    if not result.fitting and result.late_at:
        raise deadline.nothing_found()
    if not result.fitting:
        raise nothing_scales(question.contexts[0], result)
    if as_json:
        typer.echo(render_scaling_json(result, notes))
    else:
        print_scaling(result, notes, days, console(), verbose=verbose)
    if plot:
        plot_scaling(result)
    if plot_file is not None:
        plot_scaling(result, path=plot_file, force=force)
        say(f"saved the curves to {plot_file}")
