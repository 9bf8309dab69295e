"""Rules of how states are sharded, offloaded and placed."""

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.layers.parameters import count_parameters
from planner.search.space.rule import GPUS, OFF_THE_MESH, Columns, Row, filled, offloads, rule
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

# Degrees that cut a sequence, with their values.
_SEQUENCE_CUTS = " and ".join(f"{name} {{{name}}}" for name in SEQUENCE_DEGREES)


def _uneven_groups(context: Context, row: Row) -> str:
    """Replicas against dp, or the expert mesh against a replica."""
    dp, replicas = row["dp"], row["dp_replicate"]
    if dp % replicas:
        return "dp_replicate {dp_replicate} does not divide dp {dp}"
    left = filled(OFF_THE_MESH, context, {**row, "dp": dp // replicas})
    return f"dp {{dp}} / dp_replicate {{dp_replicate}} leaves {left}"


@rule(*STAGE_DEGREES, "ep", "etp", "dp_replicate", says=_uneven_groups)
def replicas_divide_dp(_: Context, columns: Columns) -> Mask:
    """Replicas of the sharding group divide data parallelism; the expert mesh fits inside each."""
    replicas = columns["dp_replicate"]
    ranks = ranks_of_stage(columns) // columns["dp"] * (columns["dp"] // replicas)
    whole = ranks % (columns["etp"] * columns["ep"]) == 0
    divides = columns["dp"] % replicas == 0
    return np.asarray(divides & whole)


def _other_stages(_: Context, row: Row) -> str:
    stages = "support.zero_stages_with_pp" if row["pp"] > 1 else "support.zero_stages"
    return f"ZeRO {{zero_stage}} with pp {{pp}}: {{software}} offers {{{stages}}} there"


@rule(
    *("pp", "zero_stage"),
    says=_other_stages,
    allowed="{traits.name} offers stages {support.zero_stages}, with pipelining "
    "{support.zero_stages_with_pp}",
    offered_by="framework",
)
def zero_stage_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the ZeRO stage with (or without) pipelining."""
    support = context.traits.support
    alone = np.isin(columns["zero_stage"], support.zero_stages)
    piped = np.isin(columns["zero_stage"], support.zero_stages_with_pp)
    return np.where(columns["pp"] > 1, piped, alone)


@rule(
    "zero_stage",
    says="{optimizer.name} under ZeRO {zero_stage}: under {software} it runs under "
    "{optimizer.zero_stages}",
    allowed="{optimizer.name} under {traits.name} runs under stages {optimizer.zero_stages}",
    offered_by="optimizer",
)
def optimizer_runs_under_zero(context: Context, columns: Columns) -> Mask:
    """The optimizer runs under the ZeRO stage in this framework."""
    return np.isin(columns["zero_stage"], context.traits.optimizer.zero_stages)


def _no_hybrid_sharding(context: Context, _: Row) -> str:
    """Replicas without sharding, or without the framework's or the optimizer's support."""
    given, traits = "dp_replicate {dp_replicate}", context.traits
    if not traits.support.hybrid_sharding:
        return f"{given}: {{software}} has no hybrid sharding"
    if not traits.optimizer.hybrid_sharding:
        return f"{given}: {{optimizer.name}} under {{software}} has no hybrid sharding"
    return f"{given} under ZeRO {{zero_stage}}: nothing is sharded there"


@rule("zero_stage", "dp_replicate", says=_no_hybrid_sharding, offered_by="framework")
def hybrid_sharding_offered(context: Context, columns: Columns) -> Mask:
    """Framework and optimizer shard inside groups that are replicated (hybrid), from stage 1."""
    traits = context.traits
    can = traits.support.hybrid_sharding and traits.optimizer.hybrid_sharding
    is_plain = columns["dp_replicate"] == 1
    is_sharded = columns["zero_stage"] >= 1
    legal: Mask = is_plain | (can & is_sharded)
    return legal


def _no_neighbours(_: Context, row: Row) -> str:
    """Axes between the ranks that share a copy, or a group that is not full."""
    copy = "{software} keeps a second copy of the weights over each node"
    if ranks_of_stage(row) > row["dp"]:
        given = f"ZeRO {{zero_stage}} with tp {{tp}} and {_SEQUENCE_CUTS}"
        return f"{given}: {copy}, whose ranks must be neighbours: both 1"
    last = "the last of {node.num_accelerators} is not full"
    return f"{{gpus}} under ZeRO {{zero_stage}}: {copy}, and {last}"


@rule(*GPUS, "zero_stage", says=_no_neighbours)
def secondary_partition_fits(context: Context, columns: Columns) -> Mask:
    """A second copy of the weights inside the node: neighbouring ranks, all in equal groups."""
    if not context.traits.states.zero3_secondary_weight_bytes:
        return np.ones(len(columns["tp"]), dtype=bool)
    number = gpus_of(columns)
    group = np.minimum(number, context.cluster.node.num_accelerators)
    fits = (ranks_of_stage(columns) == columns["dp"]) & (number % group == 0)
    legal: Mask = fits | (columns["zero_stage"] != 3)
    return legal


def _single_rank(context: Context, row: Row) -> str:
    over = "dp {dp} / dp_replicate {dp_replicate}" if row["dp_replicate"] > 1 else "dp {dp}"
    given = f"tp {{tp}} with {over} and {_SEQUENCE_CUTS}: one rank to shard states over"
    if context.traits.support.tp_alone == "no":
        return f"{given}, and {{software}} needs several beside tp"
    broken = "dp 1" if row["dp"] > 1 else "nothing offloaded; given {offload}"
    return f"{given}, and {{software}} runs that only with {broken}"


@rule(*STAGE_DEGREES, "dp_replicate", "offload", says=_single_rank)
def states_have_ranks(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism without ranks to shard over runs where the framework can, offload too."""
    shards = columns["dp"] // columns["dp_replicate"] * ranks_of_sequence(columns)
    alone = (shards == 1) & (columns["tp"] > 1)
    kind = context.traits.support.tp_alone
    stays = columns["offload"] == OFFLOAD_CODES.index("none")
    stays &= columns["dp"] == 1
    legal: Mask = ~alone | (kind == "yes")
    legal |= (kind == "without offload") & stays
    return legal


@rule(
    *("dp", "zero_stage", "dp_replicate"),
    says="dp_replicate {dp_replicate} of dp {dp} leaves nothing to shard: ZeRO 0",
    only_prunes=True,
)
def replicas_are_shared_out(_: Context, columns: Columns) -> Mask:
    """Replicating every shard is no sharding: that is ZeRO 0."""
    replicas = columns["dp_replicate"]
    legal: Mask = (replicas == 1) | (replicas < columns["dp"])
    legal |= columns["zero_stage"] == 0
    return legal


@rule(
    *(*GPUS, "ep", "etp", "zero_stage", "offload"),
    says=f"ZeRO {{zero_stage}} with dp {{dp}} and {_SEQUENCE_CUTS}: no two ranks have states to "
    "share",
    only_prunes=True,
)
def zero_needs_replicas(context: Context, columns: Columns) -> Mask:
    """A single rank has nothing to shard: without offload only the lowest stage is kept."""
    support = context.traits.support
    lowest = np.where(
        columns["pp"] > 1, min(support.zero_stages_with_pp, default=0), min(support.zero_stages)
    )
    alone = columns["dp"] * ranks_of_sequence(columns) == 1
    alone &= columns["tp"] <= columns["etp"] * columns["ep"]
    legal: Mask = ~alone | (columns["zero_stage"] == lowest)
    legal |= columns["offload"] != OFFLOAD_CODES.index("none")
    return legal


@rule(
    *(*SEQUENCE_DEGREES, "zero_stage"),
    says=f"{_SEQUENCE_CUTS} under ZeRO 0: whole replicas take whole sequences",
)
def replicas_take_whole_sequences(context: Context, columns: Columns) -> Mask:
    """Adapters beside whole frozen weights (DistributedDataParallel) see whole sequences."""
    whole = (columns["zero_stage"] > 0) | (ranks_of_sequence(columns) == 1)
    whole |= context.traits.kernels.joins_adapters  # replicas of Megatron-Core's own
    legal: Mask = whole | (not context.traits.training.is_frozen)
    return legal


def _not_offloaded(context: Context, row: Row) -> str:
    """Return what is offered, or the ZeRO stage that is missing."""
    support = context.traits.support
    code = OFFLOAD_CODES[row["offload"]]
    if code not in support.offload:
        return "offload {offload}: {software} offers {support.offload}"
    if "optimizer" in code and context.traits.optimizer.offload == "no":
        return "offload {offload}: {optimizer.name} under {software} cannot be offloaded"
    given = "offload {offload} under ZeRO {zero_stage}"
    if "nvme" in code and row["zero_stage"] not in support.nvme_zero_stages:
        return f"{given}: {{software}} offloads to NVMe under ZeRO {{support.nvme_zero_stages}}"
    return f"{given}: it needs stage {3 if 'parameters' in code else 1}"


@rule(
    *("zero_stage", "pp", "offload"),
    says=_not_offloaded,
    allowed="{traits.name} offers {support.offload}",
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
    legal &= ~offloads(columns, "optimizer") | (stage >= 1)
    return np.asarray(legal)


def _not_in_part(context: Context, row: Row) -> str:
    """A part where all or nothing is offered."""
    given = "offload_percent {offload_percent} with offload {offload} under ZeRO {zero_stage}"
    if "optimizer" not in OFFLOAD_CODES[row["offload"]]:
        return f"{given}: there is no optimizer state to offload in part"
    if not 0 < row["offload_percent"] < 100:
        return f"{given}: allowed are 1 to 100"
    if context.traits.optimizer.offload != "part":
        return f"{given}: {{optimizer.name}} under {{software}} is not offloaded in part"
    stages = context.traits.support.partial_offload_zero_stages
    where = "under ZeRO {support.partial_offload_zero_stages}" if stages else "nowhere"
    return f"{given}: {{software}} offloads a part {where}"


@rule("zero_stage", "offload", "offload_percent", says=_not_in_part, offered_by="framework")
def offload_percent_offered(context: Context, columns: Columns) -> Mask:
    """A part of the optimizer's states is offloaded only where framework and optimizer can."""
    percent = columns["offload_percent"]
    stages = context.traits.support.partial_offload_zero_stages
    partly = offloads(columns, "optimizer") & np.isin(columns["zero_stage"], stages)
    partly &= context.traits.optimizer.offload == "part"
    partly &= (percent > 0) & (percent < 100)
    legal: Mask = (percent == 100) | partly
    return legal


def _unknown_room(context: Context, row: Row) -> str:
    unknown = "host memory"
    if "host" not in OFFLOAD_CODES[row["offload"]] or context.cluster.node.host_memory_bytes:
        unknown = "NVMe (size, read and write rate)"
    return f"offload {{offload}}: the {unknown} of {{node.name}} is not known"


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


@rule("offload", says=_unknown_room, allowed=_room)
def offload_has_room(context: Context, columns: Columns) -> Mask:
    """The node's host memory (or NVMe size and rates) is known, so that a limit can be kept."""
    node = context.cluster.node
    figures = (node.nvme_bytes, node.nvme_read_bytes_per_s, node.nvme_write_bytes_per_s)
    host = ~offloads(columns, "host") | bool(node.host_memory_bytes)
    nvme = ~offloads(columns, "nvme") | all(figures)
    return host & nvme


def _loading_gib(context: Context, columns: Columns) -> Array:
    """Return the GiB of host memory that the ranks of a node take while they load the model."""
    states = context.traits.states
    node = context.cluster.node
    every = states.host_load_bytes * count_parameters(context.model) * node.num_accelerators / GIB
    return np.where(np.asarray(columns["zero_stage"]) < 3, every, 0.0)


def _too_much_to_load(context: Context, row: Row) -> str:
    columns = {"zero_stage": np.array([row["zero_stage"]])}
    num_gib = float(_loading_gib(context, columns)[0])
    return (
        "offload {offload} under ZeRO {zero_stage}: {node.num_accelerators} ranks load a copy "
        f"of the model each, {num_gib:,.1f} GiB of host memory"
    )


def _host_room_gib(context: Context) -> float:
    return HOST_USABLE_FRACTION * (context.cluster.node.host_memory_bytes or 0.0) / GIB


@rule(
    *("zero_stage", "offload"),
    says=_too_much_to_load,
    allowed=lambda context: (
        f"{_host_room_gib(context):,.1f} GiB of {{node.name}} are usable, or ZeRO 3"
    ),
)
def host_holds_loading(context: Context, columns: Columns) -> Mask:
    """Beside states offloaded to it, host memory holds the copies that ranks load at the start."""
    holds = _loading_gib(context, columns) <= _host_room_gib(context)
    return ~offloads(columns, "host") | holds


def _other_order(context: Context, row: Row) -> str:
    """Orders offered, or axes that an order excludes."""
    if PLACEMENT_NAMES[row["placement"]] not in context.traits.support.placements:
        return "placement {placement}: {software} offers {support.placements}"
    if row["ep"] * ranks_of_sequence(row) > 1:
        return f"placement {{placement}} with ep {{ep}} and {_SEQUENCE_CUTS}: both must be 1"
    return "placement {placement} with etp {etp} and tp {tp}: they must be the same"


@rule(
    *("tp", *SEQUENCE_DEGREES, "pp", "ep", "etp", "placement"),
    says=_other_order,
    allowed="{traits.name} offers {support.placements}",
    offered_by="framework",
)
def placement_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the placement; with pp inside dp, ep and cp are 1, and etp is tp."""
    names = context.traits.support.placements
    by_code = np.array([name in names for name in PLACEMENT_NAMES])
    offered = by_code[columns["placement"]]
    folded = columns["ep"] * ranks_of_sequence(columns) > 1
    folded |= columns["etp"] != columns["tp"]
    mixed = (columns["pp"] > 1) & folded & (columns["placement"] != 0)
    return np.asarray(offered & ~mixed)


@rule(
    *(*STAGE_DEGREES, "pp", "placement"),
    says="placement {placement} with dp {dp} and pp {pp} costs what the first one does",
    only_prunes=True,
)
def placement_matters(context: Context, columns: Columns) -> Mask:
    """Only the first placement searched where pp or dp is 1, or no network level divides them."""
    inner = ranks_of_stage(columns) // columns["dp"]
    whole = gpus_of(columns)
    sizes = [level.num_accelerators for level in context.cluster.levels[:-1]]
    between = [(inner < size) & (size < whole) for size in sizes]
    divided = np.any(between, axis=0)
    searched = context.placements or context.traits.support.placements
    first = PLACEMENT_NAMES.index(searched[0])
    differs = divided & (columns["dp"] > 1) & (columns["pp"] > 1)
    legal: Mask = differs | (columns["placement"] == first)
    return legal
