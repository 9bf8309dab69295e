"""Rules of the GPUs of a layout, and of the mesh of experts on the ranks of a stage."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import (
    GPUS,
    Columns,
    Row,
    batch,
    gpus,
    lacks,
    off_the_mesh,
    rule,
    software,
)
from planner.spec.strategy import STAGE_DEGREES, gpus_of, ranks_of_stage
from planner.units import Mask, ceil_div


def _uneven_replicas(context: Context, row: Row) -> str:
    return f"dp {row['dp']} does not divide the global batch of {context.job.global_batch}"


@rule("dp", says=_uneven_replicas, allowed=batch)
def batch_divisible(context: Context, columns: Columns) -> Mask:
    """Data parallelism divides the global batch."""
    return np.asarray(context.job.global_batch % columns["dp"] == 0)


@rule(
    *GPUS,
    says=lambda context, row: (
        f"{gpus(row)[0]}, the cluster has {context.cluster.num_accelerators:,}"
    ),
    allowed=lambda context: f"the cluster has {context.cluster.num_accelerators}",
)
def within_cluster(context: Context, columns: Columns) -> Mask:
    """The layout uses no more GPUs than the cluster has."""
    return np.asarray(gpus_of(columns) <= context.cluster.num_accelerators)


def _partly_used_node(context: Context, row: Row) -> str:
    words, number = gpus(row)
    per_node = context.cluster.node.num_accelerators
    nodes = int(ceil_div(np.asarray(number), per_node))
    return f"{words}: {nodes} nodes of {per_node}, the last one in part"


@rule(*GPUS, says=_partly_used_node, only_prunes=True)
def whole_nodes(context: Context, columns: Columns) -> Mask:
    """Beyond one node only whole nodes are used."""
    number = gpus_of(columns)
    per_node = context.cluster.node.num_accelerators
    return np.asarray((number % per_node == 0) | (number < per_node))


@rule("ep", says=lacks("ep", "expert parallelism"), offered_by="framework")
def ep_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers expert parallelism."""
    return np.asarray((columns["ep"] == 1) | context.traits.support.ep)


def _uneven_experts(context: Context, row: Row) -> str:
    ep, moe = row["ep"], context.model.moe
    if moe is None:
        return f"ep {ep}: {context.model.name} has no experts"
    return f"ep {ep} does not divide {moe.num_experts} experts"


def _experts(context: Context) -> str:
    moe = context.model.moe
    return f"{context.model.name} has {moe.num_experts if moe else 0} experts"


@rule("ep", says=_uneven_experts, allowed=_experts)
def ep_divides_experts(context: Context, columns: Columns) -> Mask:
    """Experts are split evenly over expert-parallel ranks."""
    num_experts = context.model.moe.num_experts if context.model.moe else 1
    return np.asarray(num_experts % columns["ep"] == 0)


def _undivided_expert(context: Context, row: Row) -> str:
    moe = context.model.moe
    width = moe.expert_ffn_size if moe else 0
    return f"etp {row['etp']} does not divide the width {width} of an expert"


def _expert_width(context: Context) -> str:
    moe = context.model.moe
    return f"an expert of {context.model.name} is {moe.expert_ffn_size if moe else 0} wide"


@rule("etp", says=_undivided_expert, allowed=_expert_width)
def etp_divides_expert_ffn(context: Context, columns: Columns) -> Mask:
    """An expert's width is split evenly."""
    width = context.model.moe.expert_ffn_size if context.model.moe else 0
    return np.asarray(width % columns["etp"] == 0)


@rule(*STAGE_DEGREES, "ep", "etp", says=lambda _, row: off_the_mesh(row))
def expert_mesh_fits(_: Context, columns: Columns) -> Mask:
    """The expert mesh etp x ep x edp takes the ranks of tp x cp x dp: etp·ep divides them."""
    return np.asarray(ranks_of_stage(columns) % (columns["etp"] * columns["ep"]) == 0)


def _other_mesh(context: Context, row: Row) -> str:
    """Another split of the experts than the one offered, or ranks outside dp."""
    support, etp, tp, ep = context.traits.support, row["etp"], row["tp"], row["ep"]
    if context.model.moe is None:
        return f"etp {etp} with tp {tp}: {context.model.name} has no experts, so that etp is tp"
    if etp == int(support.usual_etp(tp, ep)):
        lie = f"the expert ranks of {software(context)} lie inside it"
        return f"ep {ep} does not divide dp {row['dp']}: {lie}"
    if support.expert_mesh == "folded_whole" and ep > 1:
        return f"etp {etp} with ep {ep}: experts of {software(context)} are whole there, etp 1"
    given = f"etp {etp} with tp {tp}" + (f" and ep {ep}" if ep > 1 else "")
    return f"{given}: {software(context)} splits experts as the rest, etp {tp}"


_MESHES: Mapping[str, str] = MappingProxyType(
    {
        "inside_dp": "has etp = tp, and ep a divisor of dp",
        "folded": "has any etp x ep that divides tp x cp x dp",
        "folded_whole": "has etp 1 with ep above 1, else etp = tp",
    }
)


def _meshes(context: Context) -> str:
    if context.model.moe is None:
        return f"{context.model.name} has no experts"
    return f"{context.traits.name} {_MESHES[context.traits.support.expert_mesh]}"


@rule(
    *("tp", "dp", "ep", "etp"),
    says=_other_mesh,
    allowed=_meshes,
    offered_by="framework",
)
def expert_mesh_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the expert mesh; dense models have none, so that etp is tp."""
    support, etp, ep = context.traits.support, columns["etp"], columns["ep"]
    usual = np.asarray(etp == support.usual_etp(columns["tp"], ep))
    if context.model.moe is None:
        return np.asarray(etp == columns["tp"])
    if support.expert_mesh == "folded":
        return np.ones_like(usual)
    inside = support.expert_mesh != "inside_dp" or columns["dp"] % ep == 0
    return np.asarray(usual & inside)


def _no_chunks(context: Context, row: Row) -> str:
    given = f"ep {row['ep']} with pp {row['pp']} and vpp {row['vpp']}"
    what = "exchanges tokens of experts beside another micro-batch"
    return f"{given}: {software(context)} {what} only between several chunks"


@rule("pp", "vpp", "ep", says=_no_chunks)
def exchange_overlap_has_chunks(context: Context, columns: Columns) -> Mask:
    """Expert exchange beside another micro-batch: with stages only in chunks, if asked for."""
    overlap, support = context.traits.overlap, context.traits.support
    asked = support.batch_overlap_needs_chunks & (overlap.expert_all_to_all_overlap == "batches")
    bare = (columns["pp"] > 1) & (columns["vpp"] == 1) & (columns["ep"] > 1)
    return np.asarray(~(bare & asked))


def _graphs_of_parts(context: Context, row: Row) -> str:
    given = f"ep {row['ep']} under ZeRO {row['zero_stage']}"
    what = "exchanges tokens of experts beside another micro-batch with graphs of parts of a layer"
    stages = ", ".join(map(str, context.traits.support.paired_graph_zero_stages)) or "none"
    return f"{given}: {software(context)} {what} under ZeRO {stages} only"


@rule("ep", "zero_stage", says=_graphs_of_parts)
def exchange_overlap_has_graphs(context: Context, columns: Columns) -> Mask:
    """Expert exchange beside another micro-batch: CUDA graphs of parts where the stage has them."""
    traits = context.traits
    beside = traits.overlap.expert_all_to_all_overlap == "batches"
    parts = 0.0 < traits.kernels.cuda_graph_fraction < 1.0
    stages = traits.support.paired_graph_zero_stages
    lacks_graphs = (columns["ep"] > 1) & ~np.isin(columns["zero_stage"], stages)
    return np.asarray(~(lacks_graphs & beside & parts))


def _no_mtp(context: Context, row: Row) -> str:
    given = f"ep {row['ep']} with {context.job.mtp_layers} layers of multi-token prediction"
    if not context.traits.support.trains_mtp:
        return f"{given}: {software(context)} is planned without them"
    return f"{given}: at most 1 beside expert exchange that hides behind another micro-batch"


@rule("ep", says=_no_mtp)
def mtp_trained(context: Context, columns: Columns) -> Mask:
    """The framework trains the job's layers of multi-token prediction."""
    number, traits = context.job.mtp_layers, context.traits
    beside = traits.overlap.expert_all_to_all_overlap == "batches"
    too_many = (number > 1) & beside & (columns["ep"] > 1)
    return np.asarray(~too_many & ((number == 0) | traits.support.trains_mtp))
