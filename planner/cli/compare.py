"""``planner compare``: what training runs took, against what their layouts are priced at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.notes import Problems

if TYPE_CHECKING:
    from planner.compare.compare import Comparison
    from planner.query.from_file import Request

Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="What neither log nor file says, such as recompute=full; repeatable.",
    ),
]


def compare(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help="Logs of Megatron-LM, NeMo, Megatron-Bridge, DeepSpeed, torchtitan or Trainer.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Model name, YAML file or config.json.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help=f"{options.NODES_OF_A_KIND}, or a YAML file.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Configuration or plan file of the run [the log's own settings]."
        ),
    ] = None,
    framework: options.FileFormat = None,
    gpus: options.JobGpus = None,
    seq_len: options.FileSeqLen = None,
    global_batch: options.FileGlobalBatch = None,
    imbalance: options.Imbalance = None,
    host_memory: options.HostMemory = None,
    profile: options.FileProfile = None,
    settings: options.Settings = None,
    assume: Assume = None,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Compare logs of runs with their predicted time; what is not given stands in planner.toml."""
    from planner.check.settings import settings_for
    from planner.cli.output import console
    from planner.query.from_file import AUTO, Request, read_assumed, read_software
    from planner.query.places import place_of
    from planner.query.query import read_options
    from planner.report.measure import print_comparisons, render_comparisons_json

    read_options(imbalance=imbalance)
    own = settings_for(Path(logs[0]))
    request = Request(
        model=model or own.model,
        cluster=place_of(cluster or own.cluster, host_memory),
        framework=framework or own.framework or AUTO,
        num_gpus=gpus or own.gpus,
        seq_len=seq_len or own.seq_len,
        global_batch=global_batch or own.global_batch,
        imbalance_fraction=None if imbalance is None else imbalance / 100,
        software=read_software(profile, settings),
        assumed=read_assumed(assume or ()),
    )
    found, problems = _compared(logs, request, config)
    if output_format is not options.TableOrJson.json:
        print_comparisons(found, console())
    elif found:
        typer.echo(render_comparisons_json(found))
    problems.finish()


def _compared(
    logs: list[str], request: "Request", config: str | None
) -> "tuple[list[Comparison], Problems]":
    """Every log that can be read; what is wrong with others is said behind them."""
    from functools import partial

    from planner.cli.progress import delayed_progress
    from planner.compare.compare import compare as compared
    from planner.compare.log import read_log
    from planner.query.from_file import named

    named(request)
    problems, found = Problems(), []
    with delayed_progress() as progress:
        for number, name in enumerate(logs):
            progress(f"reading {name}", number / len(logs))
            log = problems.read(partial(read_log, name))
            one = problems.read(partial(compared, log, request, config)) if log else None
            found += [one] if one else []
    return found, problems
