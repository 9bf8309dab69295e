"""``planner repair``: the smallest edit that makes a plan legal and fit on a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options

if TYPE_CHECKING:
    from planner.cost.context import Context
    from planner.plans.plan_file import PlanFile


def _margin_fraction(percent: float | None) -> float | None:
    from planner.errors import InputError

    if percent is None:
        return None
    if not 0.0 <= percent < 100.0:
        message = f"must be from 0 to below 100 percent; given {percent}"
        raise InputError.single("command line", "--margin", message)
    return percent / 100.0


def _search_command(file: "PlanFile", context: "Context", cluster: str) -> str:
    """``planner plan`` with the plan's own question."""
    import shlex

    from planner.plans.trait_settings import settings_mapping

    inputs, job = file.inputs, context.job
    words = ["planner", "plan", inputs.model, cluster, "--framework", inputs.framework]
    words += ["--profile", inputs.profile]
    for section, values in settings_mapping(context.traits.settings).items():
        for key, value in values.items():
            words += ["--set", f"traits.{section}.{key}={value}"]
    words += ["--global-batch", str(job.global_batch), "--seq-len", str(job.seq_len)]
    words += ["--precision", job.precision, "--optimizer", inputs.optimizer]
    words += ["--margin", f"{100.0 * context.margin_fraction:g}"]
    return shlex.join(words)


def repair(
    plan: Annotated[Path, typer.Argument(help="Plan file written by --save, or edited by hand.")],
    cluster: options.Cluster,
    margin: Annotated[
        float | None, typer.Option(help="Percent of HBM to leave free [the plan's].")
    ] = None,
    output_format: options.OutputFormat = options.TableOrJson.table,
    save: Annotated[Path | None, typer.Option(help="Write the repaired plan to this file.")] = None,
    force: options.Force = False,
) -> None:
    """Find the fewest changes that make a plan legal and fit on a cluster."""
    from planner.cli.inputs import argument_for_file
    from planner.cli.output import console
    from planner.cli.progress import delayed_progress
    from planner.plans.plan_file import plan_text
    from planner.plans.repair import own_context, read_for_repair, repaired_plan
    from planner.plans.repair import repair as find_repair
    from planner.report.files import check_writable, write_atomically
    from planner.report.repair import print_repair, render_repair_json

    if save is not None:
        check_writable(save, force=force)
    context, strategy, file = read_for_repair(plan, cluster, _margin_fraction(margin))
    with delayed_progress() as progress:
        answer = find_repair(context, strategy, own=own_context(plan), progress=progress)
    command = _search_command(file, context, cluster)
    if output_format is options.TableOrJson.json:
        typer.echo(render_repair_json(answer, plan=str(plan), command=command))
    else:
        print_repair(answer, console(), plan=str(plan), command=command)
    chosen = repaired_plan(answer)
    if chosen is None:
        raise typer.Exit(3)
    if save is not None:
        text = plan_text(chosen, model=file.inputs.model, cluster=argument_for_file(cluster))
        write_atomically(save, text)
        typer.echo(f"saved the plan to {save}", err=True)
