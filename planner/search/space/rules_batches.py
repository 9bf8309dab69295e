"""Rules of micro-batches, and of the pieces that a sequence is cut into."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import (
    Columns,
    Row,
    batch,
    is_schedule,
    micro_batches,
    rule,
    schedule,
    software,
)
from planner.spec.strategy import V_SHAPED
from planner.units import Array, Mask


def _num_micro_batches(context: Context, columns: Columns) -> Array:
    num: Array = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    return num


def _uneven_micro_batches(context: Context, row: Row) -> str:
    dp, sequences = row["dp"], context.job.global_batch
    share = f"{sequences // dp} sequences of each of dp {dp} replicas (batch {sequences})"
    return f"micro-batch {row['micro_batch']} does not divide the {share}"


@rule("dp", "micro_batch", says=_uneven_micro_batches, allowed=batch)
def micro_batch_divisible(context: Context, columns: Columns) -> Mask:
    """Micro-batches of equal size make up each replica's share of the batch."""
    return np.asarray((context.job.global_batch // columns["dp"]) % columns["micro_batch"] == 0)


def _no_multiple_of_stages(context: Context, row: Row) -> str:
    text = f"no multiple of pp {row['pp']}, which vpp {row['vpp']} needs"
    return f"{micro_batches(context, row)}: {text}"


@rule("pp", "schedule", "vpp", "dp", "micro_batch", says=_no_multiple_of_stages)
def vpp_micro_batches(context: Context, columns: Columns) -> Mask:
    """Interleaving needs a number of micro-batches that is a multiple of pp."""
    num = _num_micro_batches(context, columns)
    is_interleaved = (columns["vpp"] > 1) & ~is_schedule(columns, *V_SHAPED)
    return np.asarray(~is_interleaved | (num % columns["pp"] == 0))


def _too_few_to_split(context: Context, row: Row) -> str:
    pp, name = row["pp"], schedule(row)
    least = {"zb-h1": pp, "zb-h2": 2 * pp - 1, "zb-v": 2 * pp - 1, "dualpipe-v": 2 * pp}
    needs = f"{name} with pp {pp} needs {least.get(name, 1)}"
    return f"{micro_batches(context, row)}: {needs}"


@rule("pp", "dp", "micro_batch", "schedule", says=_too_few_to_split)
def schedule_fills(context: Context, columns: Columns) -> Mask:
    """Split backwards need micro-batches: zb-h1 p, zb-h2 and zb-v 2p - 1, dualpipe-v 2p."""
    num, pp = _num_micro_batches(context, columns), columns["pp"]
    least = np.where(is_schedule(columns, "zb-h1"), pp, 1)
    least = np.where(is_schedule(columns, "zb-h2", "zb-v"), 2 * pp - 1, least)
    return np.asarray(num >= np.where(is_schedule(columns, "dualpipe-v"), 2 * pp, least))


def _fewer_than_stages(context: Context, row: Row) -> str:
    needs = f"{software(context)} needs one for each of pp {row['pp']} stages"
    return f"{micro_batches(context, row)}: {needs}"


@rule("pp", "schedule", "vpp", "dp", "micro_batch", says=_fewer_than_stages)
def micro_batches_fill_stages(context: Context, columns: Columns) -> Mask:
    """1F1B without chunks gets a micro-batch per stage where the framework asks for it."""
    num = _num_micro_batches(context, columns)
    asked = context.traits.support.fills_pipeline
    bare = is_schedule(columns, "1f1b") & (columns["vpp"] == 1)
    return np.asarray(~(bare & asked) | (num >= columns["pp"]))


def _unsplit_experts(context: Context, row: Row) -> str:
    """Without sequence parallelism, or biases that would be split."""
    needs_both = context.traits.support.mixtures_need_sequence_parallel
    if needs_both and row["tp"] > 1 and not row["sequence_parallel"]:
        given = f"tp {row['tp']} without sequence parallelism"
        return f"{given}: {software(context)} splits mixtures only with it"
    if context.traits.support.splits_experts == "no":
        return f"etp {row['etp']}: {software(context)} splits no experts"
    biased = f"the experts of {context.model.name} have biases"
    return f"etp {row['etp']}: {biased}, which {software(context)} does not split"


@rule("tp", "etp", "sequence_parallel", says=_unsplit_experts)
def tp_splits_experts(context: Context, columns: Columns) -> Mask:
    """Experts are split as far as the framework can, and theirs with biases perhaps not at all.

    A mixture may need sequence parallelism beside tensor parallelism.
    """
    support, moe = context.traits.support, context.model.moe
    if moe is None:
        return np.ones(len(columns["tp"]), dtype=bool)
    has_both = (columns["sequence_parallel"] == 1) | (not support.mixtures_need_sequence_parallel)
    can = support.splits_experts == "any" or (
        support.splits_experts == "unbiased" and not moe.expert_bias
    )
    splits = (columns["etp"] == 1) | can
    return np.asarray(((columns["tp"] == 1) | has_both) & splits)


def _on_or_off(context: Context, row: Row) -> str:
    """On where it cannot be, or off where it must not."""
    name, tp = software(context), row["tp"]
    if not row["sequence_parallel"]:
        return f"sequence parallelism off with tp {tp}: {name} has it on beside tp"
    if not context.traits.support.sequence_parallel:
        return f"sequence parallelism on: {name} has none"
    return f"sequence parallelism on with tp {tp}: it needs tp above 1"


@rule("tp", "sequence_parallel", says=_on_or_off, offered_by="framework")
def sequence_parallel_offered(context: Context, columns: Columns) -> Mask:
    """Sequence parallelism is offered, needs tp > 1, and comes with it where it is no choice."""
    support, tp = context.traits.support, columns["tp"]
    is_on = columns["sequence_parallel"] == 1
    legal = ~is_on | (support.sequence_parallel & (tp > 1))
    must = support.sequence_parallel & support.sequence_parallel_required & (tp > 1)
    return np.asarray(legal & (is_on | ~must))


def _uneven_pieces(context: Context, row: Row) -> str:
    cp, tp = row["cp"], row["tp"] if row["sequence_parallel"] else 1
    pieces = [*([f"2 x cp {cp}"] if cp > 1 else []), *([f"tp {tp}"] if tp > 1 else [])]
    num = (2 * cp if cp > 1 else 1) * tp
    return f"{context.job.seq_len} tokens do not divide into {' x '.join(pieces)} = {num} pieces"


@rule("tp", "cp", "sequence_parallel", says=_uneven_pieces)
def sequence_divisible(context: Context, columns: Columns) -> Mask:
    """Context parallelism cuts the sequence into 2·cp pieces, sequence parallelism into tp."""
    cp = columns["cp"]
    pieces = np.where(cp > 1, 2 * cp, 1)
    pieces = pieces * np.where(columns["sequence_parallel"] == 1, columns["tp"], 1)
    return np.asarray(context.job.seq_len % pieces == 0)


def _same_tokens(_: Context, row: Row) -> str:
    given = f"etp {row['etp']} with tp {row['tp']} without sequence parallelism"
    return f"{given}: tp ranks hold the same tokens there, so that etp must be tp"


@rule("tp", "etp", "sequence_parallel", says=_same_tokens)
def folded_experts_need_slices(_: Context, columns: Columns) -> Mask:
    """Where etp is not tp, sequence parallelism gives every tp rank tokens of its own."""
    same = (columns["etp"] == columns["tp"]) | (columns["tp"] == 1)
    return np.asarray(same | (columns["sequence_parallel"] == 1))
