"""Arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TableOrJson(StrEnum):
    """Output formats of commands with one table form."""

    table = "table"
    json = "json"


Model = Annotated[str, typer.Argument(help="Model name (see `planner models`) or YAML file.")]
Cluster = Annotated[
    str, typer.Argument(help="NODESxNODE such as 16xdgx-h100, GPUSxACCELERATOR, or a YAML file.")
]
Profile = Annotated[
    str, typer.Option(help="Trait profile of the framework (see `planner frameworks`).")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="traits.SECTION.KEY=VALUE",
        help="Replace one trait of the profile; may be repeated.",
    ),
]
SeqLen = Annotated[int | None, typer.Option(help="Sequence length in tokens.")]
Tokens = Annotated[str | None, typer.Option(help="Tokens of the whole job, such as 15T.")]
Optimizer = Annotated[
    str, typer.Option(help="adam, adam-bf16, adam-8bit, sgd, lion, adafactor, muon, ...")
]
RecomputeModules = Annotated[
    str | None,
    typer.Option(help="What selective recomputation repeats, such as layernorm,mlp."),
]
Precision = Annotated[str, typer.Option(help="bf16, fp16, fp8, fp8_block, mxfp8 or fp4.")]
Margin = Annotated[
    float | None, typer.Option(help="Percent of HBM to leave free [the error on published runs].")
]
Force = Annotated[bool, typer.Option(help="Replace an existing file.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the curves in the terminal.")]
PlotFile = Annotated[Path | None, typer.Option(help="Draw the curves into a .png or .svg file.")]
OutputFormat = Annotated[TableOrJson, typer.Option("--format", help="Output format.")]
