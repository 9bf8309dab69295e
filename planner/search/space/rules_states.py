"""Rules of how states are sharded, offloaded and placed."""

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.layers.parameters import count_parameters
from planner.search.space.rule import (
    GPUS,
    OFF_THE_MESH,
    Clauses,
    Columns,
    Row,
    filled,
    offloads,
    rule,
)
from planner.spec.strategy import (
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    SEQUENCE_DEGREES,
    STAGE_DEGREES,
    gpus_of,
    ranks_of_sequence,
    ranks_of_stage,
)
from planner.units import GIB

# Degrees that cut a sequence, with their values.
_SEQUENCE_CUTS = " and ".join(f"{name} {{{name}}}" for name in SEQUENCE_DEGREES)


def _split_mesh(context: Context, row: Row) -> str:
    left = filled(OFF_THE_MESH, context, {**row, "dp": row["dp"] // row["dp_replicate"]})
    return f"dp {{dp}} / dp_replicate {{dp_replicate}} leaves {left}"


@rule(*STAGE_DEGREES, "ep", "etp", "dp_replicate")
def replicas_divide_dp(_: Context, columns: Columns) -> Clauses:
    """Replicas of the sharding group divide data parallelism; the expert mesh fits inside each."""
    replicas = columns["dp_replicate"]
    ranks = ranks_of_stage(columns) // columns["dp"] * (columns["dp"] // replicas)
    return {
        "dp_replicate {dp_replicate} does not divide dp {dp}": columns["dp"] % replicas == 0,
        _split_mesh: ranks % (columns["etp"] * columns["ep"]) == 0,
    }


@rule(
    *("pp", "zero_stage"),
    allowed="{traits.name} offers stages {support.zero_stages}, with pipelining "
    "{support.zero_stages_with_pp}",
    offered_by="framework",
)
def zero_stage_offered(context: Context, columns: Columns) -> Clauses:
    """The framework offers the ZeRO stage with (or without) pipelining."""
    support, stage, is_piped = context.traits.support, columns["zero_stage"], columns["pp"] > 1
    alone = is_piped | np.isin(stage, support.zero_stages)
    piped = ~is_piped | np.isin(stage, support.zero_stages_with_pp)
    given = "ZeRO {zero_stage} with pp {pp}: {software} offers"
    return {
        f"{given} {{support.zero_stages}} there": alone,
        f"{given} {{support.zero_stages_with_pp}} there": piped,
    }


@rule(
    "zero_stage",
    allowed="{optimizer.name} under {traits.name} runs under stages {optimizer.zero_stages}",
    offered_by="optimizer",
)
def optimizer_runs_under_zero(context: Context, columns: Columns) -> Clauses:
    """The optimizer runs under the ZeRO stage in this framework."""
    runs = np.isin(columns["zero_stage"], context.traits.optimizer.zero_stages)
    given = "{optimizer.name} under ZeRO {zero_stage}: under {software} it runs under"
    return {f"{given} {{optimizer.zero_stages}}": runs}


@rule("zero_stage", "dp_replicate", offered_by="framework")
def hybrid_sharding_offered(context: Context, columns: Columns) -> Clauses:
    """Framework and optimizer shard inside groups that are replicated (hybrid), from stage 1."""
    traits, plain = context.traits, columns["dp_replicate"] == 1
    given, lacks = "dp_replicate {dp_replicate}", "{software} has no hybrid sharding"
    by_optimizer = plain | traits.optimizer.hybrid_sharding
    sharded = plain | (columns["zero_stage"] >= 1)
    return {
        f"{given}: {lacks}": plain | traits.support.hybrid_sharding,
        f"{given}: {{optimizer.name}} under {lacks}": by_optimizer,
        f"{given} under ZeRO {{zero_stage}}: nothing is sharded there": sharded,
    }


@rule(*STAGE_DEGREES, "ep", "etp", "zero_stage", "dp_replicate")
def cut_weights_have_ranks(context: Context, columns: Columns) -> Clauses:
    """Ranks that weights are cut over divide data parallelism; up to stage 1, without replicas."""
    states, dp = context.traits.states, columns["dp"]
    experts = states.expert_weight_shards
    replicas = ranks_of_stage(columns) // (columns["etp"] * columns["ep"])
    legal = (columns["zero_stage"] <= 1) & (columns["dp_replicate"] == 1)
    given = "{software} cuts weights over {states.weight_shards:g} further ranks"
    of_experts = "{software} cuts experts over {states.expert_weight_shards:g} further ranks"
    apart = f"ZeRO {{zero_stage}}, dp_replicate {{dp_replicate}}: {given} up to ZeRO 1, replicas 1"
    return {
        f"dp {{dp}}: {given}, which divide it": dp % states.weight_shards == 0,
        f"{{stage_ranks}} beside {{expert_ranks}}: {of_experts}": replicas % experts == 0,
        apart: legal | (not states.cuts_weights),
    }


@rule(*GPUS, "zero_stage")
def secondary_partition_fits(context: Context, columns: Columns) -> Clauses:
    """A second copy of the weights inside the node: neighbouring ranks, all in equal groups."""
    has_copy = context.traits.states.zero3_secondary_weight_bytes > 0
    without = (columns["zero_stage"] != 3) | (not has_copy)
    number = gpus_of(columns)
    group = np.minimum(number, context.cluster.node.num_accelerators)
    close = without | (ranks_of_stage(columns) == columns["dp"])
    full = without | (number % group == 0)
    copy = "{software} keeps a second copy of the weights over each node"
    apart = f"ZeRO {{zero_stage}} with tp {{tp}} and {_SEQUENCE_CUTS}: {copy}"
    partly = f"{{gpus}} under ZeRO {{zero_stage}}: {copy}"
    return {
        f"{apart}, whose ranks must be neighbours: both 1": close,
        f"{partly}, and the last of {{node.num_accelerators}} is not full": full,
    }


def _single_rank(context: Context, row: Row) -> str:
    over = "dp {dp} / dp_replicate {dp_replicate}" if row["dp_replicate"] > 1 else "dp {dp}"
    given = f"tp {{tp}} with {over} and {_SEQUENCE_CUTS}: one rank to shard states over"
    if context.traits.support.tp_alone == "no":
        return f"{given}, and {{software}} needs several beside tp"
    broken = "dp 1" if row["dp"] > 1 else "nothing offloaded; given {offload}"
    return f"{given}, and {{software}} runs that only with {broken}"


@rule(*STAGE_DEGREES, "dp_replicate", "offload")
def states_have_ranks(context: Context, columns: Columns) -> Clauses:
    """Tensor parallelism without ranks to shard over runs where the framework can, offload too."""
    shards = columns["dp"] // columns["dp_replicate"] * ranks_of_sequence(columns)
    alone = (shards == 1) & (columns["tp"] > 1)
    kind = context.traits.support.tp_alone
    stays = columns["offload"] == OFFLOAD_CODES.index("none")
    stays &= columns["dp"] == 1
    return {_single_rank: ~alone | (kind == "yes") | (stays & (kind == "without offload"))}


@rule(*("dp", "zero_stage", "dp_replicate"), only_prunes=True)
def replicas_are_shared_out(_: Context, columns: Columns) -> Clauses:
    """Replicating every shard is no sharding: that is ZeRO 0."""
    replicas = columns["dp_replicate"]
    legal = (replicas == 1) | (replicas < columns["dp"]) | (columns["zero_stage"] == 0)
    return {"dp_replicate {dp_replicate} of dp {dp} leaves nothing to shard: ZeRO 0": legal}


@rule(*(*GPUS, "ep", "etp", "zero_stage", "offload"), only_prunes=True)
def zero_needs_replicas(context: Context, columns: Columns) -> Clauses:
    """A single rank has nothing to shard: without offload only the lowest stage is kept."""
    support = context.traits.support
    lowest = np.where(
        columns["pp"] > 1, min(support.zero_stages_with_pp, default=0), min(support.zero_stages)
    )
    alone = columns["dp"] * ranks_of_sequence(columns) == 1
    alone &= columns["tp"] <= columns["etp"] * columns["ep"]
    legal = ~alone | (columns["zero_stage"] == lowest)
    legal |= columns["offload"] != OFFLOAD_CODES.index("none")
    given = f"ZeRO {{zero_stage}} with dp {{dp}} and {_SEQUENCE_CUTS}"
    return {f"{given}: no two ranks have states to share": legal}


@rule(*SEQUENCE_DEGREES, "zero_stage")
def replicas_take_whole_sequences(context: Context, columns: Columns) -> Clauses:
    """Adapters beside whole frozen weights (DistributedDataParallel) see whole sequences."""
    whole = (columns["zero_stage"] > 0) | (ranks_of_sequence(columns) == 1)
    whole |= context.traits.kernels.joins_adapters  # replicas of Megatron-Core's own
    legal = whole | (not context.traits.training.is_frozen)
    return {f"{_SEQUENCE_CUTS} under ZeRO 0: whole replicas take whole sequences": legal}


@rule(
    *("zero_stage", "pp", "offload"),
    allowed="{traits.name} offers {support.offload}",
    offered_by="framework",
)
def offload_offered(context: Context, columns: Columns) -> Clauses:
    """The framework offers the offload, under the optimizer and the ZeRO stage.

    Parameters need ZeRO stage 3, optimizer states 1; NVMe those of the framework.
    """
    support, stage = context.traits.support, columns["zero_stage"]
    offered = np.array([code in support.offload for code in OFFLOAD_CODES])
    stays = ~offloads(columns, "optimizer")
    can = stays | (context.traits.optimizer.offload != "no")
    on_disk = ~offloads(columns, "nvme") | np.isin(stage, support.nvme_zero_stages)
    given = "offload {offload} under ZeRO {zero_stage}"
    to_disk = f"{given}: {{software}} offloads to NVMe under ZeRO {{support.nvme_zero_stages}}"
    return {
        "offload {offload}: {software} offers {support.offload}": offered[columns["offload"]],
        "offload {offload}: {optimizer.name} under {software} cannot be offloaded": can,
        to_disk: on_disk,
        f"{given}: it needs stage 3": ~offloads(columns, "parameters") | (stage >= 3),
        f"{given}: it needs stage 1": stays | (stage >= 1),
    }


@rule("zero_stage", "offload", "offload_percent", offered_by="framework")
def offload_percent_offered(context: Context, columns: Columns) -> Clauses:
    """A part of the optimizer's states is offloaded only where framework and optimizer can."""
    percent, stages = columns["offload_percent"], context.traits.support.partial_offload_zero_stages
    whole = percent == 100
    given = "offload_percent {offload_percent} with offload {offload} under ZeRO {zero_stage}"
    where = "under ZeRO {support.partial_offload_zero_stages}" if stages else "nowhere"
    has_states = whole | offloads(columns, "optimizer")
    can = whole | (context.traits.optimizer.offload == "part")
    offered = whole | np.isin(columns["zero_stage"], stages)
    return {
        f"{given}: there is no optimizer state to offload in part": has_states,
        f"{given}: allowed are 1 to 100": whole | (percent > 0) & (percent < 100),
        f"{given}: {{optimizer.name}} under {{software}} is not offloaded in part": can,
        f"{given}: {{software}} offloads a part {where}": offered,
    }


def _room(context: Context) -> str:
    node = context.cluster.node
    figures = {
        "host_memory_gib": node.host_memory_bytes,
        "nvme_tb": node.nvme_bytes,
        "nvme_read_gb_per_s": node.nvme_read_bytes_per_s,
        "nvme_write_gb_per_s": node.nvme_write_bytes_per_s,
    }
    unknown = ", ".join(name for name, value in figures.items() if not value)
    if not unknown:
        return "all are known of {node.name}"
    return f"{{node.name}} has no {unknown}, which overrides of a cluster file can give"


@rule("offload", allowed=_room)
def offload_has_room(context: Context, columns: Columns) -> Clauses:
    """The node's host memory (or NVMe size and rates) is known, so that a limit can be kept."""
    node = context.cluster.node
    figures = (node.nvme_bytes, node.nvme_read_bytes_per_s, node.nvme_write_bytes_per_s)
    host = ~offloads(columns, "host") | bool(node.host_memory_bytes)
    nvme = ~offloads(columns, "nvme") | all(figures)
    unknown = "of {node.name} is not known"
    return {
        f"offload {{offload}}: the host memory {unknown}": host,
        f"offload {{offload}}: the NVMe (size, read and write rate) {unknown}": nvme,
    }


def _host_room_gib(context: Context) -> float:
    return HOST_USABLE_FRACTION * (context.cluster.node.host_memory_bytes or 0.0) / GIB


@rule(
    *("zero_stage", "offload"),
    allowed=lambda context: (
        f"{_host_room_gib(context):,.1f} GiB of {{node.name}} are usable, or ZeRO 3"
    ),
)
def host_holds_loading(context: Context, columns: Columns) -> Clauses:
    """Beside states offloaded to it, host memory holds the copies that ranks load at the start."""
    copies = context.traits.states.host_load_bytes * context.cluster.node.num_accelerators
    loading_gib = copies * count_parameters(context.model) / GIB
    taken = np.where(columns["zero_stage"] < 3, loading_gib, 0.0)
    says = (
        "offload {offload} under ZeRO {zero_stage}: {node.num_accelerators} ranks load a copy "
        f"of the model each, {loading_gib:,.1f} GiB of host memory"
    )
    return {says: ~offloads(columns, "host") | (taken <= _host_room_gib(context))}


@rule(
    *("tp", *SEQUENCE_DEGREES, "pp", "ep", "etp", "placement"),
    allowed="{traits.name} offers {support.placements}",
    offered_by="framework",
)
def placement_offered(context: Context, columns: Columns) -> Clauses:
    """The framework offers the placement; with pp inside dp, ep and cp are 1, and etp is tp."""
    names, placement = context.traits.support.placements, columns["placement"]
    offered = np.array([name in names for name in PLACEMENT_NAMES])
    usual = (columns["pp"] == 1) | (placement == 0)
    whole = usual | (columns["ep"] * ranks_of_sequence(columns) == 1)
    given = "placement {placement} with"
    same = usual | (columns["etp"] == columns["tp"])
    return {
        "placement {placement}: {software} offers {support.placements}": offered[placement],
        f"{given} ep {{ep}} and {_SEQUENCE_CUTS}: both must be 1": whole,
        f"{given} etp {{etp}} and tp {{tp}}: they must be the same": same,
    }


@rule(*(*STAGE_DEGREES, "pp", "placement"), only_prunes=True)
def placement_matters(context: Context, columns: Columns) -> Clauses:
    """Only the first placement searched where pp or dp is 1, or no network level divides them."""
    inner = ranks_of_stage(columns) // columns["dp"]
    whole = gpus_of(columns)
    sizes = [level.num_accelerators for level in context.cluster.levels[:-1]]
    between = [(inner < size) & (size < whole) for size in sizes]
    divided = np.any(between, axis=0)
    searched = context.placements or context.traits.support.placements
    first = PLACEMENT_NAMES.index(searched[0])
    differs = divided & (columns["dp"] > 1) & (columns["pp"] > 1)
    says = "placement {placement} with dp {dp} and pp {pp} costs what the first one does"
    return {says: differs | (columns["placement"] == first)}
