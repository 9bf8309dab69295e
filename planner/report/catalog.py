"""Lists and entries of the catalog for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.catalog.clusters import is_counted, load_cluster
from planner.catalog.hardware import KINDS, Kind, is_path, load_node
from planner.catalog.hardware_rows import (
    FigureRow,
    HardwareDetails,
    describe_accelerator,
    describe_hardware,
)
from planner.catalog.models import load_model, load_model_details
from planner.catalog.words import Entry
from planner.layers.parameters import (
    count_active_parameters,
    count_mtp_parameters,
    count_parameters,
)
from planner.limits import MAX_GPUS
from planner.report.screen import plain_table
from planner.spec.cluster import ClusterSpec
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


def _table(left: Sequence[str], right: Sequence[str], title: str = "") -> Table:
    table = plain_table()
    table.title, table.title_justify = title or None, "left"
    for name in left:
        table.add_column(name, no_wrap=name in ("name", "model", "figure"), overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_models(names: Sequence[str], console: Console) -> None:
    """One line per model."""
    if not names:
        console.print(NOTHING)
        return
    columns = ("params", "active", "layers", "hidden", "vocab", "max seq")
    table = _table(["model"], columns)
    for name in names:
        model = load_model(name)
        active = format_count(count_active_parameters(model)) if model.moe else ""
        table.add_row(
            name,
            format_count(count_parameters(model)),
            active,
            str(model.num_blocks),
            str(model.hidden_size),
            str(model.vocab_size),
            str(model.max_seq_len),
        )
    console.print(table)


def print_model(name: str, console: Console) -> None:
    """Shape, exact parameter counts and provenance of one model."""
    details = load_model_details(name)
    model, file = details.spec, details.file
    console.print(f"{model.name}: {describe_size(model)}", style="bold")
    table = plain_table(shows_header=False)
    table.add_row("parameters, exact", f"{count_parameters(model):,}")
    if model.num_mtp_layers:
        further = model.num_mtp_layers * count_mtp_parameters(model)
        table.add_row("multi-token prediction, exact", f"{further:,} more")
    if file.params_published_b is not None:
        table.add_row("parameters, as published", f"{file.params_published_b:g} billion")
    if model.moe:
        table.add_row("active parameters, exact", f"{count_active_parameters(model):,}")
    for key, value in file.model_dump(exclude_none=True, exclude_defaults=True).items():
        if not key.startswith("params_") and key != "provenance":
            table.add_row(key, str(value))
    console.print(table)
    if file.provenance is not None:
        console.print(f"basis: {file.provenance.basis}")
        if file.provenance.note:
            console.print(f"note: {file.provenance.note}", soft_wrap=True)
        for source in file.provenance.sources:
            console.print(f"source: {source.citation()}", soft_wrap=True)


def print_levels(cluster: ClusterSpec, console: Console, *, whole: bool) -> None:
    """The network levels of a cluster; not ``whole``: of a node, in a cluster of any size."""
    right = ("GPUs", "GB/s", "reached", "µs", "oversubscribed")
    table = _table(["level", "topology"], right, "network levels, per GPU and direction")
    table.add_column("reduces")
    for level in cluster.levels:
        outermost = level is cluster.fabric
        shape = " x ".join(str(length) for length in level.dims)
        table.add_row(
            level.name,
            f"{level.topology.replace('_', ' ')} {shape}".strip(),
            "all" if outermost and not whole else f"{level.num_accelerators:,}",
            f"{level.bytes_per_s / GB:.4g}",
            f"{level.efficiency_fraction:.0%}",
            f"{level.latency_s / US:.3g}",
            f"{level.oversubscription:.3g}",
            "yes" if level.reduces_in_network else "no",
        )
    console.print(table)


def print_hardware_list(entries: Sequence[Entry], console: Console) -> None:
    """Accelerators with their main rates, nodes with what they hold, fabrics."""
    if not entries:
        console.print(NOTHING)
        return
    names = {kind: [name for each, name in entries if each == kind] for kind in KINDS}
    accelerators = _table(
        ["name", "title"], ["HBM GiB", "HBM GB/s", "TFLOP/s dense"], "accelerators"
    )
    for name in names["accelerators"]:
        details = describe_accelerator(name)
        figures = {row.name: row.value for row in details.rows}
        rate = figures.get("bf16_dense_tflops") or f"{figures['fp16_dense_tflops']} (fp16)"
        accelerators.add_row(name, details.title, figures["hbm_gib"], figures["hbm_gb_per_s"], rate)
    if names["accelerators"]:
        console.print(accelerators)
    nodes = _table(["name", "holds"], ["domain", "net GB/s", "host GiB", "USD/h"], "nodes")
    for name in names["nodes"]:
        node = load_node(name)
        nodes.add_row(
            name,
            f"{node.num_accelerators} x {node.accelerator.name}",
            str(node.scale_up.num_accelerators),
            f"{node.nic_bytes_per_s / GB:g}" if node.nic_bytes_per_s else "-",
            f"{node.host_memory_bytes / GIB:,.0f}" if node.host_memory_bytes else "-",
            f"{node.usd_per_hour:.2f}" if node.usd_per_hour else "-",
        )
    if names["nodes"]:
        console.print(nodes)
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
    table = _table(["figure"], [])
    table.add_column("value", justify="right", overflow="fold")
    table.add_column("basis", no_wrap=True)
    table.add_column("from", no_wrap=True)
    if notes_beside:
        table.add_column("note", overflow="fold")
    citations: list[str] = []
    for row in rows:
        if row.source not in citations:
            citations.append(row.source)
        number = Text(f"[{citations.index(row.source) + 1}]")
        table.add_row(row.name, row.value, row.basis, number, *[row.note] * notes_beside)
    console.print(table)
    for row in rows:
        if row.note and not notes_beside:
            console.print(Text(f"{row.name}: {row.note}"))
    for index, citation in enumerate(citations, start=1):
        console.print(Text(f"[{index}] {citation}"), soft_wrap=True)
