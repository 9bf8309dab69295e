"""``planner memory``: the memory of one given configuration, without search."""

from typing import Annotated

import typer

from planner.cli import options
from planner.cli.layout import Layout, takes_layout


@takes_layout
def memory(
    model: options.Model,
    cluster: options.Cluster,
    *,
    framework: Annotated[
        str | None,
        typer.Option(
            help="megatron, deepspeed, torchtitan or accelerate [megatron; accelerate for "
            "adapters]."
        ),
    ] = None,
    profile: options.Profile = "current",
    settings: options.Settings = None,
    layout: Layout,
    global_batch: Annotated[
        int | None, typer.Option(help="Batch in sequences [as `plan`, in whole micro-batches].")
    ] = None,
    seq_len: options.SeqLen = None,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    recompute_layers: Annotated[
        int | None, typer.Option(help="Layers per stage under the policy [all].")
    ] = None,
    recompute_modules: Annotated[
        str | None, typer.Option(help="Modules that selective repeats, such as layernorm,moe_act.")
    ] = None,
    layers_per_stage: Annotated[
        str | None, typer.Option(help="Layers of every stage, such as 10,11,11,10 [even].")
    ] = None,
    offload_activations: Annotated[
        str | None,
        typer.Option(help="Layers per stage, or all, whose activations go to the host [none]."),
    ] = None,
    optimizer: options.Optimizer = "adam",
    train: options.Train = "full",
    lora_rank: options.LoraRank = None,
    lora_targets: options.LoraTargets = None,
    precision: options.Precision = None,
    margin: Annotated[
        float | None,
        typer.Option(help="Percent of HBM held uncertain [error on published runs]."),
    ] = None,
    imbalance: options.Imbalance = None,
    documents: options.Documents = None,
    mtp_layers: options.MtpLayers = None,
    host_memory: options.HostMemory = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every item.")] = False,
    verbose: options.Verbose = False,
    output_format: options.TreeFormat = options.TreeOrJson.tree,
) -> None:
    """Show where one configuration's memory goes, per stage, and what would save how much."""
    from dataclasses import replace

    from planner.cli.collector import Collector
    from planner.cli.inputs import (
        batch_notes,
        parse_offloaded_layers,
        read_layers,
        read_question,
        with_host_memory,
    )
    from planner.cli.output import console
    from planner.plans.layout import option_problems, requested, resolve
    from planner.plans.memory import memory_answer
    from planner.report.memory import print_memory_answer, render_memory_json

    collector = Collector()
    cluster = with_host_memory(collector, cluster, host_memory)
    request = requested(
        **layout,
        global_batch=global_batch,
        recompute=recompute,
        recompute_layers=recompute_layers,
        offloaded_layers=collector.parsed(
            "--offload-activations", offload_activations, parse_offloaded_layers
        ),
        layers_per_stage=collector.read(lambda: read_layers(layers_per_stage)),
    )
    for option, message in option_problems(request):
        collector.add(option, message)
    if framework == "any":
        collector.add("--framework", "one framework is needed here; given any")
    if recompute_modules is not None and recompute != "selective":
        collector.add("--recompute-modules", "needs --recompute selective")
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
        global_batch=global_batch,
        global_batch_tokens=None,
        seq_len=seq_len,
        tokens=None,
        margin_percent=margin,
        imbalance_percent=imbalance,
        documents=documents,
        mtp_layers=mtp_layers,
    )
    chosen = replace(question.contexts[0], margin_fraction=0.0)
    context, strategy = resolve(chosen, request)
    notes = batch_notes(question.notes, context)
    answer = memory_answer(context, strategy, notes)
    if output_format is options.TreeOrJson.json:
        typer.echo(render_memory_json(answer))
    else:
        whole = verbose or show_all
        print_memory_answer(answer, console(), show_all=show_all, verbose=whole)
    if not answer.estimate.memory.fits:
        raise typer.Exit(3)
