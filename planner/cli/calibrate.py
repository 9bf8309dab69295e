"""``planner calibrate``: a machine's own figures as a cluster file, from what was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import say

if TYPE_CHECKING:
    from planner.calibrate.figures import Base
    from planner.calibrate.points import Point
    from planner.check.job import Request


def calibrate(
    cluster: Annotated[
        str, typer.Argument(metavar="CLUSTER", help=f"{options.NODES_OF_A_KIND}, or a YAML file.")
    ],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Output of nccl-tests, rccl-tests or nvbandwidth, a CSV of products "
            "(m,n,k,dtype and time_us or tflops), or logs of runs.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Model of the logs that state none.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration of the logs [their own].")
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(metavar="RUNS", help="Published runs to price before and after."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, and write nothing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the cluster to this YAML file.")] = None,
    force: options.Force = False,
    output_format: options.OutputFormat = options.TableOrJson.table,
) -> None:
    """Fit a cluster's figures to measurements, held to the catalog's where these say little."""
    from datetime import UTC, datetime

    from planner.calibrate.figures import read_base
    from planner.calibrate.fit import calibrate as fit
    from planner.calibrate.published import published_errors
    from planner.calibrate.write import cluster_text
    from planner.check.job import Request
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.report.calibrate import print_calibration, render_calibration_json
    from planner.report.files import check_writable, write_atomically

    if out is not None and not dry_run:
        _check_name(out)
        check_writable(out, force=force, option="--out")
    base = read_base(cluster)
    with delayed_progress() as progress:
        progress("reading", 0.0)
        points = _points(files, base, Request(model=model, cluster=cluster), config)
        progress("fitting", 0.5)
        made = fit(base, points)
        moved = published_errors(made, published) if published else None
    words = ["planner calibrate", cluster, *files]
    folder = out.parent if out else Path()
    text = cluster_text(made, " ".join(words), datetime.now(UTC).date(), folder)
    if output_format is options.TableOrJson.json:
        typer.echo(render_calibration_json(made, moved, text))
    else:
        print_calibration(made, moved, console())
    if out is not None and not dry_run:
        write_atomically(out, text, option="--out")
        say(f"wrote {out}")
    elif output_format is not options.TableOrJson.json:
        say("nothing written: --out FILE writes the cluster file")


def _check_name(out: Path) -> None:
    from planner.errors import InputError

    if out.suffix not in (".yaml", ".yml") or not out.name.isprintable():
        message = f"must be a name that ends in .yaml; given {str(out)!r}"
        raise InputError.single("command line", "--out", message)


def _points(
    files: list[str], base: "Base", request: "Request", config: str | None
) -> "list[Point]":
    """The points of all files; what is wrong with them is reported at once."""
    from functools import partial

    from planner.calibrate.points import Point
    from planner.calibrate.read import points_of
    from planner.cli.collector import Collector

    collector, found = Collector(), list[Point]()
    for name in files:
        found += collector.read(partial(points_of, name, base, request, config)) or []
    collector.finish()
    return found
