"""Rules of how states are sharded, offloaded and placed."""

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.layers.parameters import count_parameters
from planner.search.space.rule import (
    GPUS,
    Columns,
    Row,
    gpus,
    listed,
    off_the_mesh,
    offloads,
    rule,
    software,
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
from planner.units import GIB, Array, Mask


def _uneven_groups(_: Context, row: Row) -> str:
    """Replicas against dp, or the expert mesh against a replica."""
    dp, replicas = row["dp"], row["dp_replicate"]
    if dp % replicas:
        return f"dp_replicate {replicas} does not divide dp {dp}"
    left = off_the_mesh({**row, "dp": dp // replicas})
    return f"dp {dp} / dp_replicate {replicas} leaves {left}"


@rule(*STAGE_DEGREES, "ep", "etp", "dp_replicate", says=_uneven_groups)
def replicas_divide_dp(_: Context, columns: Columns) -> Mask:
    """Replicas of the sharding group divide data parallelism; the expert mesh fits inside each."""
    replicas = columns["dp_replicate"]
    ranks = ranks_of_stage(columns) // columns["dp"] * (columns["dp"] // replicas)
    whole = ranks % (columns["etp"] * columns["ep"]) == 0
    return np.asarray((columns["dp"] % replicas == 0) & whole)


def _other_stages(context: Context, row: Row) -> str:
    support = context.traits.support
    stages = support.zero_stages_with_pp if row["pp"] > 1 else support.zero_stages
    offered = ", ".join(map(str, stages)) or "none"
    given = f"ZeRO {row['zero_stage']} with pp {row['pp']}"
    return f"{given}: {software(context)} offers {offered} there"


def _zero_stages(context: Context) -> str:
    support = context.traits.support
    piped = ", ".join(map(str, support.zero_stages_with_pp)) or "none"
    alone = ", ".join(map(str, support.zero_stages))
    return f"{context.traits.name} offers stages {alone}, with pipelining {piped}"


@rule("pp", "zero_stage", says=_other_stages, allowed=_zero_stages, offered_by="framework")
def zero_stage_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the ZeRO stage with (or without) pipelining."""
    support = context.traits.support
    alone = np.isin(columns["zero_stage"], support.zero_stages)
    piped = np.isin(columns["zero_stage"], support.zero_stages_with_pp)
    return np.where(columns["pp"] > 1, piped, alone)


def _stages_of_optimizer(context: Context) -> str:
    return ", ".join(map(str, context.traits.optimizer.zero_stages))


def _optimizer_elsewhere(context: Context, row: Row) -> str:
    given = f"{context.traits.optimizer.name} under ZeRO {row['zero_stage']}"
    stages = _stages_of_optimizer(context)
    return f"{given}: under {software(context)} it runs under {stages}"


def _optimizer(context: Context) -> str:
    traits, stages = context.traits, _stages_of_optimizer(context)
    return f"{traits.optimizer.name} under {traits.name} runs under stages {stages}"


@rule("zero_stage", says=_optimizer_elsewhere, allowed=_optimizer, offered_by="optimizer")
def optimizer_runs_under_zero(context: Context, columns: Columns) -> Mask:
    """The optimizer runs under the ZeRO stage in this framework."""
    return np.isin(columns["zero_stage"], context.traits.optimizer.zero_stages)


def _no_hybrid_sharding(context: Context, row: Row) -> str:
    """Replicas without sharding, or without the framework's or the optimizer's support."""
    given, traits = f"dp_replicate {row['dp_replicate']}", context.traits
    if not traits.support.hybrid_sharding:
        return f"{given}: {software(context)} has no hybrid sharding"
    if not traits.optimizer.hybrid_sharding:
        return f"{given}: {traits.optimizer.name} under {software(context)} has no hybrid sharding"
    return f"{given} under ZeRO {row['zero_stage']}: nothing is sharded there"


@rule("zero_stage", "dp_replicate", says=_no_hybrid_sharding, offered_by="framework")
def hybrid_sharding_offered(context: Context, columns: Columns) -> Mask:
    """Framework and optimizer shard inside groups that are replicated (hybrid), from stage 1."""
    traits = context.traits
    can = traits.support.hybrid_sharding and traits.optimizer.hybrid_sharding
    return np.asarray((columns["dp_replicate"] == 1) | (can & (columns["zero_stage"] >= 1)))


def _no_neighbours(context: Context, row: Row) -> str:
    """Axes between the ranks that share a copy, or a group that is not full."""
    copy = f"{software(context)} keeps a second copy of the weights over each node"
    if ranks_of_stage(row) > row["dp"]:
        given = f"ZeRO {row['zero_stage']} with {listed(row, 'tp', *SEQUENCE_DEGREES)}"
        return f"{given}: {copy}, whose ranks must be neighbours: both 1"
    words, _ = gpus(row)
    per_node = context.cluster.node.num_accelerators
    return f"{words} under ZeRO {row['zero_stage']}: {copy}, and the last of {per_node} is not full"


@rule(*GPUS, "zero_stage", says=_no_neighbours)
def secondary_partition_fits(context: Context, columns: Columns) -> Mask:
    """A second copy of the weights inside the node: neighbouring ranks, all in equal groups."""
    if not context.traits.states.zero3_secondary_weight_bytes:
        return np.ones(len(columns["tp"]), dtype=bool)
    number = gpus_of(columns)
    group = np.minimum(number, context.cluster.node.num_accelerators)
    fits = (ranks_of_stage(columns) == columns["dp"]) & (number % group == 0)
    return np.asarray(fits | (columns["zero_stage"] != 3))


def _single_rank(context: Context, row: Row) -> str:
    dp, replicas = row["dp"], row["dp_replicate"]
    over = f"dp {dp} / dp_replicate {replicas}" if replicas > 1 else f"dp {dp}"
    cuts = listed(row, *SEQUENCE_DEGREES)
    given = f"tp {row['tp']} with {over} and {cuts}: one rank to shard states over"
    if context.traits.support.tp_alone == "no":
        return f"{given}, and {software(context)} needs several beside tp"
    broken = "dp 1" if dp > 1 else f"nothing offloaded; given {OFFLOAD_CODES[row['offload']]}"
    return f"{given}, and {software(context)} runs that only with {broken}"


@rule(*STAGE_DEGREES, "dp_replicate", "offload", says=_single_rank)
def states_have_ranks(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism without ranks to shard over runs where the framework can, offload too."""
    shards = columns["dp"] // columns["dp_replicate"] * ranks_of_sequence(columns)
    alone = (shards == 1) & (columns["tp"] > 1)
    kind = context.traits.support.tp_alone
    stays = (columns["offload"] == OFFLOAD_CODES.index("none")) & (columns["dp"] == 1)
    return np.asarray(~alone | (kind == "yes") | ((kind == "without offload") & stays))


def _all_replicas(_: Context, row: Row) -> str:
    return f"dp_replicate {row['dp_replicate']} of dp {row['dp']} leaves nothing to shard: ZeRO 0"


@rule("dp", "zero_stage", "dp_replicate", says=_all_replicas, only_prunes=True)
def replicas_are_shared_out(_: Context, columns: Columns) -> Mask:
    """Replicating every shard is no sharding: that is ZeRO 0."""
    replicas = columns["dp_replicate"]
    return np.asarray((replicas == 1) | (replicas < columns["dp"]) | (columns["zero_stage"] == 0))


def _nothing_to_share(_: Context, row: Row) -> str:
    given = f"ZeRO {row['zero_stage']} with {listed(row, 'dp', *SEQUENCE_DEGREES)}"
    return f"{given}: no two ranks have states to share"


@rule(*GPUS, "ep", "etp", "zero_stage", "offload", says=_nothing_to_share, only_prunes=True)
def zero_needs_replicas(context: Context, columns: Columns) -> Mask:
    """A single rank has nothing to shard: without offload only the lowest stage is kept."""
    support = context.traits.support
    lowest = np.where(
        columns["pp"] > 1, min(support.zero_stages_with_pp, default=0), min(support.zero_stages)
    )
    alone = columns["dp"] * ranks_of_sequence(columns) == 1
    alone &= columns["tp"] <= columns["etp"] * columns["ep"]
    return np.asarray(
        ~alone
        | (columns["zero_stage"] == lowest)
        | (columns["offload"] != OFFLOAD_CODES.index("none"))
    )


def _cut_sequences(_: Context, row: Row) -> str:
    return f"{listed(row, *SEQUENCE_DEGREES)} under ZeRO 0: whole replicas take whole sequences"


@rule(*SEQUENCE_DEGREES, "zero_stage", says=_cut_sequences)
def replicas_take_whole_sequences(context: Context, columns: Columns) -> Mask:
    """Adapters beside whole frozen weights (DistributedDataParallel) see whole sequences."""
    whole = (columns["zero_stage"] > 0) | (ranks_of_sequence(columns) == 1)
    whole |= context.traits.kernels.joins_adapters  # replicas of Megatron-Core's own
    return np.asarray(whole | (not context.traits.training.is_frozen))


def _not_offloaded(context: Context, row: Row) -> str:
    """What is offered, or the ZeRO stage that is missing."""
    traits, code, stage = context.traits, OFFLOAD_CODES[row["offload"]], row["zero_stage"]
    support, optimizer = traits.support, traits.optimizer
    if code not in support.offload:
        return f"offload {code}: {software(context)} offers {', '.join(support.offload)}"
    if "optimizer" in code and optimizer.offload == "no":
        return f"offload {code}: {optimizer.name} under {software(context)} cannot be offloaded"
    given = f"offload {code} under ZeRO {stage}"
    if "nvme" in code and stage not in support.nvme_zero_stages:
        stages = "ZeRO " + (", ".join(map(str, support.nvme_zero_stages)) or "none")
        return f"{given}: {software(context)} offloads to NVMe under {stages}"
    return f"{given}: it needs stage {3 if 'parameters' in code else 1}"


@rule(
    *("zero_stage", "pp", "offload"),
    says=_not_offloaded,
    allowed=lambda context: (
        f"{context.traits.name} offers {', '.join(context.traits.support.offload)}"
    ),
    offered_by="framework",
)
def offload_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the offload, under the optimizer and the ZeRO stage.

    Parameters need ZeRO stage 3, optimizer states 1; NVMe those of the framework.
    """
    offered = np.array([code in context.traits.support.offload for code in OFFLOAD_CODES])
    legal = offered[columns["offload"].astype(int)]
    stage = columns["zero_stage"]
    legal &= ~offloads(columns, "parameters") | (stage >= 3)
    legal &= ~offloads(columns, "nvme") | np.isin(stage, context.traits.support.nvme_zero_stages)
    legal &= ~offloads(columns, "optimizer") | (context.traits.optimizer.offload != "no")
    return np.asarray(legal & (~offloads(columns, "optimizer") | (stage >= 1)))


def _not_in_part(context: Context, row: Row) -> str:
    """A part where all or nothing is offered."""
    percent, code = row["offload_percent"], OFFLOAD_CODES[row["offload"]]
    optimizer = context.traits.optimizer
    stages = context.traits.support.partial_offload_zero_stages
    given = f"offload_percent {percent} with offload {code} under ZeRO {row['zero_stage']}"
    if "optimizer" not in code:
        return f"{given}: there is no optimizer state to offload in part"
    if not 0 < percent < 100:
        return f"{given}: allowed are 1 to 100"
    if optimizer.offload != "part":
        return f"{given}: {optimizer.name} under {software(context)} is not offloaded in part"
    where = f"under ZeRO {', '.join(map(str, stages))}" if stages else "nowhere"
    return f"{given}: {software(context)} offloads a part {where}"


@rule("zero_stage", "offload", "offload_percent", says=_not_in_part, offered_by="framework")
def offload_percent_offered(context: Context, columns: Columns) -> Mask:
    """A part of the optimizer's states is offloaded only where framework and optimizer can."""
    percent, stages = columns["offload_percent"], context.traits.support.partial_offload_zero_stages
    partly = offloads(columns, "optimizer") & np.isin(columns["zero_stage"], stages)
    partly &= context.traits.optimizer.offload == "part"
    return np.asarray((percent == 100) | (partly & (percent > 0) & (percent < 100)))


def _unknown_room(context: Context, row: Row) -> str:
    code, node = OFFLOAD_CODES[row["offload"]], context.cluster.node
    unknown = "host memory"
    if "host" not in code or node.host_memory_bytes:
        unknown = "NVMe (size, read and write rate)"
    return f"offload {code}: the {unknown} of {node.name} is not known"


def _room(context: Context) -> str:
    node = context.cluster.node
    figures = {
        "host_memory_gib": node.host_memory_bytes,
        "nvme_tb": node.nvme_bytes,
        "nvme_read_gb_per_s": node.nvme_read_bytes_per_s,
        "nvme_write_gb_per_s": node.nvme_write_bytes_per_s,
    }
    unknown = [name for name, value in figures.items() if not value]
    if not unknown:
        return f"all are known of {node.name}"
    return f"{node.name} has no {', '.join(unknown)}, which overrides of a cluster file can give"


@rule("offload", says=_unknown_room, allowed=_room)
def offload_has_room(context: Context, columns: Columns) -> Mask:
    """The node's host memory (or NVMe size and rates) is known, so that a limit can be kept."""
    node = context.cluster.node
    nvme = bool(node.nvme_bytes and node.nvme_read_bytes_per_s and node.nvme_write_bytes_per_s)
    legal = ~offloads(columns, "host") | bool(node.host_memory_bytes)
    return np.asarray(legal & (~offloads(columns, "nvme") | nvme))


def _loading_gib(context: Context, columns: Columns) -> Array:
    """What the ranks of a node hold in its memory while they load the model."""
    states, node = context.traits.states, context.cluster.node
    every = states.host_load_bytes * count_parameters(context.model) * node.num_accelerators / GIB
    return np.where(np.asarray(columns["zero_stage"]) < 3, every, 0.0)


def _too_much_to_load(context: Context, row: Row) -> str:
    node, code = context.cluster.node, OFFLOAD_CODES[row["offload"]]
    num_gib = float(_loading_gib(context, {"zero_stage": np.array([row["zero_stage"]])})[0])
    return (
        f"offload {code} under ZeRO {row['zero_stage']}: {node.num_accelerators} ranks load a copy "
        f"of the model each, {num_gib:,.1f} GiB of host memory"
    )


def _room_to_load(context: Context) -> str:
    room = HOST_USABLE_FRACTION * (context.cluster.node.host_memory_bytes or 0.0) / GIB
    return f"{room:,.1f} GiB of {context.cluster.node.name} are usable, or ZeRO 3"


@rule("zero_stage", "offload", says=_too_much_to_load, allowed=_room_to_load)
def host_holds_loading(context: Context, columns: Columns) -> Mask:
    """Beside states offloaded to it, host memory holds the copies that ranks load at the start."""
    room = HOST_USABLE_FRACTION * (context.cluster.node.host_memory_bytes or 0.0) / GIB
    return np.asarray(~offloads(columns, "host") | (_loading_gib(context, columns) <= room))


def _other_order(context: Context, row: Row) -> str:
    """Orders offered, or axes that an order excludes."""
    name, offered = PLACEMENT_NAMES[row["placement"]], context.traits.support.placements
    if name not in offered:
        return f"placement {name}: {software(context)} offers {', '.join(offered)}"
    if row["ep"] * ranks_of_sequence(row) > 1:
        cuts = listed(row, "ep", *SEQUENCE_DEGREES)
        return f"placement {name} with {cuts}: both must be 1"
    return f"placement {name} with etp {row['etp']} and tp {row['tp']}: they must be the same"


@rule(
    *("tp", *SEQUENCE_DEGREES, "pp", "ep", "etp", "placement"),
    says=_other_order,
    allowed=lambda context: (
        f"{context.traits.name} offers {', '.join(context.traits.support.placements)}"
    ),
    offered_by="framework",
)
def placement_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the placement; with pp inside dp, ep and cp are 1, and etp is tp."""
    names = context.traits.support.placements
    offered = np.array([name in names for name in PLACEMENT_NAMES])[columns["placement"]]
    folded = (columns["ep"] * ranks_of_sequence(columns) > 1) | (columns["etp"] != columns["tp"])
    mixed = (columns["pp"] > 1) & folded
    return np.asarray(offered & ~(mixed & (columns["placement"] != 0)))


def _same_cost(_: Context, row: Row) -> str:
    name = PLACEMENT_NAMES[row["placement"]]
    return f"placement {name} with dp {row['dp']} and pp {row['pp']} costs what the first one does"


@rule(*STAGE_DEGREES, "pp", "placement", says=_same_cost, only_prunes=True)
def placement_matters(context: Context, columns: Columns) -> Mask:
    """Only the first placement searched where pp or dp is 1, or no network level divides them."""
    inner, whole = ranks_of_stage(columns) // columns["dp"], gpus_of(columns)
    sizes = [level.num_accelerators for level in context.cluster.levels[:-1]]
    divided = np.any([(inner < size) & (size < whole) for size in sizes], axis=0)
    searched = context.placements or context.traits.support.placements
    first = PLACEMENT_NAMES.index(searched[0])
    differs = divided & (columns["dp"] > 1) & (columns["pp"] > 1)
    return np.asarray(differs | (columns["placement"] == first))
