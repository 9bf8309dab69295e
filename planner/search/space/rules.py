"""Legality rules: one named function each, over columns of partly decided strategies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.cost.context import Context
from planner.search.space import limits
from planner.search.space.interleaving import chunks_fit
from planner.search.space.software import (
    Columns,
    chunks_hide_transfers,
    cp_fits_attention,
    exchange_overlap_has_chunks,
    micro_batches_fill_stages,
    pp_ties_embeddings,
    secondary_partition_fits,
    states_have_ranks,
    tp_fits_model,
    tp_splits_experts,
)
from planner.search.space.violations import VIOLATIONS
from planner.search.space.wording import Wording
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES, V_SHAPED, gpus_of
from planner.units import Mask

Check = Callable[[Context, Columns], Mask]
Offerer = Literal["framework", "optimizer"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named rule; it can be asked once the columns it ``needs`` are decided."""

    name: str
    needs: tuple[str, ...]
    message: str
    is_legal: Check
    allowed: Callable[[Context], str] | None = None
    """What is allowed here, in words with numbers."""
    violation: Wording | None = None
    """What one layout that breaks it does, in words with its numbers."""
    only_prunes: bool = False
    """Legal, but never worth searching."""
    offered_by: Offerer | None = None
    """Whose choice it is, where the rule says what is offered at all."""

    def words(self, context: Context, row: Mapping[str, int]) -> str:
        """What is wrong with one layout that breaks the rule."""
        if self.violation is not None:
            return self.violation(context, row)
        given = ", ".join(f"{name}={row[name]}" for name in self.needs)
        return f"{self.message.splitlines()[0].rstrip('.')}; given {given}"


def _code_has(columns: Columns, word: str) -> Mask:
    table = np.array([word in code for code in OFFLOAD_CODES])
    mask: Mask = table[columns["offload"].astype(int)]
    return mask


def within_cluster(context: Context, columns: Columns) -> Mask:
    """The layout uses no more GPUs than the cluster has."""
    return np.asarray(gpus_of(columns) <= context.cluster.num_accelerators)


def whole_cluster(context: Context, columns: Columns) -> Mask:
    """The layout uses all GPUs of the cluster."""
    return np.asarray(gpus_of(columns) == context.cluster.num_accelerators)


def whole_nodes(context: Context, columns: Columns) -> Mask:
    """Beyond one node only whole nodes are used."""
    gpus = gpus_of(columns)
    per_node = context.cluster.node.num_accelerators
    return np.asarray((gpus % per_node == 0) | (gpus < per_node))


def batch_divisible(context: Context, columns: Columns) -> Mask:
    """Data parallelism divides the global batch."""
    return np.asarray(context.job.global_batch % columns["dp"] == 0)


def micro_batch_divisible(context: Context, columns: Columns) -> Mask:
    """Micro-batches of equal size make up each replica's share of the batch."""
    return np.asarray((context.job.global_batch // columns["dp"]) % columns["micro_batch"] == 0)


def tp_divides_heads(context: Context, columns: Columns) -> Mask:
    """Attention heads are split whole over tensor-parallel ranks."""
    return np.asarray(context.model.num_heads % columns["tp"] == 0)


def tp_divides_kv_heads(context: Context, columns: Columns) -> Mask:
    """Key/value heads are split whole, or each is replicated the same number of times."""
    heads = context.model.num_kv_heads
    return np.asarray((heads % columns["tp"] == 0) | (columns["tp"] % heads == 0))


def tp_divides_ffn(context: Context, columns: Columns) -> Mask:
    """The MLP's width is split evenly."""
    legal = context.model.ffn_size % columns["tp"] == 0
    if context.model.moe:
        legal &= context.model.moe.shared_ffn_size % columns["tp"] == 0
    return np.asarray(legal)


def etp_divides_expert_ffn(context: Context, columns: Columns) -> Mask:
    """An expert's width is split evenly."""
    width = context.model.moe.expert_ffn_size if context.model.moe else 0
    return np.asarray(width % columns["etp"] == 0)


def tp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers tensor parallelism."""
    return np.asarray((columns["tp"] == 1) | context.traits.support.tp)


def tp_within_scale_up_domain(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism stays inside the NVLink (xGMI, ICI) domain."""
    return np.asarray(columns["tp"] <= context.cluster.node.scale_up.num_accelerators)


def sequence_divisible(context: Context, columns: Columns) -> Mask:
    """Context parallelism cuts the sequence into 2·cp pieces, sequence parallelism into tp."""
    cp = columns["cp"]
    pieces = np.where(cp > 1, 2 * cp, 1)
    pieces = pieces * np.where(columns["sequence_parallel"] == 1, columns["tp"], 1)
    return np.asarray(context.job.seq_len % pieces == 0)


def sequence_parallel_offered(context: Context, columns: Columns) -> Mask:
    """Sequence parallelism is offered, needs tp > 1, and comes with it where it is no choice."""
    support, tp = context.traits.support, columns["tp"]
    is_on = columns["sequence_parallel"] == 1
    legal = ~is_on | (support.sequence_parallel & (tp > 1))
    must = support.sequence_parallel & support.sequence_parallel_required & (tp > 1)
    return np.asarray(legal & (is_on | ~must))


def cp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers context parallelism."""
    return np.asarray((columns["cp"] == 1) | context.traits.support.cp)


def pp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers pipeline parallelism."""
    return np.asarray((columns["pp"] == 1) | context.traits.support.pp)


def pp_at_most_layers(context: Context, columns: Columns) -> Mask:
    """Every stage holds at least one layer."""
    return np.asarray(columns["pp"] <= context.model.num_blocks)


def replicas_divide_dp(_: Context, columns: Columns) -> Mask:
    """Replicas of the sharding group divide data parallelism; the expert mesh fits inside each."""
    replicas = columns["dp_replicate"]
    shard = columns["dp"] // replicas
    ranks = columns["tp"] * columns["cp"] * shard
    whole = ranks % (columns["etp"] * columns["ep"]) == 0
    return np.asarray((columns["dp"] % replicas == 0) & whole)


def hybrid_sharding_offered(context: Context, columns: Columns) -> Mask:
    """Framework and optimizer shard inside groups that are replicated (hybrid), from stage 1."""
    traits = context.traits
    can = traits.support.hybrid_sharding and traits.optimizer.hybrid_sharding
    return np.asarray((columns["dp_replicate"] == 1) | (can & (columns["zero_stage"] >= 1)))


def ep_divides_experts(context: Context, columns: Columns) -> Mask:
    """Experts are split evenly over expert-parallel ranks."""
    num_experts = context.model.moe.num_experts if context.model.moe else 1
    return np.asarray(num_experts % columns["ep"] == 0)


def expert_mesh_fits(_: Context, columns: Columns) -> Mask:
    """The expert mesh etp x ep x edp takes the ranks of tp x cp x dp: etp·ep divides them."""
    ranks = columns["tp"] * columns["cp"] * columns["dp"]
    return np.asarray(ranks % (columns["etp"] * columns["ep"]) == 0)


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


def folded_experts_need_slices(_: Context, columns: Columns) -> Mask:
    """Where etp is not tp, sequence parallelism gives every tp rank tokens of its own."""
    same = (columns["etp"] == columns["tp"]) | (columns["tp"] == 1)
    return np.asarray(same | (columns["sequence_parallel"] == 1))


def ep_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers expert parallelism."""
    return np.asarray((columns["ep"] == 1) | context.traits.support.ep)


def vpp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers an interleaved schedule."""
    return np.asarray((columns["vpp"] == 1) | context.traits.support.vpp)


def _is_schedule(columns: Columns, *names: str) -> Mask:
    table = np.array([schedule in names for schedule in SCHEDULES])
    mask: Mask = table[columns["schedule"].astype(int)]
    return mask


def schedule_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the pipeline schedule."""
    return _is_schedule(columns, *context.traits.support.schedules)


def schedule_needs_stages(_: Context, columns: Columns) -> Mask:
    """Schedules other than 1F1B need several stages."""
    return np.asarray((columns["pp"] > 1) | _is_schedule(columns, "1f1b"))


def schedule_fits_chunks(_: Context, columns: Columns) -> Mask:
    """1F1B takes any chunks per stage; V-shaped schedules 2, zb-interleaved several, others one."""
    vpp = columns["vpp"]
    legal = _is_schedule(columns, "1f1b")
    legal |= _is_schedule(columns, *V_SHAPED) & (vpp == 2)
    legal |= _is_schedule(columns, "zb-interleaved") & (vpp > 1)
    return np.asarray(legal | (_is_schedule(columns, "gpipe", "zb-h1", "zb-h2") & (vpp == 1)))


def schedule_fills(context: Context, columns: Columns) -> Mask:
    """Split backwards need micro-batches: zb-h1 p, zb-h2 and zb-v 2p - 1, dualpipe-v 2p."""
    num = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    pp = columns["pp"]
    least = np.where(_is_schedule(columns, "zb-h1"), pp, 1)
    least = np.where(_is_schedule(columns, "zb-h2", "zb-v"), 2 * pp - 1, least)
    return np.asarray(num >= np.where(_is_schedule(columns, "dualpipe-v"), 2 * pp, least))


def layers_fill_chunks(context: Context, columns: Columns) -> Mask:
    """Interleaving needs several stages and a layer in every chunk, but one at either end.

    Zero-bubble schedules need equal chunks, frameworks without uneven stages equal stages too.
    """
    can = context.traits.support.uneven_stages
    uneven = _is_schedule(columns, "1f1b") & can
    fit = chunks_fit(context.model.num_blocks, columns["pp"], columns["vpp"], uneven=uneven)
    whole = can | (context.model.num_blocks % columns["pp"] == 0)
    return np.where(columns["vpp"] == 1, whole, (columns["pp"] > 1) & fit)


def vpp_micro_batches(context: Context, columns: Columns) -> Mask:
    """Interleaving needs a number of micro-batches that is a multiple of pp."""
    num = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    is_interleaved = (columns["vpp"] > 1) & ~_is_schedule(columns, *V_SHAPED)
    return np.asarray(~is_interleaved | (num % columns["pp"] == 0))


def schedule_pays(context: Context, columns: Columns) -> Mask:
    """GPipe takes as long as 1F1B and holds more: not where 1F1B can be chosen."""
    return np.asarray(~_is_schedule(columns, "gpipe") | ("1f1b" not in context.schedules))


def zero_stage_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the ZeRO stage with (or without) pipelining."""
    support = context.traits.support
    alone = np.isin(columns["zero_stage"], support.zero_stages)
    piped = np.isin(columns["zero_stage"], support.zero_stages_with_pp)
    return np.where(columns["pp"] > 1, piped, alone)


def optimizer_runs_under_zero(context: Context, columns: Columns) -> Mask:
    """The optimizer runs under the ZeRO stage in this framework."""
    return np.isin(columns["zero_stage"], context.traits.optimizer.zero_stages)


def zero_needs_replicas(context: Context, columns: Columns) -> Mask:
    """A single rank has nothing to shard: without offload only the lowest stage is kept."""
    support = context.traits.support
    lowest = np.where(
        columns["pp"] > 1, min(support.zero_stages_with_pp, default=0), min(support.zero_stages)
    )
    alone = columns["dp"] * columns["cp"] == 1
    alone &= columns["tp"] <= columns["etp"] * columns["ep"]
    return np.asarray(
        ~alone
        | (columns["zero_stage"] == lowest)
        | (columns["offload"] != OFFLOAD_CODES.index("none"))
    )


def replicas_are_shared_out(_: Context, columns: Columns) -> Mask:
    """Replicating every shard is no sharding: that is ZeRO 0."""
    replicas = columns["dp_replicate"]
    return np.asarray((replicas == 1) | (replicas < columns["dp"]) | (columns["zero_stage"] == 0))


def offload_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the offload, under the optimizer and the ZeRO stage.

    Parameters need ZeRO stage 3, optimizer states 1; NVMe those of the framework.
    """
    offered = np.array([code in context.traits.support.offload for code in OFFLOAD_CODES])
    legal = offered[columns["offload"].astype(int)]
    stage = columns["zero_stage"]
    legal &= ~_code_has(columns, "parameters") | (stage >= 3)
    legal &= ~_code_has(columns, "nvme") | np.isin(stage, context.traits.support.nvme_zero_stages)
    legal &= ~_code_has(columns, "optimizer") | (context.traits.optimizer.offload != "no")
    return np.asarray(legal & (~_code_has(columns, "optimizer") | (stage >= 1)))


def offload_percent_offered(context: Context, columns: Columns) -> Mask:
    """A part of the optimizer's states is offloaded only where framework and optimizer can."""
    percent, stages = columns["offload_percent"], context.traits.support.partial_offload_zero_stages
    partly = _code_has(columns, "optimizer") & np.isin(columns["zero_stage"], stages)
    partly &= context.traits.optimizer.offload == "part"
    return np.asarray((percent == 100) | (partly & (percent > 0) & (percent < 100)))


def offload_has_room(context: Context, columns: Columns) -> Mask:
    """The node's host memory (or NVMe size and rates) is known, so that a limit can be kept."""
    node = context.cluster.node
    nvme = bool(node.nvme_bytes and node.nvme_read_bytes_per_s and node.nvme_write_bytes_per_s)
    legal = ~_code_has(columns, "host") | bool(node.host_memory_bytes)
    return np.asarray(legal & (~_code_has(columns, "nvme") | nvme))


def placement_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the placement; with pp inside dp, ep and cp are 1, and etp is tp."""
    names = context.traits.support.placements
    offered = np.array([name in names for name in PLACEMENT_NAMES])[columns["placement"]]
    folded = (columns["ep"] * columns["cp"] > 1) | (columns["etp"] != columns["tp"])
    mixed = (columns["pp"] > 1) & folded
    return np.asarray(offered & ~(mixed & (columns["placement"] != 0)))


def placement_matters(context: Context, columns: Columns) -> Mask:
    """Only the first placement searched where pp or dp is 1, or no network level divides them."""
    inner = columns["tp"] * columns["cp"]
    whole = inner * columns["dp"] * columns["pp"]
    sizes = [level.num_accelerators for level in context.cluster.levels[:-1]]
    divided = np.any([(inner < size) & (size < whole) for size in sizes], axis=0)
    searched = context.placements or context.traits.support.placements
    first = PLACEMENT_NAMES.index(searched[0])
    differs = divided & (columns["dp"] > 1) & (columns["pp"] > 1)
    return np.asarray(differs | (columns["placement"] == first))


def _rule(
    check: Check,
    *needs: str,
    allowed: Callable[[Context], str] | None = None,
    only_prunes: bool = False,
    offered_by: Offerer | None = None,
) -> Rule:
    message = (check.__doc__ or "").strip()
    name: str = check.__name__
    return Rule(
        name=name,
        needs=needs,
        message=message,
        is_legal=check,
        allowed=allowed,
        violation=VIOLATIONS.get(name),
        only_prunes=only_prunes,
        offered_by=offered_by,
    )


GPUS = ("tp", "cp", "pp", "dp")
"""Their product is the number of GPUs."""
RULES: tuple[Rule, ...] = (
    _rule(tp_supported, "tp", offered_by="framework"),
    _rule(tp_divides_heads, "tp", allowed=limits.heads),
    _rule(tp_divides_kv_heads, "tp", allowed=limits.heads),
    _rule(tp_divides_ffn, "tp", allowed=limits.widths),
    _rule(tp_fits_model, "tp", allowed=limits.splits),
    _rule(tp_within_scale_up_domain, "tp", only_prunes=True),
    _rule(cp_supported, "cp", offered_by="framework"),
    _rule(cp_fits_attention, "cp", allowed=limits.attention),
    _rule(pp_supported, "pp", offered_by="framework"),
    _rule(pp_at_most_layers, "pp", allowed=limits.layers),
    _rule(pp_ties_embeddings, "pp"),
    _rule(schedule_offered, "schedule", allowed=limits.schedules, offered_by="framework"),
    _rule(schedule_needs_stages, "pp", "schedule"),
    _rule(schedule_pays, "schedule", only_prunes=True),
    _rule(vpp_supported, "vpp", offered_by="framework"),
    _rule(schedule_fits_chunks, "schedule", "vpp"),
    _rule(layers_fill_chunks, "pp", "schedule", "vpp", allowed=limits.layers),
    _rule(chunks_hide_transfers, "pp", "vpp"),
    _rule(batch_divisible, "dp", allowed=limits.batch),
    _rule(within_cluster, *GPUS, allowed=limits.gpus),
    _rule(whole_nodes, *GPUS, only_prunes=True),
    _rule(ep_supported, "ep", offered_by="framework"),
    _rule(ep_divides_experts, "ep", allowed=limits.experts),
    _rule(etp_divides_expert_ffn, "etp", allowed=limits.expert_width),
    _rule(expert_mesh_fits, "tp", "cp", "dp", "ep", "etp"),
    _rule(
        expert_mesh_offered,
        "tp",
        "dp",
        "ep",
        "etp",
        allowed=limits.expert_mesh,
        offered_by="framework",
    ),
    _rule(exchange_overlap_has_chunks, "pp", "vpp", "ep"),
    _rule(micro_batch_divisible, "dp", "micro_batch", allowed=limits.batch),
    _rule(vpp_micro_batches, "pp", "schedule", "vpp", "dp", "micro_batch"),
    _rule(schedule_fills, "pp", "dp", "micro_batch", "schedule"),
    _rule(micro_batches_fill_stages, "pp", "schedule", "vpp", "dp", "micro_batch"),
    _rule(tp_splits_experts, "tp", "etp", "sequence_parallel"),
    _rule(sequence_parallel_offered, "tp", "sequence_parallel", offered_by="framework"),
    _rule(sequence_divisible, "tp", "cp", "sequence_parallel"),
    _rule(folded_experts_need_slices, "tp", "etp", "sequence_parallel"),
    _rule(replicas_divide_dp, "tp", "cp", "dp", "ep", "etp", "dp_replicate"),
    _rule(
        zero_stage_offered, "pp", "zero_stage", allowed=limits.zero_stages, offered_by="framework"
    ),
    _rule(
        optimizer_runs_under_zero, "zero_stage", allowed=limits.optimizer, offered_by="optimizer"
    ),
    _rule(hybrid_sharding_offered, "zero_stage", "dp_replicate", offered_by="framework"),
    _rule(secondary_partition_fits, *GPUS, "zero_stage"),
    _rule(states_have_ranks, "tp", "cp", "dp", "dp_replicate", "offload"),
    _rule(replicas_are_shared_out, "dp", "zero_stage", "dp_replicate", only_prunes=True),
    _rule(
        zero_needs_replicas,
        *(*GPUS, "ep", "etp", "zero_stage", "offload"),
        only_prunes=True,
    ),
    _rule(
        offload_offered,
        "zero_stage",
        "pp",
        "offload",
        allowed=limits.offloads,
        offered_by="framework",
    ),
    _rule(
        offload_percent_offered, "zero_stage", "offload", "offload_percent", offered_by="framework"
    ),
    _rule(offload_has_room, "offload", allowed=limits.room),
    _rule(
        placement_offered,
        *("tp", "cp", "pp", "ep", "etp", "placement"),
        allowed=limits.placements,
        offered_by="framework",
    ),
    _rule(placement_matters, "tp", "cp", "dp", "pp", "placement", only_prunes=True),
)
WHOLE_CLUSTER = _rule(whole_cluster, *GPUS, only_prunes=True)
"""Asked beside RULES where plans for a part of the cluster are of no interest."""
