"""What one layout asks of the software that it has not, in words with numbers.

The rules are those of what a framework, its profile or its optimizer offers.
"""

from planner.cost.context import Context
from planner.search.space.wording import Row, Wording, gpus, micro_batches, schedule, software
from planner.spec.model import has_sinks
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES
from planner.spec.traits import ANY_FAMILY


def lacks(name: str, what: str) -> Wording:
    """The words where a framework has no such axis."""
    return lambda context, row: f"{name} {row[name]}: {software(context)} has no {what}"


def tp_fits_model(context: Context, row: Row) -> str:
    """A family that is not split, or heads that are not replicated."""
    model, support = context.model, context.traits.support
    if model.family and not {ANY_FAMILY, model.family} & set(support.tp_families):
        known = ", ".join(support.tp_families)
        return f"tp {row['tp']} of {model.family}: {software(context)} splits {known}"
    heads = model.num_heads if model.mla else model.num_kv_heads
    given = f"tp {row['tp']} does not divide {heads} key/value heads"
    return f"{given}, and {software(context)} does not replicate them"


def cp_fits_attention(context: Context, row: Row) -> str:
    """What is not plain about the model's attention."""
    model = context.model
    if model.position in ("alibi", "relative"):
        runs = f"{software(context)} runs no biased attention"
        return f"cp {row['cp']}: {runs}, and {model.name} has {model.position} positions"
    what = {
        f"is an {model.architecture}": model.architecture != "decoder",
        f"has a window of {model.sliding_window} tokens": bool(model.sliding_window),
        "has attention sinks": has_sinks(model),
    }
    why = " and ".join(words for words, holds in what.items() if holds)
    runs = f"{software(context)} runs plain causal attention alone"
    return f"cp {row['cp']}: {runs}, and {model.name} {why}"


def pp_ties_embeddings(context: Context, row: Row) -> str:
    """One matrix on two stages."""
    tied = f"the embedding of {context.model.name} is its head"
    return f"pp {row['pp']}: {tied}, which {software(context)} does not tie over stages"


def chunks_hide_transfers(context: Context, row: Row) -> str:
    """Too few stages."""
    least = context.traits.support.fewest_waiting_chunked_stages
    waits = f"{software(context)} waits for transfers between stages"
    return f"vpp {row['vpp']} with pp {row['pp']}: {waits}, so that it needs pp {least}"


def exchange_overlap_has_chunks(context: Context, row: Row) -> str:
    """Stages without chunks."""
    given = f"ep {row['ep']} with pp {row['pp']} and vpp {row['vpp']}"
    what = "exchanges tokens of experts beside another micro-batch"
    return f"{given}: {software(context)} {what} only between several chunks"


def expert_mesh_offered(context: Context, row: Row) -> str:
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


def micro_batches_fill_stages(context: Context, row: Row) -> str:
    """Fewer micro-batches than stages."""
    needs = f"{software(context)} needs one for each of pp {row['pp']} stages"
    return f"{micro_batches(context, row)}: {needs}"


def tp_splits_experts(context: Context, row: Row) -> str:
    """Without sequence parallelism, or biases that would be split."""
    needs_both = context.traits.support.mixtures_need_sequence_parallel
    if needs_both and row["tp"] > 1 and not row["sequence_parallel"]:
        given = f"tp {row['tp']} without sequence parallelism"
        return f"{given}: {software(context)} splits mixtures only with it"
    if context.traits.support.splits_experts == "no":
        return f"etp {row['etp']}: {software(context)} splits no experts"
    biased = f"the experts of {context.model.name} have biases"
    return f"etp {row['etp']}: {biased}, which {software(context)} does not split"


def hybrid_sharding_offered(context: Context, row: Row) -> str:
    """Replicas without sharding, or without the framework's or the optimizer's support."""
    given, traits = f"dp_replicate {row['dp_replicate']}", context.traits
    if not traits.support.hybrid_sharding:
        return f"{given}: {software(context)} has no hybrid sharding"
    if not traits.optimizer.hybrid_sharding:
        return f"{given}: {traits.optimizer.name} under {software(context)} has no hybrid sharding"
    return f"{given} under ZeRO {row['zero_stage']}: nothing is sharded there"


def secondary_partition_fits(context: Context, row: Row) -> str:
    """Axes between the ranks that share a copy, or a group that is not full."""
    copy = f"{software(context)} keeps a second copy of the weights over each node"
    if row["tp"] * row["cp"] > 1:
        given = f"ZeRO {row['zero_stage']} with tp {row['tp']} and cp {row['cp']}"
        return f"{given}: {copy}, whose ranks must be neighbours: both 1"
    words, _ = gpus(row)
    per_node = context.cluster.node.num_accelerators
    return f"{words} under ZeRO {row['zero_stage']}: {copy}, and the last of {per_node} is not full"


def states_have_ranks(context: Context, row: Row) -> str:
    """Tensor parallelism alone."""
    dp, replicas = row["dp"], row["dp_replicate"]
    over = f"dp {dp} / dp_replicate {replicas}" if replicas > 1 else f"dp {dp}"
    given = f"tp {row['tp']} with {over} and cp {row['cp']}: one rank to shard states over"
    if context.traits.support.tp_alone == "no":
        return f"{given}, and {software(context)} needs several beside tp"
    broken = "dp 1" if dp > 1 else f"nothing offloaded; given {OFFLOAD_CODES[row['offload']]}"
    return f"{given}, and {software(context)} runs that only with {broken}"


def offload_offered(context: Context, row: Row) -> str:
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


def offload_percent_offered(context: Context, row: Row) -> str:
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


def placement_offered(context: Context, row: Row) -> str:
    """Orders offered, or axes that an order excludes."""
    name, offered = PLACEMENT_NAMES[row["placement"]], context.traits.support.placements
    if name not in offered:
        return f"placement {name}: {software(context)} offers {', '.join(offered)}"
    if row["ep"] * row["cp"] > 1:
        return f"placement {name} with ep {row['ep']} and cp {row['cp']}: both must be 1"
    return f"placement {name} with etp {row['etp']} and tp {row['tp']}: they must be the same"


def schedule_offered(context: Context, row: Row) -> str:
    """What is offered instead."""
    offered = ", ".join(context.traits.support.schedules)
    return f"schedule {schedule(row)}: {software(context)} offers {offered}"


def sequence_parallel_offered(context: Context, row: Row) -> str:
    """On where it cannot be, or off where it must not."""
    name, tp = software(context), row["tp"]
    if not row["sequence_parallel"]:
        return f"sequence parallelism off with tp {tp}: {name} has it on beside tp"
    if not context.traits.support.sequence_parallel:
        return f"sequence parallelism on: {name} has none"
    return f"sequence parallelism on with tp {tp}: it needs tp above 1"


def zero_stage_offered(context: Context, row: Row) -> str:
    """The stages offered."""
    support = context.traits.support
    stages = support.zero_stages_with_pp if row["pp"] > 1 else support.zero_stages
    offered = ", ".join(map(str, stages)) or "none"
    given = f"ZeRO {row['zero_stage']} with pp {row['pp']}"
    return f"{given}: {software(context)} offers {offered} there"


def optimizer_runs_under_zero(context: Context, row: Row) -> str:
    """The stages an optimizer runs under."""
    optimizer = context.traits.optimizer
    stages = ", ".join(map(str, optimizer.zero_stages))
    given = f"{optimizer.name} under ZeRO {row['zero_stage']}"
    return f"{given}: under {software(context)} it runs under {stages}"
