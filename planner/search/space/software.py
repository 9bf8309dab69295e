"""Rules of what a framework asks for before it runs a mechanism: all of them are its traits.

Listed, with the rules that hold under every framework, in :mod:`planner.search.space.rules`.
"""

from collections.abc import Mapping

import numpy as np

from planner.cost.context import Context
from planner.spec.model import has_sinks
from planner.spec.strategy import OFFLOAD_CODES, SCHEDULES, gpus_of
from planner.spec.traits import ANY_FAMILY
from planner.units import Array, Mask

Columns = Mapping[str, Array]


def tp_fits_model(context: Context, columns: Columns) -> Mask:
    """The framework can split the layers of the model's family; key/value heads, if it must."""
    support, model = context.traits.support, context.model
    knows = not model.family or bool({ANY_FAMILY, model.family} & set(support.tp_families))
    kv_heads = model.num_heads if model.mla else model.num_kv_heads
    splits = (kv_heads % columns["tp"] == 0) | support.replicates_kv_heads
    return np.asarray((columns["tp"] == 1) | (knows & splits))


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


def cp_fits_attention(context: Context, columns: Columns) -> Mask:
    """Context parallelism runs attention without biases; some frameworks': plain causal alone."""
    model = context.model
    is_biased = model.position in ("alibi", "relative")
    is_plain = model.architecture == "decoder" and not (model.sliding_window or has_sinks(model))
    runs = not is_biased and (is_plain or context.traits.support.cp_attention == "any")
    return np.asarray((columns["cp"] == 1) | runs)


def pp_ties_embeddings(context: Context, columns: Columns) -> Mask:
    """A model whose embedding is its head is pipelined only where the framework ties stages."""
    ties = context.traits.support.pipelines_tied_embeddings or not context.model.tied_embeddings
    return np.asarray((columns["pp"] == 1) | ties)


def chunks_hide_transfers(context: Context, columns: Columns) -> Mask:
    """Chunks need more stages where transfers are waited for, as far as the framework asks."""
    least = context.traits.support.fewest_waiting_chunked_stages
    waits = context.traits.overlap.pipeline_p2p_overlap == "none"
    return np.asarray((columns["vpp"] == 1) | (columns["pp"] >= least) | (not waits))


def exchange_overlap_has_chunks(context: Context, columns: Columns) -> Mask:
    """Expert exchange beside another micro-batch: with stages only in chunks, if asked for."""
    overlap, support = context.traits.overlap, context.traits.support
    asked = support.batch_overlap_needs_chunks & (overlap.expert_all_to_all_overlap == "batches")
    bare = (columns["pp"] > 1) & (columns["vpp"] == 1) & (columns["ep"] > 1)
    return np.asarray(~(bare & asked))


def micro_batches_fill_stages(context: Context, columns: Columns) -> Mask:
    """1F1B without chunks gets a micro-batch per stage where the framework asks for it."""
    num = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    asked = context.traits.support.fills_pipeline
    bare = (columns["schedule"] == SCHEDULES.index("1f1b")) & (columns["vpp"] == 1)
    return np.asarray(~(bare & asked) | (num >= columns["pp"]))


def states_have_ranks(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism without ranks to shard over runs where the framework can, offload too."""
    alone = (columns["dp"] // columns["dp_replicate"] * columns["cp"] == 1) & (columns["tp"] > 1)
    kind = context.traits.support.tp_alone
    stays = (columns["offload"] == OFFLOAD_CODES.index("none")) & (columns["dp"] == 1)
    return np.asarray(~alone | (kind == "yes") | ((kind == "without offload") & stays))


def secondary_partition_fits(context: Context, columns: Columns) -> Mask:
    """A second copy of the weights inside the node: neighbouring ranks, all in equal groups."""
    if not context.traits.states.zero3_secondary_weight_bytes:
        return np.ones(len(columns["tp"]), dtype=bool)
    gpus = gpus_of(columns)
    group = np.minimum(gpus, context.cluster.node.num_accelerators)
    fits = (columns["tp"] * columns["cp"] == 1) & (gpus % group == 0)
    return np.asarray(fits | (columns["zero_stage"] != 3))
