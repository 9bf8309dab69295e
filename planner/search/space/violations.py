"""What one layout does against a rule, in words with its numbers."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from planner.cost.context import Context
from planner.search.space import refusals
from planner.search.space.interleaving import chunk_size
from planner.search.space.wording import (
    Row,
    Wording,
    gpus,
    micro_batches,
    product,
    schedule,
    software,
)
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, V_SHAPED
from planner.units import ceil_div


def tp_divides_heads(context: Context, row: Row) -> str:
    """Heads over tp."""
    return f"tp {row['tp']} does not divide {context.model.num_heads} heads"


def tp_divides_kv_heads(context: Context, row: Row) -> str:
    """Key/value heads over tp, or the other way round."""
    heads = context.model.num_kv_heads
    return f"tp {row['tp']} and {heads} key/value heads: neither divides the other"


def tp_divides_ffn(context: Context, row: Row) -> str:
    """The widths that are not divided."""
    moe = context.model.moe
    widths = {"an MLP": context.model.ffn_size}
    if moe:
        widths |= {"the shared experts": moe.shared_ffn_size}
    off = [f"the width {width} of {what}" for what, width in widths.items() if width % row["tp"]]
    return f"tp {row['tp']} does not divide {' or '.join(off)}"


def tp_within_scale_up_domain(context: Context, row: Row) -> str:
    """Outside the domain."""
    domain = context.cluster.node.scale_up.num_accelerators
    return f"tp {row['tp']} leaves the scale-up domain of {domain} GPUs"


def pp_at_most_layers(context: Context, row: Row) -> str:
    """More stages than layers."""
    return f"pp {row['pp']} is more than the {context.model.num_blocks} layers"


def schedule_needs_stages(_: Context, row: Row) -> str:
    """A single stage."""
    return f"schedule {schedule(row)} with pp {row['pp']}: it needs several stages"


def schedule_pays(_: Context, row: Row) -> str:
    """Never better than 1F1B."""
    return f"schedule {schedule(row)} takes as long as 1f1b and holds more"


def schedule_fits_chunks(_: Context, row: Row) -> str:
    """The chunks a schedule takes."""
    name = schedule(row)
    takes = "2" if name in V_SHAPED else "2 or more" if name == "zb-interleaved" else "1"
    return f"schedule {name} with vpp {row['vpp']}: it takes {takes}"


def layers_fill_chunks(context: Context, row: Row) -> str:
    """Chunks that layers do not fill."""
    pp, vpp, layers = row["pp"], row["vpp"], context.model.num_blocks
    if pp == 1:
        return f"vpp {vpp} with pp 1: interleaving needs several stages"
    chunks = f"pp {pp} x vpp {vpp} = {pp * vpp} chunks"
    if schedule(row) != "1f1b" or not context.traits.support.uneven_stages:
        whose = "" if context.traits.support.uneven_stages else f" under {software(context)}"
        return f"{layers} layers do not fill {chunks}, which must be equal{whose}"
    size = int(chunk_size(layers, np.array([pp]), np.array([vpp]))[0])
    return f"{layers} layers do not fill {chunks} of {size}, of which the end stages may lack one"


def batch_divisible(context: Context, row: Row) -> str:
    """The batch over dp."""
    return f"dp {row['dp']} does not divide the global batch of {context.job.global_batch}"


def within_cluster(context: Context, row: Row) -> str:
    """GPUs needed and there."""
    return f"{gpus(row)[0]}, the cluster has {context.cluster.num_accelerators:,}"


def whole_nodes(context: Context, row: Row) -> str:
    """GPUs that leave a node partly used."""
    words, number = gpus(row)
    per_node = context.cluster.node.num_accelerators
    nodes = int(ceil_div(np.asarray(number), per_node))
    return f"{words}: {nodes} nodes of {per_node}, the last one in part"


def ep_divides_experts(context: Context, row: Row) -> str:
    """Experts over ep."""
    ep, moe = row["ep"], context.model.moe
    if moe is None:
        return f"ep {ep}: {context.model.name} has no experts"
    return f"ep {ep} does not divide {moe.num_experts} experts"


def etp_divides_expert_ffn(context: Context, row: Row) -> str:
    """An expert's width over etp."""
    moe = context.model.moe
    width = moe.expert_ffn_size if moe else 0
    return f"etp {row['etp']} does not divide the width {width} of an expert"


def expert_mesh_fits(_: Context, row: Row) -> str:
    """The ranks of experts over those of a stage."""
    return _no_multiple("", row)


def micro_batch_divisible(context: Context, row: Row) -> str:
    """A replica's share in micro-batches."""
    dp, batch = row["dp"], context.job.global_batch
    share = f"{batch // dp} sequences of each of dp {dp} replicas (batch {batch})"
    return f"micro-batch {row['micro_batch']} does not divide the {share}"


def vpp_micro_batches(context: Context, row: Row) -> str:
    """Micro-batches against stages."""
    text = f"no multiple of pp {row['pp']}, which vpp {row['vpp']} needs"
    return f"{micro_batches(context, row)}: {text}"


def schedule_fills(context: Context, row: Row) -> str:
    """Micro-batches that a split backward needs."""
    pp, name = row["pp"], schedule(row)
    least = {"zb-h1": pp, "zb-h2": 2 * pp - 1, "zb-v": 2 * pp - 1, "dualpipe-v": 2 * pp}
    needs = f"{name} with pp {pp} needs {least.get(name, 1)}"
    return f"{micro_batches(context, row)}: {needs}"


def sequence_divisible(context: Context, row: Row) -> str:
    """Pieces of the sequence."""
    cp, tp = row["cp"], row["tp"] if row["sequence_parallel"] else 1
    pieces = [*([f"2 x cp {cp}"] if cp > 1 else []), *([f"tp {tp}"] if tp > 1 else [])]
    num = (2 * cp if cp > 1 else 1) * tp
    return f"{context.job.seq_len} tokens do not divide into {' x '.join(pieces)} = {num} pieces"


def folded_experts_need_slices(_: Context, row: Row) -> str:
    """Ranks of tp with the same tokens."""
    given = f"etp {row['etp']} with tp {row['tp']} without sequence parallelism"
    return f"{given}: tp ranks hold the same tokens there, so that etp must be tp"


def replicas_divide_dp(_: Context, row: Row) -> str:
    """Replicas against dp, or the expert mesh against a replica."""
    dp, replicas = row["dp"], row["dp_replicate"]
    if dp % replicas:
        return f"dp_replicate {replicas} does not divide dp {dp}"
    given = f"dp {dp} / dp_replicate {replicas} leaves "
    return _no_multiple(given, {**row, "dp": dp // replicas})


def _no_multiple(given: str, row: Row) -> str:
    """Ranks that the expert mesh does not take."""
    ranks, _number = product(row, ("tp", "cp", "dp"), "rank")
    mesh, _number = product(row, ("etp", "ep"), "expert rank")
    return f"{given}{ranks} of a stage: no multiple of {mesh}"


def replicas_are_shared_out(_: Context, row: Row) -> str:
    """As many replicas as ranks."""
    return f"dp_replicate {row['dp_replicate']} of dp {row['dp']} leaves nothing to shard: ZeRO 0"


def zero_needs_replicas(_: Context, row: Row) -> str:
    """No two ranks with the same states."""
    given = f"ZeRO {row['zero_stage']} with dp {row['dp']} and cp {row['cp']}"
    return f"{given}: no two ranks have states to share"


def offload_has_room(context: Context, row: Row) -> str:
    """What is not known of the node."""
    code, node = OFFLOAD_CODES[row["offload"]], context.cluster.node
    unknown = "host memory"
    if "host" not in code or node.host_memory_bytes:
        unknown = "NVMe (size, read and write rate)"
    return f"offload {code}: the {unknown} of {node.name} is not known"


def placement_matters(_: Context, row: Row) -> str:
    """Nothing that would tell orders apart."""
    name = PLACEMENT_NAMES[row["placement"]]
    return f"placement {name} with dp {row['dp']} and pp {row['pp']} costs what the first one does"


VIOLATIONS: Mapping[str, Wording] = MappingProxyType(
    {
        "tp_supported": refusals.lacks("tp", "tensor parallelism"),
        "cp_supported": refusals.lacks("cp", "context parallelism"),
        "pp_supported": refusals.lacks("pp", "pipeline parallelism"),
        "ep_supported": refusals.lacks("ep", "expert parallelism"),
        "vpp_supported": refusals.lacks("vpp", "interleaved schedule"),
        **{
            function.__name__: function
            for function in (
                tp_divides_heads,
                tp_divides_kv_heads,
                tp_divides_ffn,
                tp_within_scale_up_domain,
                pp_at_most_layers,
                schedule_needs_stages,
                schedule_pays,
                schedule_fits_chunks,
                layers_fill_chunks,
                batch_divisible,
                within_cluster,
                whole_nodes,
                ep_divides_experts,
                etp_divides_expert_ffn,
                expert_mesh_fits,
                micro_batch_divisible,
                vpp_micro_batches,
                schedule_fills,
                sequence_divisible,
                folded_experts_need_slices,
                replicas_divide_dp,
                replicas_are_shared_out,
                zero_needs_replicas,
                offload_has_room,
                placement_matters,
                refusals.tp_fits_model,
                refusals.cp_fits_attention,
                refusals.pp_ties_embeddings,
                refusals.chunks_hide_transfers,
                refusals.exchange_overlap_has_chunks,
                refusals.expert_mesh_offered,
                refusals.micro_batches_fill_stages,
                refusals.tp_splits_experts,
                refusals.hybrid_sharding_offered,
                refusals.secondary_partition_fits,
                refusals.states_have_ranks,
                refusals.offload_offered,
                refusals.offload_percent_offered,
                refusals.placement_offered,
                refusals.schedule_offered,
                refusals.sequence_parallel_offered,
                refusals.zero_stage_offered,
                refusals.optimizer_runs_under_zero,
            )
        },
    }
)
"""By the name of the rule, of every rule. Asked only of layouts that break it."""
