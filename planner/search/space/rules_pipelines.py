"""Rules of pipeline schedules and of the chunks of a stage."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.interleaving import chunk_size, chunks_fit
from planner.search.space.rule import (
    Columns,
    Row,
    is_schedule,
    lacks,
    layers,
    rule,
    schedule,
    software,
)
from planner.spec.strategy import V_SHAPED
from planner.units import Mask


def _other_schedules(context: Context, row: Row) -> str:
    offered = ", ".join(context.traits.support.schedules)
    return f"schedule {schedule(row)}: {software(context)} offers {offered}"


def _schedules(context: Context) -> str:
    profile = f"profile {context.traits.profile} of {context.traits.name}"
    return f"{profile} offers {', '.join(context.traits.support.schedules)}"


@rule("schedule", says=_other_schedules, allowed=_schedules, offered_by="framework")
def schedule_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the pipeline schedule."""
    return is_schedule(columns, *context.traits.support.schedules)


@rule(
    *("pp", "schedule"),
    says=lambda _, row: f"schedule {schedule(row)} with pp {row['pp']}: it needs several stages",
)
def schedule_needs_stages(_: Context, columns: Columns) -> Mask:
    """Schedules other than 1F1B need several stages."""
    return np.asarray((columns["pp"] > 1) | is_schedule(columns, "1f1b"))


@rule(
    "schedule",
    says=lambda _, row: f"schedule {schedule(row)} takes as long as 1f1b and holds more",
    only_prunes=True,
)
def schedule_pays(context: Context, columns: Columns) -> Mask:
    """GPipe takes as long as 1F1B and holds more: not where 1F1B can be chosen."""
    return np.asarray(~is_schedule(columns, "gpipe") | ("1f1b" not in context.schedules))


@rule("vpp", says=lacks("vpp", "interleaved schedule"), offered_by="framework")
def vpp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers an interleaved schedule."""
    return np.asarray((columns["vpp"] == 1) | context.traits.support.vpp)


def _chunks_it_takes(_: Context, row: Row) -> str:
    name = schedule(row)
    takes = "2" if name in V_SHAPED else "2 or more" if name == "zb-interleaved" else "1"
    return f"schedule {name} with vpp {row['vpp']}: it takes {takes}"


@rule("schedule", "vpp", says=_chunks_it_takes)
def schedule_fits_chunks(_: Context, columns: Columns) -> Mask:
    """1F1B takes any chunks per stage; V-shaped schedules 2, zb-interleaved several, others one."""
    vpp = columns["vpp"]
    legal = is_schedule(columns, "1f1b")
    legal |= is_schedule(columns, *V_SHAPED) & (vpp == 2)
    legal |= is_schedule(columns, "zb-interleaved") & (vpp > 1)
    return np.asarray(legal | (is_schedule(columns, "gpipe", "zb-h1", "zb-h2") & (vpp == 1)))


def _unfilled_chunks(context: Context, row: Row) -> str:
    pp, vpp, num_layers = row["pp"], row["vpp"], context.model.num_blocks
    if pp == 1:
        return f"vpp {vpp} with pp 1: interleaving needs several stages"
    chunks = f"pp {pp} x vpp {vpp} = {pp * vpp} chunks"
    unfilled = f"{num_layers} layers do not fill {chunks}"
    if schedule(row) != "1f1b" or not context.traits.support.uneven_stages:
        whose = "" if context.traits.support.uneven_stages else f" under {software(context)}"
        return f"{unfilled}, which must be equal{whose}"
    size = int(chunk_size(num_layers, np.array([pp]), np.array([vpp]))[0])
    return f"{unfilled} of {size}, of which the end stages may lack one"


@rule("pp", "schedule", "vpp", says=_unfilled_chunks, allowed=layers)
def layers_fill_chunks(context: Context, columns: Columns) -> Mask:
    """Interleaving needs several stages and a layer in every chunk, but one at either end.

    Zero-bubble schedules need equal chunks, frameworks without uneven stages equal stages too.
    """
    can = context.traits.support.uneven_stages
    uneven = is_schedule(columns, "1f1b") & can
    fit = chunks_fit(context.model.num_blocks, columns["pp"], columns["vpp"], uneven=uneven)
    whole = can | (context.model.num_blocks % columns["pp"] == 0)
    return np.where(columns["vpp"] == 1, whole, (columns["pp"] > 1) & fit)


def _shown_transfers(context: Context, row: Row) -> str:
    least = context.traits.support.fewest_waiting_chunked_stages
    waits = f"{software(context)} waits for transfers between stages"
    return f"vpp {row['vpp']} with pp {row['pp']}: {waits}, so that it needs pp {least}"


@rule("pp", "vpp", says=_shown_transfers)
def chunks_hide_transfers(context: Context, columns: Columns) -> Mask:
    """Chunks need more stages where transfers are waited for, as far as the framework asks."""
    least = context.traits.support.fewest_waiting_chunked_stages
    waits = context.traits.overlap.pipeline_p2p_overlap == "none"
    return np.asarray((columns["vpp"] == 1) | (columns["pp"] >= least) | (not waits))
