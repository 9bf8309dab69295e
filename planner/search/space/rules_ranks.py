"""Rules of the GPUs of a layout, the mesh of experts, micro-batches, and pieces of a sequence."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import (
    GPUS,
    OFF_THE_MESH,
    Clauses,
    Columns,
    Row,
    is_schedule,
    rule,
    supported,
)
from planner.spec.strategy import SCHEDULES, STAGE_DEGREES, V_SHAPED, gpus_of, ranks_of_stage
from planner.units import Array

BATCH = "the global batch is {job.global_batch}"


@rule("dp", allowed=BATCH)
def batch_divisible(context: Context, columns: Columns) -> Clauses:
    """Data parallelism divides the global batch."""
    divides = context.job.global_batch % columns["dp"] == 0
    return {"dp {dp} does not divide the global batch of {job.global_batch}": divides}


@rule(*GPUS, allowed="the cluster has {cluster.num_accelerators}")
def within_cluster(context: Context, columns: Columns) -> Clauses:
    """The layout uses no more GPUs than the cluster has."""
    within = gpus_of(columns) <= context.cluster.num_accelerators
    return {"{gpus}, the cluster has {cluster.num_accelerators:,}": within}


@rule(*GPUS, only_prunes=True)
def whole_nodes(context: Context, columns: Columns) -> Clauses:
    """Beyond one node only whole nodes are used."""
    number, per_node = gpus_of(columns), context.cluster.node.num_accelerators
    whole = (number % per_node == 0) | (number < per_node)
    return {"{gpus}: {nodes} nodes of {node.num_accelerators}, the last one in part": whole}


ep_supported = supported("ep", "expert parallelism")


@rule(
    "ep",
    allowed=lambda context: (
        f"{{model.name}} has {'{moe.num_experts}' if context.model.moe else 0} experts"
    ),
)
def ep_divides_experts(context: Context, columns: Columns) -> Clauses:
    """Experts are split evenly over expert-parallel ranks."""
    if context.model.moe is None:
        return {"ep {ep}: {model.name} has no experts": 1 % columns["ep"] == 0}
    divides = context.model.moe.num_experts % columns["ep"] == 0
    return {"ep {ep} does not divide {moe.num_experts} experts": divides}


def _expert_width(context: Context) -> int:
    return context.model.moe.expert_ffn_size if context.model.moe else 0


@rule(
    "etp", allowed=lambda context: f"an expert of {{model.name}} is {_expert_width(context)} wide"
)
def etp_divides_expert_ffn(context: Context, columns: Columns) -> Clauses:
    """An expert's width is split evenly."""
    width = _expert_width(context)
    return {
        f"etp {{etp}} does not divide the width {width} of an expert": width % columns["etp"] == 0
    }


@rule(*STAGE_DEGREES, "ep", "etp")
def expert_mesh_fits(_: Context, columns: Columns) -> Clauses:
    """The expert mesh etp x ep x edp takes the ranks of tp x cp x dp: etp·ep divides them."""
    return {OFF_THE_MESH: ranks_of_stage(columns) % (columns["etp"] * columns["ep"]) == 0}


def _meshes(context: Context) -> str:
    if context.model.moe is None:
        return "{model.name} has no experts"
    return {
        "inside_dp": "{traits.name} has etp = tp, and ep a divisor of dp",
        "folded": "{traits.name} has any etp x ep that divides tp x cp x dp",
        "folded_whole": "{traits.name} has etp 1 with ep above 1, else etp = tp",
    }[context.traits.support.expert_mesh]


@rule(
    *("tp", "dp", "ep", "etp"),
    allowed=_meshes,
    offered_by="framework",
)
def expert_mesh_offered(context: Context, columns: Columns) -> Clauses:
    """The framework offers the expert mesh; dense models have none, so that etp is tp."""
    support, ep, given = context.traits.support, columns["ep"], "etp {etp} with tp {tp}"
    if context.model.moe is None:
        same = columns["etp"] == columns["tp"]
        return {f"{given}: {{model.name}} has no experts, so that etp is tp": same}
    usual = columns["etp"] == support.usual_etp(columns["tp"], ep)
    legal = usual | (support.expert_mesh == "folded")
    inside = (columns["dp"] % ep == 0) | (support.expert_mesh != "inside_dp")
    inside |= ~usual
    is_split = (ep == 1) | (support.expert_mesh != "folded_whole")
    splits = "{software} splits experts as the rest, etp {tp}"
    return {
        "ep {ep} does not divide dp {dp}: the expert ranks of {software} lie inside it": inside,
        "etp {etp} with ep {ep}: experts of {software} are whole there, etp 1": legal | is_split,
        f"{given} and ep {{ep}}: {splits}": legal | (ep == 1),
        f"{given}: {splits}": legal,
    }


@rule("pp", "vpp", "ep")
def exchange_overlap_has_chunks(context: Context, columns: Columns) -> Clauses:
    """Expert exchange beside another micro-batch: with stages only in chunks, if asked for."""
    overlap, support = context.traits.overlap, context.traits.support
    asked = support.batch_overlap_needs_chunks & (overlap.expert_all_to_all_overlap == "batches")
    bare = (columns["pp"] > 1) & (columns["vpp"] == 1) & (columns["ep"] > 1)
    return {
        "ep {ep} with pp {pp} and vpp {vpp}: {software} exchanges tokens of experts beside "
        "another micro-batch only between several chunks": ~(bare & asked)
    }


@rule("ep", "zero_stage")
def exchange_overlap_has_graphs(context: Context, columns: Columns) -> Clauses:
    """Expert exchange beside another micro-batch: CUDA graphs of parts where the stage has them."""
    traits = context.traits
    beside = traits.overlap.expert_all_to_all_overlap == "batches"
    parts = 0.0 < traits.kernels.cuda_graph_fraction < 1.0
    stages = traits.support.paired_graph_zero_stages
    lacks_graphs = (columns["ep"] > 1) & ~np.isin(columns["zero_stage"], stages)
    return {
        "ep {ep} under ZeRO {zero_stage}: {software} exchanges tokens of experts beside another "
        "micro-batch with graphs of parts of a layer under ZeRO {support.paired_graph_zero_stages} "
        "only": ~(lacks_graphs & beside & parts)
    }


@rule("ep")
def mtp_trained(context: Context, columns: Columns) -> Clauses:
    """The framework trains the job's layers of multi-token prediction."""
    number, traits = context.job.mtp_layers, context.traits
    given = "ep {ep} with {job.mtp_layers} layers of multi-token prediction"
    trained = np.full(len(columns["ep"]), number == 0 or traits.support.trains_mtp)
    few = (columns["ep"] == 1) | (number <= 1)
    few |= traits.overlap.expert_all_to_all_overlap != "batches"
    return {
        f"{given}: {{software}} is planned without them": trained,
        f"{given}: at most 1 beside expert exchange that hides behind another micro-batch": few,
    }


def _num_micro_batches(context: Context, columns: Columns) -> Array:
    return np.asarray(context.job.global_batch // (columns["dp"] * columns["micro_batch"]))


@rule("dp", "micro_batch", allowed=BATCH)
def micro_batch_divisible(context: Context, columns: Columns) -> Clauses:
    """Micro-batches of equal size make up each replica's share of the batch."""
    says = (
        "micro-batch {micro_batch} does not divide the {share} sequences of each of dp {dp} "
        "replicas (batch {job.global_batch})"
    )
    return {says: (context.job.global_batch // columns["dp"]) % columns["micro_batch"] == 0}


@rule("pp", "schedule", "vpp", "dp", "micro_batch")
def vpp_micro_batches(context: Context, columns: Columns) -> Clauses:
    """Interleaving needs a number of micro-batches that is a multiple of pp."""
    num = _num_micro_batches(context, columns)
    is_interleaved = (columns["vpp"] > 1) & ~is_schedule(columns, *V_SHAPED)
    says = "{micro_batches}: no multiple of pp {pp}, which vpp {vpp} needs"
    return {says: ~is_interleaved | (num % columns["pp"] == 0)}


def _least_micro_batches(pp: Array) -> dict[str, Array]:
    """Return the micro-batches that fill each split-backward schedule; others take any number."""
    both = 2 * pp - 1
    return {"zb-h1": pp, "zb-h2": both, "zb-v": both, "dualpipe-v": 2 * pp}


def _too_few_to_split(_: Context, row: Row) -> str:
    least = _least_micro_batches(np.array(row["pp"])).get(SCHEDULES[row["schedule"]], 1)
    return f"{{micro_batches}}: {{schedule}} with pp {{pp}} needs {least}"


@rule("pp", "dp", "micro_batch", "schedule")
def schedule_fills(context: Context, columns: Columns) -> Clauses:
    """Split backwards need micro-batches: zb-h1 p, zb-h2 and zb-v 2p - 1, dualpipe-v 2p."""
    least = _least_micro_batches(columns["pp"])
    asked = np.select([is_schedule(columns, name) for name in least], [*least.values()], 1)
    return {_too_few_to_split: _num_micro_batches(context, columns) >= asked}


@rule("pp", "schedule", "vpp", "dp", "micro_batch")
def micro_batches_fill_stages(context: Context, columns: Columns) -> Clauses:
    """1F1B without chunks gets a micro-batch per stage where the framework asks for it."""
    num = _num_micro_batches(context, columns)
    asked = context.traits.support.fills_pipeline
    bare = is_schedule(columns, "1f1b") & (columns["vpp"] == 1)
    says = "{micro_batches}: {software} needs one for each of pp {pp} stages"
    return {says: ~(bare & asked) | (num >= columns["pp"])}


@rule("tp", "etp", "sequence_parallel")
def tp_splits_experts(context: Context, columns: Columns) -> Clauses:
    """Experts are split as far as the framework can, and theirs with biases perhaps not at all.

    A mixture may need sequence parallelism beside tensor parallelism.
    """
    support, moe = context.traits.support, context.model.moe
    given = "tp {tp} without sequence parallelism"
    both = (columns["tp"] == 1) | (columns["sequence_parallel"] == 1)
    both |= moe is None or not support.mixtures_need_sequence_parallel
    whole = (columns["etp"] == 1) | (moe is None)
    bare = whole | (support.splits_experts == "any")
    bare |= moe is not None and not moe.expert_bias
    return {
        f"{given}: {{software}} splits mixtures only with it": both,
        "etp {etp}: {software} splits no experts": whole | (support.splits_experts != "no"),
        "etp {etp}: the experts of {model.name} have biases, which {software} does not split": bare,
    }


@rule("tp", "sequence_parallel", offered_by="framework")
def sequence_parallel_offered(context: Context, columns: Columns) -> Clauses:
    """Sequence parallelism is offered, needs tp > 1, and comes with it where it is no choice."""
    support, is_on = context.traits.support, columns["sequence_parallel"] == 1
    splits, on = columns["tp"] > 1, "sequence parallelism on"
    is_free = is_on | ~(splits & support.sequence_parallel & support.sequence_parallel_required)
    return {
        "sequence parallelism off with tp {tp}: {software} has it on beside tp": is_free,
        f"{on}: {{software}} has none": ~is_on | support.sequence_parallel,
        f"{on} with tp {{tp}}: it needs tp above 1": ~is_on | splits,
    }


def _uneven_pieces(_: Context, row: Row) -> str:
    cuts = {"2 x cp {cp}": 2 * row["cp"] * (row["cp"] > 1)}
    cuts |= {"tp {tp}": row["tp"] * (row["tp"] > 1) * row["sequence_parallel"]}
    cuts = {words: num for words, num in cuts.items() if num}
    pieces = f"{' x '.join(cuts)} = {np.prod([*cuts.values()])} pieces"
    return f"{{job.seq_len}} tokens do not divide into {pieces}"


@rule("tp", "cp", "sequence_parallel")
def sequence_divisible(context: Context, columns: Columns) -> Clauses:
    """Context parallelism cuts the sequence into 2·cp pieces, sequence parallelism into tp."""
    cp = columns["cp"]
    pieces = np.where(cp > 1, 2 * cp, 1)
    pieces = pieces * np.where(columns["sequence_parallel"] == 1, columns["tp"], 1)
    return {_uneven_pieces: context.job.seq_len % pieces == 0}


@rule("tp", "etp", "sequence_parallel")
def folded_experts_need_slices(_: Context, columns: Columns) -> Clauses:
    """Sequence parallelism gives every tp rank tokens of its own where etp is not tp."""
    same = (columns["etp"] == columns["tp"]) | (columns["tp"] == 1)
    return {
        "etp {etp} with tp {tp} without sequence parallelism: tp ranks hold the same tokens "
        "there, so that etp must be tp": same | (columns["sequence_parallel"] == 1)
    }
