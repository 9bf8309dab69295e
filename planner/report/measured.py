"""A machine stated whole, for people and as data."""

from dataclasses import asdict
from typing import Any

from rich.console import Console

from planner.calibrate.state import Whole
from planner.calibrate.stated import Stated
from planner.report.documents import render
from planner.report.screen import plain_table

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
    "nvme_write_gb_per_s": "GB/s",
    "nvme_read_gb_per_s": "GB/s",
}
"""Measured figures worth a line, with their units; the file has all."""


def print_whole(made: Whole, console: Console) -> None:
    """Print the figures that matter, then how well the model follows what was measured."""
    console.print(headline(made), style="bold", markup=False)
    table = plain_table()
    for name in ("figure", "measured", "unit", "+-", "points"):
        table.add_column(name, justify="left" if name in ("figure", "unit") else "right")
    for each in made.figures:
        if each.num_points and each.key in SHOWN and not isinstance(each.value, tuple):
            table.add_row(each.key, f"{each.value:.4g}", SHOWN[each.key], *_spread(each))
    console.print(table)
    errors = plain_table()
    for name in ("mean error of the model on", "points", "error"):
        errors.add_column(name, justify="left" if name.startswith("mean") else "right")
    for own in made.own:
        errors.add_row(own.kind, str(own.num_points), f"{own.after:.1%}")
    console.print(errors)


def _spread(each: Stated) -> tuple[str, str]:
    return f"{100 * each.deviation:.1f} %", str(each.num_points)


def headline(made: Whole) -> str:
    """What was measured, in a sentence."""
    machine = made.table.machine
    cluster = made.base.cluster
    nodes = "" if machine.nodes == 1 else f"{machine.nodes} nodes of "
    return (
        f"{nodes}{machine.per_node} x {cluster.accelerator.name}: {len(made.figures)} figures from "
        f"{len(made.table.rows)} measurements; no catalog stands behind them."
    )


def render_whole_json(made: Whole, text: str) -> str:
    """The same as data, with the cluster file."""
    body: dict[str, Any] = {
        "cluster": made.base.cluster.name,
        "accelerator": made.base.cluster.accelerator.name,
        "figures": [
            {
                "key": ".".join(str(step) for step in each.path),
                "catalog": None,
                "basis": each.figure("")["basis"],
                "value": each.value,
                "deviation": each.value * each.deviation,
                "num_points": each.num_points,
            }
            for each in made.figures
            if not isinstance(each.value, tuple)
        ],
        "own": [asdict(own) for own in made.own],
        "cluster_file": text,
    }
    return render("calibrate", body)
