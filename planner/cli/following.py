"""The command that goes on from an answer, ready to paste."""

import shlex
from collections.abc import Collection, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from planner.cli.defaults import is_given

if TYPE_CHECKING:
    from planner.answers.base import Plan
    from planner.answers.sensitivity import Sensitivity
    from planner.formats.format import Format

OF_THE_SCREEN = frozenset({"verbose", "show_all", "output_format", "top", "force"})
"""Options that change what is shown, and no answer."""
FOLDER = "run"
ACROSS_NODES = ("nic_gbit_per_s", "fabric_latency_us")


def typed(context: typer.Context, without: Collection[str] = ()) -> list[str]:
    """The words of the command that runs, as its options were read; defaults are left out."""
    given = [
        parameter
        for parameter in context.command.params
        if parameter.name
        and parameter.name not in (*OF_THE_SCREEN, *without)
        and is_given(context, parameter.name)
    ]
    words = ["planner", context.command.name or ""]
    words += [str(context.params[str(p.name)]) for p in given if not _is_option(p)]
    return [*words, *(word for p in given if _is_option(p) for word in _words(context, p))]


def _is_option(parameter: Any) -> bool:  # noqa: ANN401 - of the library that Typer holds
    return bool(parameter.param_type_name == "option")


def _words(context: typer.Context, option: Any) -> Iterator[str]:  # noqa: ANN401
    value = context.params[option.name]
    if isinstance(value, bool):
        yield (option.opts if value else option.secondary_opts)[0]
        return
    for each in value if isinstance(value, list | tuple) else [value]:
        yield option.opts[0]
        yield str(each.value if isinstance(each, Enum) else each)


def writing(context: typer.Context, plan: "Plan", made: "Format | None") -> str:
    """Planning again with the files of the first plan written, or saved where no format has it."""
    from planner.formats.registry import format_of

    made = made if made and made.is_written else format_of(plan.context.traits)
    if list(made.refused(plan.context)):
        return shlex.join([*typed(context), "--save", "plan.yaml"])
    return shlex.join([*typed(context), "--emit", made.name, "--out", FOLDER])


def measuring(result: "Sensitivity", cluster: str) -> str:
    """`planner calibrate` of what is worth measuring on the cluster; empty where nothing is.

    ``cluster``: as it was given, empty where a plan was. One node measures itself; between nodes
    stands what nccl-tests printed there.
    """
    from planner.catalog.hardware import is_path
    from planner.frameworks.registry import load_traits
    from planner.spec.cluster import PROCESSOR

    worth = {one.figure.key for one in result.worth_measuring}
    own, vendors = result.best.context.cluster, load_traits("torchtitan").support.vendors
    if not worth or own.accelerator.vendor not in (*vendors, PROCESSOR):
        return ""
    whole, count = (own.node.whole or own.node).name, own.node.num_accelerators
    place = cluster if is_path(cluster) else f"{own.num_nodes}x{whole}"
    start = ["torchrun", "--no-python", "--nproc-per-node", str(count)] if count > 1 else []
    files = ["all_reduce_perf.txt"] if worth & set(ACROSS_NODES) else []
    words = ["planner", "calibrate", "--measure", place, *files, "--out", "mine.yaml"]
    return shlex.join([*start, *words])
