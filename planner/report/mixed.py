"""Plans on mixed machines: the terminal form and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from planner.cost.flops import FLOPS_CONVENTION
from planner.pools.answer import MixedAnswer, MixedPlan, Part
from planner.report.documents import render
from planner.report.headline import layout_words
from planner.report.screen import plain_table
from planner.report.sensitivity import short_layout
from planner.report.tables import days
from planner.report.text import is_assumed, print_notes
from planner.units import GIB, format_bytes, format_count, format_seconds


def layers_text(layers: Sequence[int]) -> str:
    """Layers of stages, equal neighbours together: ``2, 7 x 3`` is three stages of 7."""
    runs = [(number, len(list(run))) for number, run in groupby(layers)]
    return ", ".join(
        f"{number} x {length}" if length > 1 else str(number) for number, length in runs
    )


def stages_text(part: Part) -> str:
    """The stages of a pool, counted from 0."""
    first, last = part.stages.start, part.stages.stop - 1
    return str(first) if first == last else f"{first}-{last}"


def gpus_text(part: Part) -> str:
    """The GPUs of a pool that work."""
    return f"{part.num_gpus:,} {part.pool.cluster.accelerator.name}"


def run_line(plan: MixedPlan) -> str:
    """What to run: on which pools, cut up how."""
    if plan.kind == "one pool":
        part = plan.parts[0]
        return f"Run it on {part.pool.name} alone, {gpus_text(part)}: {layout_words(part.plan)}."
    places = " and ".join(gpus_text(part) for part in plan.parts)
    if plan.kind == "pipeline":
        order = ", then ".join(part.pool.name for part in plan.parts)
        return (
            f"Run it as one pipeline over {places} ({order}): {layout_words(plan.parts[0].plan)}."
        )
    each = "; ".join(
        f"{part.pool.name} {part.sequences} sequences as {layout_words(part.plan)}"
        for part in plan.parts
    )
    return f"Run replicas on {places}: {each}."


def time_line(plan: MixedPlan) -> str:
    """What an iteration takes, with the range of such runs."""
    low, high = plan.range_s
    return (
        f"{format_seconds(plan.iteration_s)} an iteration (80 % of runs: {format_seconds(low)} to "
        f"{format_seconds(high)}), {format_count(round(plan.tokens_per_s))} tokens/s"
    )


def figure_lines(plan: MixedPlan) -> list[str]:
    """What a plan takes."""
    lines = [time_line(plan), f"MFU {plan.mfu:.1%} of the peak of all {plan.num_gpus:,} GPUs"]
    job = plan.job
    if job.total_tokens is not None:
        total_s = job.total_tokens / plan.tokens_per_s
        lines.append(
            f"{format_count(job.total_tokens)} tokens: {days(total_s)} days, "
            f"{format_count(round(total_s / 3600 * plan.num_gpus))} GPU-hours"
        )
    return lines


def pools_table(plan: MixedPlan) -> Table:
    """What each pool does."""
    made = plain_table()
    made.add_column("pool", no_wrap=True)
    made.add_column("GPUs", no_wrap=True)
    made.add_column("stages", no_wrap=True)
    made.add_column("layers of each")
    made.add_column("busy", justify="right", no_wrap=True)
    made.add_column("GiB of HBM", justify="right", no_wrap=True)
    for part in plan.parts:
        made.add_row(
            part.pool.name,
            gpus_text(part),
            stages_text(part),
            layers_text(part.layers),
            f"{part.busy_s / plan.iteration_s:.0%}",
            f"{part.peak_bytes / GIB:.1f} of {part.hbm_bytes / GIB:.1f}",
        )
    return made


def way_text(plan: MixedPlan) -> str:
    """A way to use the pools, in a cell."""
    if plan.kind == "pipeline":
        pools = ", ".join(part.pool.name for part in plan.parts)
        return f"pipeline {pools}: {short_layout(plan.parts[0].plan)}"
    if plan.kind == "one pool":
        return f"{plan.parts[0].pool.name} alone: {short_layout(plan.parts[0].plan)}"
    each = "; ".join(
        f"{part.pool.name} {part.sequences} sequences: {short_layout(part.plan)}"
        for part in plan.parts
    )
    return f"replicas*, {each}"


def ways_table(found: MixedAnswer) -> Table:
    """All ways, by time."""
    made = plain_table()
    made.add_column("GPUs", justify="right", no_wrap=True)
    made.add_column("way")
    made.add_column("iteration", justify="right", no_wrap=True)
    made.add_column("vs first", justify="right", no_wrap=True)
    made.add_column("MFU", justify="right", no_wrap=True)
    first = found.first
    for plan in found.plans:
        change = plan.iteration_s / first.iteration_s - 1.0
        versus = "" if plan is first else f"{change:+.1%}" if change < 1.0 else f"{change + 1:.1f}x"
        made.add_row(
            f"{plan.num_gpus:,}",
            way_text(plan),
            format_seconds(plan.iteration_s),
            versus,
            f"{plan.mfu:.1%}",
        )
    return made


def inputs_line(found: MixedAnswer) -> str:
    """What was asked."""
    context = found.contexts[0]
    pools = " + ".join(
        f"{pool.cluster.num_nodes} {pool.cluster.node.name}" for pool in found.cluster.pools
    )
    return (
        f"{context.model.name} on {found.cluster.name} ({pools}), batch {context.job.global_batch} "
        f"x {context.job.seq_len} tokens, {context.job.precision}"
        f"{context.traits.training.suffix}, {context.traits.name}"
    )


def print_mixed(found: MixedAnswer, console: Console, *, verbose: bool, following: str) -> None:
    """What to run first, then what each pool does, then the other ways."""
    plan = found.first
    console.print(inputs_line(found), style="dim", markup=False)
    print_notes([note for note in found.notes if not is_assumed(note)], console)
    console.print(run_line(plan), style="bold", markup=False)
    for line in figure_lines(plan):
        console.print(f"  {line}", markup=False)
    console.print(pools_table(plan))
    console.print("Ways to use the machines", style="bold", markup=False)
    console.print(ways_table(found))
    for line in _remarks(found):
        console.print(line, markup=False)
    if verbose:
        print_notes([note for note in found.notes if is_assumed(note)], console)
        console.print(_grounds(found), style="dim", markup=False)
    if following:
        console.print(f"Next: {following}", markup=False, soft_wrap=True)


def _remarks(found: MixedAnswer) -> list[str]:
    """What else is to be known of the table."""
    lines = []
    if any(plan.kind == "replicas" for plan in found.plans):
        lines.append("* pools with batches of their own: no framework's files say that.")
    if found.unfit:
        lines.append(f"Nothing fits {' or '.join(found.unfit)} alone.")
    return lines


def _grounds(found: MixedAnswer) -> str:
    """What the answer rests on."""
    between = found.cluster.between
    proof = "proved" if found.proved_optimal else "NOT proved"
    return (
        f"{found.num_layouts:,} layouts of pipelines over pools in {found.seconds:.1f} s, the best "
        f"one {proof} under the model; between pools {format_bytes(between.bytes_per_s)}/s a GPU, "
        f"{between.latency_s * 1e6:.0f} us."
    )


def _part_dict(part: Part, plan: MixedPlan) -> dict[str, Any]:
    return {
        "pool": part.pool.name,
        "node": part.pool.cluster.node.name,
        "accelerator": part.pool.cluster.accelerator.name,
        "gpus": part.num_gpus,
        "stages": list(part.stages),
        "layers_per_stage": list(part.layers),
        "global_batch": part.sequences,
        "busy_s": part.busy_s,
        "busy_fraction": part.busy_s / plan.iteration_s,
        "peak_bytes": part.peak_bytes,
        "hbm_bytes": part.hbm_bytes,
        "stage_peak_bytes": [part.estimate.memory.stage_peak_bytes[i] for i in part.stages],
        "strategy": {**asdict(part.strategy), "recompute": part.strategy.recompute},
    }


def _plan_dict(plan: MixedPlan) -> dict[str, Any]:
    low, high = plan.range_s
    job = plan.job
    total_s = None if job.total_tokens is None else job.total_tokens / plan.tokens_per_s
    return {
        "kind": plan.kind,
        "is_written": plan.is_written,
        "gpus": plan.num_gpus,
        "iter_time_s": plan.iteration_s,
        "iter_time_s_lower": low,
        "iter_time_s_upper": high,
        "exchange_s": plan.exchange_s,
        "tokens_per_s": plan.tokens_per_s,
        "mfu": plan.mfu,
        "days": None if total_s is None else total_s / 86400.0,
        "proved_optimal": plan.is_optimal,
        "pools": [_part_dict(part, plan) for part in plan.parts],
    }


def render_mixed_json(found: MixedAnswer) -> str:
    """The answer as JSON, base units throughout."""
    context, between = found.contexts[0], found.cluster.between
    body = {
        "flops_convention": FLOPS_CONVENTION,
        "inputs": {
            "model": context.model.name,
            "cluster": found.cluster.name,
            "gpus": found.cluster.num_accelerators,
            "pools": [
                {
                    "pool": pool.name,
                    "node": pool.cluster.node.name,
                    "accelerator": pool.cluster.accelerator.name,
                    "nodes": pool.cluster.num_nodes,
                    "gpus": pool.num_accelerators,
                }
                for pool in found.cluster.pools
            ],
            "between_bytes_per_s": between.bytes_per_s,
            "between_latency_s": between.latency_s,
            "framework": context.traits.name,
            "profile": context.traits.profile,
            "global_batch": context.job.global_batch,
            "seq_len": context.job.seq_len,
            "precision": context.job.precision,
            "total_tokens": context.job.total_tokens,
            "assumed": list(found.notes),
        },
        "best": found.plans.index(found.first),
        "plans": [_plan_dict(plan) for plan in found.plans],
        "nothing_fits": list(found.unfit),
        "search": {
            "layouts": found.num_layouts,
            "seconds": found.seconds,
            "is_complete": found.is_complete,
            "proved_optimal": found.proved_optimal,
        },
    }
    return render("mixed-plan", body)
