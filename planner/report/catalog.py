"""Lists and entries of the catalog for the terminal."""

from collections.abc import Sequence
from operator import itemgetter

from rich.console import Console
from rich.text import Text

from planner.catalog.clusters import is_counted, load_cluster
from planner.catalog.hardware import (
    KINDS,
    FigureRow,
    HardwareDetails,
    Kind,
    describe,
    describe_hardware,
    is_path,
    load_node,
)
from planner.catalog.models import load_model, load_model_details
from planner.catalog.words import Entry
from planner.layers.parameters import (
    count_active_parameters,
    count_mtp_parameters,
    count_parameters,
)
from planner.limits import MAX_GPUS
from planner.report.table import Column, Table, rich_table
from planner.spec.cluster import ClusterSpec, LevelSpec, NodeSpec
from planner.spec.model import ModelSpec
from planner.units import GB, GIB, US, format_count

WIDE = 120
"""Columns from which notes stand beside figures."""
NOTHING = "Nothing that all words apply to."


def describe_size(model: ModelSpec) -> str:
    """Return ``70.6B parameters``, with the active ones of a mixture."""
    total = f"{format_count(count_parameters(model))} parameters"
    if model.moe is None:
        return total
    return f"{total}, {format_count(count_active_parameters(model))} active"


MODELS: list[Column[ModelSpec]] = [
    Column("model", lambda model: model.name, right=False),
    Column("params", lambda model: format_count(count_parameters(model))),
    Column(
        "active",
        lambda model: format_count(count_active_parameters(model)) if model.moe else "",
    ),
    Column("layers", lambda model: str(model.num_blocks)),
    Column("hidden", lambda model: str(model.hidden_size)),
    Column("vocab", lambda model: str(model.vocab_size)),
    Column("max seq", lambda model: str(model.max_seq_len)),
]


def print_models(names: Sequence[str], console: Console) -> None:
    """One line per model."""
    if not names:
        console.print(NOTHING)
        return
    console.print(rich_table(Table([load_model(name) for name in names], MODELS)))


def print_model(name: str, console: Console) -> None:
    """Shape, exact parameter counts and provenance of one model."""
    details = load_model_details(name)
    model, file = details.spec, details.file
    console.print(f"{model.name}: {describe_size(model)}", style="bold")
    rows = [("parameters, exact", f"{count_parameters(model):,}")]
    if model.num_mtp_layers:
        further = model.num_mtp_layers * count_mtp_parameters(model)
        rows.append(("multi-token prediction, exact", f"{further:,} more"))
    if file.params_published_b is not None:
        rows.append(("parameters, as published", f"{file.params_published_b:g} billion"))
    if model.moe:
        rows.append(("active parameters, exact", f"{count_active_parameters(model):,}"))
    for key, value in file.model_dump(exclude_none=True, exclude_defaults=True).items():
        if not key.startswith("params_") and key != "provenance":
            rows.append((key, str(value)))
    columns: list[Column[tuple[str, str]]] = [
        Column("", itemgetter(0), right=False),
        Column("", itemgetter(1), right=False, wraps=True),
    ]
    console.print(rich_table(Table(rows, columns)))
    if file.provenance is not None:
        console.print(f"basis: {file.provenance.basis}")
        if file.provenance.note:
            console.print(f"note: {file.provenance.note}", soft_wrap=True)
        for source in file.provenance.sources:
            console.print(f"source: {source.citation()}", soft_wrap=True)


def print_levels(cluster: ClusterSpec, console: Console, *, whole: bool) -> None:
    """The network levels of a cluster; not ``whole``: of a node, in a cluster of any size."""

    def gpus(level: LevelSpec) -> str:
        is_outermost = level is cluster.fabric
        return "all" if is_outermost and not whole else f"{level.num_accelerators:,}"

    def topology(level: LevelSpec) -> str:
        shape = " x ".join(str(length) for length in level.dims)
        return f"{level.topology.replace('_', ' ')} {shape}".strip()

    columns: list[Column[LevelSpec]] = [
        Column("level", lambda level: level.name, right=False, wraps=True),
        Column("topology", topology, right=False, wraps=True),
        Column("GPUs", gpus),
        Column("GB/s", lambda level: f"{level.bytes_per_s / GB:.4g}"),
        Column("reached", lambda level: f"{level.efficiency_fraction:.0%}"),
        Column("µs", lambda level: f"{level.latency_s / US:.3g}"),
        Column("oversubscribed", lambda level: f"{level.oversubscription:.3g}"),
        Column("reduces", lambda level: "yes" if level.reduces_in_network else "no", right=False),
    ]
    title = "network levels, per GPU and direction"
    console.print(rich_table(Table(cluster.levels, columns, title)))


ACCELERATORS: list[Column[tuple[str, ...]]] = [
    Column("name", itemgetter(0), right=False),
    Column("title", itemgetter(1), right=False, wraps=True),
    Column("HBM GiB", itemgetter(2)),
    Column("HBM GB/s", itemgetter(3)),
    Column("TFLOP/s dense", itemgetter(4)),
]
NODES: list[Column[NodeSpec]] = [
    Column("name", lambda node: node.name, right=False),
    Column(
        "holds",
        lambda node: f"{node.num_accelerators} x {node.accelerator.name}",
        right=False,
        wraps=True,
    ),
    Column("domain", lambda node: str(node.scale_up.num_accelerators)),
    Column(
        "net GB/s", lambda node: f"{node.nic_bytes_per_s / GB:g}" if node.nic_bytes_per_s else "-"
    ),
    Column(
        "host GiB",
        lambda node: f"{node.host_memory_bytes / GIB:,.0f}" if node.host_memory_bytes else "-",
    ),
    Column("USD/h", lambda node: f"{node.usd_per_hour:.2f}" if node.usd_per_hour else "-"),
]


def _accelerator_row(name: str) -> tuple[str, ...]:
    details = describe("accelerators", name)
    figures = {row.name: row.value for row in details.rows}
    rate = figures.get("bf16_dense_tflops") or f"{figures['fp16_dense_tflops']} (fp16)"
    return name, details.title, figures["hbm_gib"], figures["hbm_gb_per_s"], rate


def print_hardware_list(entries: Sequence[Entry], console: Console) -> None:
    """Accelerators with their main rates, nodes with what they hold, fabrics."""
    if not entries:
        console.print(NOTHING)
        return
    names = {kind: [name for each, name in entries if each == kind] for kind in KINDS}
    if names["accelerators"]:
        accelerators = [_accelerator_row(name) for name in names["accelerators"]]
        console.print(rich_table(Table(accelerators, ACCELERATORS, "accelerators")))
    if names["nodes"]:
        nodes = [load_node(name) for name in names["nodes"]]
        console.print(rich_table(Table(nodes, NODES, "nodes")))
    titles: dict[Kind, str] = {"fabrics": "fabrics", "clusters": "machines"}
    for kind, title in titles.items():
        if names[kind]:
            console.print(f"{title}: {', '.join(names[kind])}")
    console.print("`planner hardware NAME` shows every figure with its basis and source.")


def print_hardware(name: str, console: Console) -> None:
    """Every figure of one entry with basis and source; of 4xNODE or a cluster file, the levels."""
    if is_counted(name) or is_path(name):
        print_levels(load_cluster(name), console, whole=True)
        return
    details: HardwareDetails = describe_hardware(name)
    console.print(f"{details.name}: {details.title}", style="bold")
    if details.note:
        console.print(details.note, soft_wrap=True)
    for key, value in details.texts.items():
        console.print(f"{key}: {value}")
    _print_figures(details.rows, console)
    if details.kind == "clusters":
        print_levels(load_cluster(details.name), console, whole=True)
    elif details.kind == "nodes":
        print_levels(load_cluster(f"{MAX_GPUS}x{details.name}"), console, whole=False)


def _print_figures(rows: Sequence[FigureRow], console: Console) -> None:
    """A line each; notes beside them where there is room, else below, by figure."""
    notes_beside = console.width >= WIDE
    citations = list(dict.fromkeys(row.source for row in rows))
    columns: list[Column[FigureRow]] = [
        Column("figure", lambda row: row.name, right=False),
        Column("value", lambda row: row.value, wraps=True),
        Column("basis", lambda row: row.basis, right=False),
        Column("from", lambda row: f"[{citations.index(row.source) + 1}]", right=False),
    ]
    if notes_beside:
        columns.append(Column("note", lambda row: row.note, right=False, wraps=True))
    console.print(rich_table(Table(rows, columns)))
    for row in rows:
        if row.note and not notes_beside:
            console.print(Text(f"{row.name}: {row.note}"))
    for index, citation in enumerate(citations, start=1):
        console.print(Text(f"[{index}] {citation}"), soft_wrap=True)
