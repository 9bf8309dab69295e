"""A calibration, and a machine stated whole, for people and as data."""

from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from rich.console import Console

from planner.calibrate.fit import Calibration, Fitted, OwnErrors
from planner.calibrate.machine import MeasuredMachine
from planner.report.document import serialise
from planner.report.table import Column, Table, rich_table
from planner.spec.cluster import ClusterSpec

SHOWN = {
    "fp32_tflops": "TFLOP/s",
    "fp16_dense_tflops": "TFLOP/s",
    "bf16_dense_tflops": "TFLOP/s",
    "hbm_gb_per_s": "GB/s",
    "memory_bound_fraction": "of it",
    "gemm.sustained_fraction": "of the best product",
    "gemm.launch_us": "us",
    "attention.forward_fraction": "of the best product",
    "attention.backward_fraction": "of the best product",
    "scale_up.gb_per_s_per_direction": "GB/s",
    "scale_up.latency_us": "us",
    "nic_gbit_per_s": "Gbit/s",
    "host_link_gb_per_s_per_direction": "GB/s",
    "host_core_gb_per_s": "GB/s",
}
"""Measured figures worth a line, with their units; the file has all."""
TEXTS = ("figure", "basis", "unit")
"""Columns of words; the others are numbers."""


def print_calibration(made: Calibration, console: Console) -> None:
    """Print the figures, then the errors, and which file may be of another machine."""
    console.print(headline(made), style="bold", markup=False)
    if made.fitted:
        names = ("figure", "catalog", "basis", "yours", "+-", "change", "points")
        console.print(rich_table(_table(names, [_cells(each) for each in made.fitted])))
    errors = [
        (f"{own.path} ({own.kind})", str(own.num_points), f"{own.before:.1%}", f"{own.after:.1%}")
        for own in made.own
    ]
    console.print(rich_table(_table(("mean error of", "points", "before", "after"), errors)))
    for own in made.own:
        if own.is_strange:
            console.print(_strange_line(made, own), markup=False)


def headline(made: Calibration) -> str:
    """What the points say of the machine, in a sentence."""
    name, count = made.base.cluster.name, sum(own.num_points for own in made.own)
    if not made.fitted:
        return f"{name}: {_number(count, 'point')}, which no figure that can be fitted follows."
    most = max(made.fitted, key=lambda each: abs(each.change) * each.is_known)
    number = f"{_number(len(made.fitted), 'figure')} from {_number(count, 'point')}"
    return f"{name}: {number}; most changes {most.key}, {most.change:+.1%}."


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table[Sequence[str]]:
    """A table whose first column is words."""
    columns: list[Column[Sequence[str]]] = []
    for place, name in enumerate(names):
        is_text = place == 0 or name in TEXTS
        columns.append(Column(name, itemgetter(place), right=not is_text, wraps=is_text))
    return Table(rows, columns)


def _cells(each: Fitted) -> tuple[str, ...]:
    return (
        each.key,
        f"{each.catalog.value:g}" if each.is_known else "-",
        each.catalog.basis,
        f"{each.value:.4g}",
        f"{each.value * each.deviation:.2g}",
        f"{each.change:+.1%}" if each.is_known else "-",
        str(each.num_points),
    )


def _strange_line(made: Calibration, own: OwnErrors) -> str:
    """That a file may be of another machine."""
    factor = own.ratio if own.ratio > 1.0 else 1.0 / own.ratio
    # of links rates are compared, of all else times
    side = "fast" if (own.ratio > 1.0) != (own.kind == "host link") else "slow"
    return (
        f"{own.path} ({own.kind}) is {factor:.1f} times as {side} as "
        f"{made.base.cluster.name} is priced: is it of this machine?"
    )


def print_machine(made: MeasuredMachine, console: Console) -> None:
    """Print the figures that matter, then how well the model follows what was measured."""
    machine = made.table.machine
    nodes = "" if machine.nodes == 1 else f"{machine.nodes} nodes of "
    said = (
        f"{nodes}{machine.per_node} x {made.base.cluster.accelerator.name}: {len(made.figures)} "
        f"figures from {len(made.table.rows)} measurements; no catalog stands behind them."
    )
    console.print(said, style="bold", markup=False)
    rows = [
        (
            each.key,
            f"{each.value:.4g}",
            SHOWN[each.key],
            f"{100 * each.deviation:.1f} %",
            str(each.num_points),
        )
        for each in made.figures
        if each.num_points and each.key in SHOWN
    ]
    console.print(rich_table(_table(("figure", "measured", "unit", "+-", "points"), rows)))
    errors = [(own.kind, str(own.num_points), f"{own.after:.1%}") for own in made.own]
    console.print(rich_table(_table(("mean error of the model on", "points", "error"), errors)))


def render_calibration_json(made: Calibration, text: str) -> str:
    """The same as data, with the cluster file."""
    figures = [
        {
            "key": each.key,
            "catalog": each.catalog.value if each.is_known else None,
            "basis": each.catalog.basis,
            "value": each.value,
            "deviation": each.value * each.deviation,
            "num_points": each.num_points,
        }
        for each in made.fitted
    ]
    return _document(made.base.cluster, figures, made.own, text)


def render_machine_json(made: MeasuredMachine, text: str) -> str:
    """The same of a machine stated whole; figures that are lists are in the file alone."""
    figures = [
        {
            "key": each.path,
            "catalog": None,
            "basis": each.basis,
            "value": each.value,
            "deviation": each.value * each.deviation,
            "num_points": each.num_points,
        }
        for each in made.figures
        if not isinstance(each.value, tuple)
    ]
    return _document(made.base.cluster, figures, made.own, text)


def _document(
    cluster: ClusterSpec, figures: list[dict[str, Any]], own: Sequence[OwnErrors], text: str
) -> str:
    body = {
        "cluster": cluster.name,
        "accelerator": cluster.accelerator.name,
        "figures": figures,
        "own": [asdict(each) for each in own],
        "cluster_file": text,
    }
    return serialise("calibrate", body)
