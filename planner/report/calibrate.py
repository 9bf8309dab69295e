"""A calibration for people and as data: what changes, and how errors move."""

from dataclasses import asdict
from typing import Any, Literal

from rich.console import Console

from planner.calibrate.fit import Calibration, Fitted, Own
from planner.report.documents import render
from planner.report.screen import plain_table


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


def print_calibration(made: Calibration, console: Console) -> None:
    """Print the figures, then the errors."""
    console.print(headline(made), style="bold", markup=False)
    if made.fitted:
        table = plain_table()
        for name in ("figure", "catalog", "basis", "yours", "+-", "change", "points"):
            justify: Literal["left", "right"] = "left" if name in ("figure", "basis") else "right"
            table.add_column(name, justify=justify, overflow="fold")
        for each in made.fitted:
            table.add_row(each.key, *_cells(each))
        console.print(table)
    errors = plain_table()
    errors.add_column("mean error of", overflow="fold")
    for name in ("points", "before", "after"):
        errors.add_column(name, justify="right")
    for own in made.own:
        label = f"{own.path} ({own.kind})"
        errors.add_row(label, str(own.num_points), f"{own.before:.1%}", f"{own.after:.1%}")
    console.print(errors)
    for own in made.own:
        if own.is_strange:
            console.print(strange_line(made, own), markup=False)


def strange_line(made: Calibration, own: Own) -> str:
    """That a file may be of another machine."""
    factor = own.ratio if own.ratio > 1.0 else 1.0 / own.ratio
    side = "fast" if (own.ratio > 1.0) != (own.kind == "host link") else "slow"
    return (
        f"{own.path} ({own.kind}) is {factor:.1f} times as {side} as "
        f"{made.base.cluster.name} is priced: is it of this machine?"
    )


def _cells(each: Fitted) -> tuple[str, ...]:
    return (
        f"{each.catalog.value:g}" if each.is_known else "-",
        each.catalog.basis,
        f"{each.value:.4g}",
        f"{each.value * each.deviation:.2g}",
        f"{each.change:+.1%}" if each.is_known else "-",
        str(each.num_points),
    )


def render_calibration_json(made: Calibration, text: str) -> str:
    """The same as data, with the cluster file."""
    body: dict[str, Any] = {
        "cluster": made.base.cluster.name,
        "accelerator": made.base.cluster.accelerator.name,
        "figures": [
            {
                "key": each.key,
                "catalog": each.catalog.value if each.is_known else None,
                "basis": each.catalog.basis,
                "value": each.value,
                "deviation": each.value * each.deviation,
                "num_points": each.num_points,
            }
            for each in made.fitted
        ],
        "own": [asdict(own) for own in made.own],
        "cluster_file": text,
    }
    return render("calibrate", body)
