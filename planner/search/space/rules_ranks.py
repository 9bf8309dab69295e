"""Rules of the GPUs of a layout, the mesh of experts, micro-batches, and pieces of a sequence."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import GPUS, OFF_THE_MESH, Columns, Row, is_schedule, rule, supported
from planner.spec.strategy import SCHEDULES, STAGE_DEGREES, V_SHAPED, gpus_of, ranks_of_stage
from planner.units import Array, Mask

BATCH = "the global batch is {job.global_batch}"


@rule(
    "dp",
    says="dp {dp} does not divide the global batch of {job.global_batch}",
    allowed=BATCH,
)
def batch_divisible(context: Context, columns: Columns) -> Mask:
    """Data parallelism divides the global batch."""
    return np.asarray(context.job.global_batch % columns["dp"] == 0)


@rule(
    *GPUS,
    says="{gpus}, the cluster has {cluster.num_accelerators:,}",
    allowed="the cluster has {cluster.num_accelerators}",
)
def within_cluster(context: Context, columns: Columns) -> Mask:
    """The layout uses no more GPUs than the cluster has."""
    return np.asarray(gpus_of(columns) <= context.cluster.num_accelerators)


def _partly_used_node(context: Context, row: Row) -> str:
    nodes = -(-gpus_of(row) // context.cluster.node.num_accelerators)
    return f"{{gpus}}: {nodes} nodes of {{node.num_accelerators}}, the last one in part"


@rule(*GPUS, says=_partly_used_node, only_prunes=True)
def whole_nodes(context: Context, columns: Columns) -> Mask:
    """Beyond one node only whole nodes are used."""
    number = gpus_of(columns)
    per_node = context.cluster.node.num_accelerators
    return np.asarray((number % per_node == 0) | (number < per_node))


ep_supported = supported("ep", "expert parallelism")


def _uneven_experts(context: Context, _: Row) -> str:
    if context.model.moe is None:
        return "ep {ep}: {model.name} has no experts"
    return "ep {ep} does not divide {moe.num_experts} experts"


def _experts(context: Context) -> str:
    return f"{{model.name}} has {'{moe.num_experts}' if context.model.moe else 0} experts"


@rule("ep", says=_uneven_experts, allowed=_experts)
def ep_divides_experts(context: Context, columns: Columns) -> Mask:
    """Experts are split evenly over expert-parallel ranks."""
    num_experts = context.model.moe.num_experts if context.model.moe else 1
    return np.asarray(num_experts % columns["ep"] == 0)


def _expert_width(context: Context) -> int:
    return context.model.moe.expert_ffn_size if context.model.moe else 0


@rule(
    "etp",
    says=lambda context, _: (
        f"etp {{etp}} does not divide the width {_expert_width(context)} of an expert"
    ),
    allowed=lambda context: f"an expert of {{model.name}} is {_expert_width(context)} wide",
)
def etp_divides_expert_ffn(context: Context, columns: Columns) -> Mask:
    """An expert's width is split evenly."""
    return np.asarray(_expert_width(context) % columns["etp"] == 0)


@rule(*STAGE_DEGREES, "ep", "etp", says=OFF_THE_MESH)
def expert_mesh_fits(_: Context, columns: Columns) -> Mask:
    """The expert mesh etp x ep x edp takes the ranks of tp x cp x dp: etp·ep divides them."""
    return np.asarray(ranks_of_stage(columns) % (columns["etp"] * columns["ep"]) == 0)


def _other_mesh(context: Context, row: Row) -> str:
    """Another split of the experts than the one offered, or ranks outside dp."""
    support, ep = context.traits.support, row["ep"]
    if context.model.moe is None:
        return "etp {etp} with tp {tp}: {model.name} has no experts, so that etp is tp"
    if row["etp"] == int(support.usual_etp(row["tp"], ep)):
        return "ep {ep} does not divide dp {dp}: the expert ranks of {software} lie inside it"
    if support.expert_mesh == "folded_whole" and ep > 1:
        return "etp {etp} with ep {ep}: experts of {software} are whole there, etp 1"
    beside = " and ep {ep}" if ep > 1 else ""
    return (
        f"etp {{etp}} with tp {{tp}}{beside}: {{software}} splits experts as the rest, etp {{tp}}"
    )


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


@rule(
    *("pp", "vpp", "ep"),
    says="ep {ep} with pp {pp} and vpp {vpp}: {software} exchanges tokens of experts beside "
    "another micro-batch only between several chunks",
)
def exchange_overlap_has_chunks(context: Context, columns: Columns) -> Mask:
    """Expert exchange beside another micro-batch: with stages only in chunks, if asked for."""
    overlap, support = context.traits.overlap, context.traits.support
    asked = support.batch_overlap_needs_chunks & (overlap.expert_all_to_all_overlap == "batches")
    bare = (columns["pp"] > 1) & (columns["vpp"] == 1) & (columns["ep"] > 1)
    return np.asarray(~(bare & asked))


@rule(
    *("ep", "zero_stage"),
    says="ep {ep} under ZeRO {zero_stage}: {software} exchanges tokens of experts beside another "
    "micro-batch with graphs of parts of a layer under ZeRO {support.paired_graph_zero_stages} "
    "only",
)
def exchange_overlap_has_graphs(context: Context, columns: Columns) -> Mask:
    """Expert exchange beside another micro-batch: CUDA graphs of parts where the stage has them."""
    traits = context.traits
    beside = traits.overlap.expert_all_to_all_overlap == "batches"
    parts = 0.0 < traits.kernels.cuda_graph_fraction < 1.0
    stages = traits.support.paired_graph_zero_stages
    lacks_graphs = (columns["ep"] > 1) & ~np.isin(columns["zero_stage"], stages)
    return np.asarray(~(lacks_graphs & beside & parts))


def _no_mtp(context: Context, _: Row) -> str:
    given = "ep {ep} with {job.mtp_layers} layers of multi-token prediction"
    if not context.traits.support.trains_mtp:
        return f"{given}: {{software}} is planned without them"
    return f"{given}: at most 1 beside expert exchange that hides behind another micro-batch"


@rule("ep", says=_no_mtp)
def mtp_trained(context: Context, columns: Columns) -> Mask:
    """The framework trains the job's layers of multi-token prediction."""
    number, traits = context.job.mtp_layers, context.traits
    beside = traits.overlap.expert_all_to_all_overlap == "batches"
    too_many = (number > 1) & beside & (columns["ep"] > 1)
    return np.asarray(~too_many & ((number == 0) | traits.support.trains_mtp))


def _num_micro_batches(context: Context, columns: Columns) -> Array:
    return np.asarray(context.job.global_batch // (columns["dp"] * columns["micro_batch"]))


def _uneven_micro_batches(context: Context, row: Row) -> str:
    share = f"{context.job.global_batch // row['dp']} sequences of each of dp {{dp}} replicas"
    return f"micro-batch {{micro_batch}} does not divide the {share} (batch {{job.global_batch}})"


@rule("dp", "micro_batch", says=_uneven_micro_batches, allowed=BATCH)
def micro_batch_divisible(context: Context, columns: Columns) -> Mask:
    """Micro-batches of equal size make up each replica's share of the batch."""
    return np.asarray((context.job.global_batch // columns["dp"]) % columns["micro_batch"] == 0)


@rule(
    *("pp", "schedule", "vpp", "dp", "micro_batch"),
    says="{micro_batches}: no multiple of pp {pp}, which vpp {vpp} needs",
)
def vpp_micro_batches(context: Context, columns: Columns) -> Mask:
    """Interleaving needs a number of micro-batches that is a multiple of pp."""
    num = _num_micro_batches(context, columns)
    is_interleaved = (columns["vpp"] > 1) & ~is_schedule(columns, *V_SHAPED)
    return np.asarray(~is_interleaved | (num % columns["pp"] == 0))


def _least_micro_batches(pp: Array) -> dict[str, Array]:
    """Return the micro-batches that fill each split-backward schedule; others take any number."""
    both = 2 * pp - 1
    return {"zb-h1": pp, "zb-h2": both, "zb-v": both, "dualpipe-v": 2 * pp}


def _too_few_to_split(_: Context, row: Row) -> str:
    least = _least_micro_batches(np.array(row["pp"])).get(SCHEDULES[row["schedule"]], 1)
    return f"{{micro_batches}}: {{schedule}} with pp {{pp}} needs {least}"


@rule("pp", "dp", "micro_batch", "schedule", says=_too_few_to_split)
def schedule_fills(context: Context, columns: Columns) -> Mask:
    """Split backwards need micro-batches: zb-h1 p, zb-h2 and zb-v 2p - 1, dualpipe-v 2p."""
    least = _least_micro_batches(columns["pp"])
    asked = np.select([is_schedule(columns, name) for name in least], [*least.values()], 1)
    return np.asarray(_num_micro_batches(context, columns) >= asked)


@rule(
    *("pp", "schedule", "vpp", "dp", "micro_batch"),
    says="{micro_batches}: {software} needs one for each of pp {pp} stages",
)
def micro_batches_fill_stages(context: Context, columns: Columns) -> Mask:
    """1F1B without chunks gets a micro-batch per stage where the framework asks for it."""
    num = _num_micro_batches(context, columns)
    asked = context.traits.support.fills_pipeline
    bare = is_schedule(columns, "1f1b") & (columns["vpp"] == 1)
    return np.asarray(~(bare & asked) | (num >= columns["pp"]))


def _unsplit_experts(context: Context, row: Row) -> str:
    """Return the error: no sequence parallelism, or biases that would be split."""
    support = context.traits.support
    if support.mixtures_need_sequence_parallel and row["tp"] > 1 and not row["sequence_parallel"]:
        return "tp {tp} without sequence parallelism: {software} splits mixtures only with it"
    if support.splits_experts == "no":
        return "etp {etp}: {software} splits no experts"
    return "etp {etp}: the experts of {model.name} have biases, which {software} does not split"


@rule("tp", "etp", "sequence_parallel", says=_unsplit_experts)
def tp_splits_experts(context: Context, columns: Columns) -> Mask:
    """Experts are split as far as the framework can, and theirs with biases perhaps not at all.

    A mixture may need sequence parallelism beside tensor parallelism.
    """
    support, moe = context.traits.support, context.model.moe
    if moe is None:
        return np.ones(len(columns["tp"]), dtype=bool)
    has_both = (columns["sequence_parallel"] == 1) | (not support.mixtures_need_sequence_parallel)
    can = {"any": True, "unbiased": not moe.expert_bias}.get(support.splits_experts, False)
    return np.asarray(((columns["tp"] == 1) | has_both) & ((columns["etp"] == 1) | can))


def _on_or_off(context: Context, row: Row) -> str:
    """Return the error: on where it cannot be, or off where it must not be."""
    if not row["sequence_parallel"]:
        return "sequence parallelism off with tp {tp}: {software} has it on beside tp"
    if not context.traits.support.sequence_parallel:
        return "sequence parallelism on: {software} has none"
    return "sequence parallelism on with tp {tp}: it needs tp above 1"


@rule("tp", "sequence_parallel", says=_on_or_off, offered_by="framework")
def sequence_parallel_offered(context: Context, columns: Columns) -> Mask:
    """Sequence parallelism is offered, needs tp > 1, and comes with it where it is no choice."""
    support, is_on = context.traits.support, columns["sequence_parallel"] == 1
    can = support.sequence_parallel & (columns["tp"] > 1)
    return np.where(is_on, can, ~(can & support.sequence_parallel_required))


def _uneven_pieces(_: Context, row: Row) -> str:
    cuts = {"2 x cp {cp}": 2 * row["cp"] * (row["cp"] > 1)}
    cuts |= {"tp {tp}": row["tp"] * (row["tp"] > 1) * row["sequence_parallel"]}
    cuts = {words: num for words, num in cuts.items() if num}
    pieces = f"{' x '.join(cuts)} = {np.prod([*cuts.values()])} pieces"
    return f"{{job.seq_len}} tokens do not divide into {pieces}"


@rule("tp", "cp", "sequence_parallel", says=_uneven_pieces)
def sequence_divisible(context: Context, columns: Columns) -> Mask:
    """Context parallelism cuts the sequence into 2·cp pieces, sequence parallelism into tp."""
    cp = columns["cp"]
    pieces = np.where(cp > 1, 2 * cp, 1)
    pieces = pieces * np.where(columns["sequence_parallel"] == 1, columns["tp"], 1)
    return np.asarray(context.job.seq_len % pieces == 0)


@rule(
    *("tp", "etp", "sequence_parallel"),
    says="etp {etp} with tp {tp} without sequence parallelism: tp ranks hold the same tokens "
    "there, so that etp must be tp",
)
def folded_experts_need_slices(_: Context, columns: Columns) -> Mask:
    """Sequence parallelism gives every tp rank tokens of its own where etp is not tp."""
    same = (columns["etp"] == columns["tp"]) | (columns["tp"] == 1)
    return np.asarray(same | (columns["sequence_parallel"] == 1))
