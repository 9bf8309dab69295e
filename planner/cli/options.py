"""Arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from planner.catalog.names import EXAMPLE_NODE
from planner.cli import completion
from planner.cli.like import start_from
from planner.cli.words import length, length_of_file
from planner.limits import MAX_BATCH, MAX_GPUS
from planner.spec.training import ALL_LINEAR, TARGET_GROUPS, USUAL_RANK


class TableOrJson(StrEnum):
    """Output formats of commands with one table form."""

    table = "table"
    json = "json"


class TreeOrJson(StrEnum):
    """Output formats of commands with trees."""

    tree = "tree"
    json = "json"


class FilesOrJson(StrEnum):
    """Output formats of commands that write files."""

    files = "files"
    json = "json"


NODES_OF_A_KIND = f"NODESxNODE such as 16x{EXAMPLE_NODE}"
Model = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.models,
        help="Model name (see `planner models`), YAML file or config.json.",
    ),
]
Cluster = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.clusters,
        help=f"{NODES_OF_A_KIND}, GPUSxACCELERATOR, or a YAML file.",
    ),
]
BesideModel = Annotated[
    str | None,
    typer.Argument(
        autocompletion=completion.clusters,
        help="Beside a model: the cluster, as `planner plan` takes it.",
    ),
]
NodeOrAccelerator = Annotated[
    str,
    typer.Argument(
        help=f"Node or accelerator such as {EXAMPLE_NODE}, or a YAML file; a count is ignored."
    ),
]
Framework = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.frameworks,
        help="megatron, deepspeed, torchtitan, accelerate, or any [megatron; accelerate for "
        "adapters].",
    ),
]
HostMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Host memory of every node, such as 512GiB [the catalog's]."),
]
Profile = Annotated[
    str, typer.Option(help="Trait profile of the framework (see `planner frameworks`).")
]
FileProfile = Annotated[
    str | None,
    typer.Option(
        help="Trait profile of the file's framework, for what the file does not say [current]."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="traits.SECTION.KEY=VALUE",
        help="Replace one trait of the profile; may be repeated.",
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE|FILE",
        callback=start_from,
        is_eager=True,
        help="Start from a tuned recipe (see `planner recipes`): what it states and no option "
        "says otherwise is taken from it, MODEL and CLUSTER included; the rest is solved. Of a "
        "configuration FILE the job is taken, and the layout is solved.",
    ),
]
SeqLen = Annotated[
    int | None,
    typer.Option(parser=length, metavar="<int>", help="Sequence length in tokens, such as 8k."),
]
Tokens = Annotated[str | None, typer.Option(help="Tokens of the whole job, such as 15T.")]
Optimizer = Annotated[
    str, typer.Option(help="adam, adam-bf16, adam-8bit, sgd, lion, adafactor, muon, ...")
]
Train = Annotated[
    str,
    typer.Option(
        help="full: all weights; lora: adapters beside frozen weights; qlora: beside weights in "
        "4 bits."
    ),
]
LoraRank = Annotated[int | None, typer.Option(help=f"Rank of the adapters [{USUAL_RANK}].")]
LoraTargets = Annotated[
    str | None,
    typer.Option(
        help=f"Projections with adapters: {', '.join(TARGET_GROUPS)}, or such as q,v "
        f"[{ALL_LINEAR}]."
    ),
]
RecomputeModules = Annotated[
    str | None,
    typer.Option(help="What selective recomputation repeats, such as layernorm,mlp."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="bf16, fp16, fp8, fp8_block, mxfp8, fp4, fp32 or tf32 "
        "[bf16; fp16 where the accelerator has none]."
    ),
]
Margin = Annotated[
    float | None, typer.Option(help="Percent of HBM to leave free [the error on published runs].")
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show what the answer rests on and what was assumed."),
]
Imbalance = Annotated[
    float | None,
    typer.Option(
        help="Of a mixture, percent of tokens beyond the mean that the busiest rank of experts "
        "gets, in memory and in time [20]."
    ),
]
Documents = Annotated[
    str | None,
    typer.Option(
        metavar="KIND:MEAN",
        help="Documents shorter than --seq-len, of MEAN tokens on average: packed:MEAN (sequences "
        "filled with documents, attention inside each), padded:MEAN (to the longest of a "
        "micro-batch), grouped:MEAN (by length, or without padding). Memory is that of the "
        "longest, --seq-len; time that of the mean [every sequence is one].",
    ),
]
MtpLayers = Annotated[
    int | None,
    typer.Option(
        help="Layers of multi-token prediction to train [the model's, where the framework can]."
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(help="Order of the axes on the cluster, or any [the framework's usual one]."),
]
Schedule = Annotated[
    list[str] | None,
    typer.Option(help="Pipeline schedules to search, such as 1f1b,zb-v, or all [all]."),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Search only these values: tp=8, pp=2|4, zero=1; repeatable."
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="COMPARISON", help="Search only where it holds: pp<=8; repeatable."
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CONDITION",
        help="The same for a condition such as 'tp*cp <= 8 and zero >= 1'; repeatable.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FEATURE",
        help="Search what is left out: cross-domain-tp.",
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(metavar="FEATURE", help="Search without offload, recompute, interleaving, ..."),
]
Deadline = Annotated[str | None, typer.Option(help="Time the whole job may take: 30d, 2w, 1d12h.")]
Budget = Annotated[str | None, typer.Option(help="USD the whole job may cost: 500k, 2M, $1.5M.")]
MinTokensPerS = Annotated[
    str | None, typer.Option(help="Rate to reach on all GPUs together, such as 1.2M.")
]
ObjectiveOption = Annotated[
    str, typer.Option("--objective", help="Rank by time, gpus, cost, energy or headroom.")
]
Pareto = Annotated[
    str | None,
    typer.Option(help="What the second table trades off: two or three of the objectives."),
]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Stop searching then; the gap is reported.")
]
FileFormat = Annotated[
    str | None, typer.Option("--framework", help="Format of the file [auto: recognised].")
]
JobGpus = Annotated[
    int | None,
    typer.Option("--gpus", min=1, max=MAX_GPUS, help="GPUs of the job [all of the cluster]."),
]
FileSeqLen = Annotated[
    int | None,
    typer.Option(
        "--seq-len",
        parser=length_of_file,
        metavar="<int>",
        help="Tokens per sequence, such as 8k [the file's].",
    ),
]
FileGlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch", min=1, max=MAX_BATCH, help="Batch in sequences [the file's]."),
]
Force = Annotated[bool, typer.Option(help="Replace an existing file.")]
LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", help="torchrun, slurm, kubernetes or skypilot [torchrun]."),
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the curves in the terminal.")]
PlotFile = Annotated[Path | None, typer.Option(help="Draw the curves into a .png or .svg file.")]
OutputFormat = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]
TreeFormat = Annotated[TreeOrJson, typer.Option("--format", help="Output format.")]
FilesFormat = Annotated[FilesOrJson, typer.Option("--format", help="Output format.")]
