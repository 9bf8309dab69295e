"""Rules of tensor, context and pipeline parallelism, of schedules, and of the chunks of a stage."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.interleaving import chunks_fit
from planner.search.space.rule import Clauses, Columns, is_schedule, rule, supported
from planner.spec.model import has_sinks
from planner.spec.strategy import V_SHAPED
from planner.spec.traits import ANY_FAMILY

LAYERS = "{model.name} has {model.num_blocks} layers"
_HEADS = "{model.name} has {model.num_heads} heads, {model.num_kv_heads} of keys and values"


tp_supported = supported("tp", "tensor parallelism")


def _split_ranks(context: Context) -> str:
    if context.traits.kernels.joins_adapters:
        return "tp that divides --lora-rank {training.rank}"
    return "tp 1 where weights are frozen"


@rule("tp", allowed=_split_ranks)
def adapters_can_be_split(context: Context, columns: Columns) -> Clauses:
    """The framework splits adapters, and tp divides their rank, where only adapters are trained."""
    training, given = context.traits.training, "tp {tp} with --train {training.mode}"
    why = {
        "lora": "adapters of split matrices are not modelled",
        "qlora": "bitsandbytes' 4-bit matrices cannot be split",
    }
    whole = (columns["tp"] == 1) | (not training.is_frozen)
    divides = training.rank % np.maximum(columns["tp"], 1) == 0
    return {
        f"{given}: {why.get(training.mode, '')}": whole | context.traits.kernels.joins_adapters,
        f"{given}: tp does not divide a rank of {{training.rank}}": whole | divides,
    }


@rule("tp", allowed=_HEADS)
def tp_divides_heads(context: Context, columns: Columns) -> Clauses:
    """Attention heads are split whole over tensor-parallel ranks, and groups of their outputs.

    Groups: DeepSeek-V4, transformers modeling_deepseek_v4.py DeepseekV4GroupedLinear.
    """
    model = context.model
    split = {f"{own.num_heads} heads": own.num_heads for own in (model, model.with_attention("S"))}
    if model.mla and model.mla.output_groups:
        split[f"{model.mla.output_groups} groups of outputs"] = model.mla.output_groups
    return {
        f"tp {{tp}} does not divide {what}": number % columns["tp"] == 0
        for what, number in split.items()
    }


@rule("tp", allowed=_HEADS)
def tp_divides_kv_heads(context: Context, columns: Columns) -> Clauses:
    """Key/value heads are split whole, or each is replicated the same number of times."""
    heads = context.model.num_kv_heads
    splits = heads % columns["tp"] == 0
    replicates = columns["tp"] % heads == 0
    says = "tp {tp} and {model.num_kv_heads} key/value heads: neither divides the other"
    return {says: splits | replicates}


def _widths(context: Context) -> str:
    moe = context.model.moe
    experts = ", shared experts {moe.shared_ffn_size}" if moe and moe.shared_ffn_size else ""
    return f"the MLP is {{model.ffn_size}} wide{experts}"


@rule("tp", allowed=_widths)
def tp_divides_ffn(context: Context, columns: Columns) -> Clauses:
    """The MLP's width is split evenly."""
    moe = context.model.moe
    own = context.model.ffn_size % columns["tp"] == 0
    shared = (moe.shared_ffn_size if moe else 0) % columns["tp"] == 0
    mlp = "tp {tp} does not divide the width {model.ffn_size} of an MLP"
    experts = "the width {moe.shared_ffn_size} of the shared experts"
    return {
        f"{mlp} or {experts}": own | shared,
        mlp: own,
        f"tp {{tp}} does not divide {experts}": shared,
    }


def _splits(context: Context) -> str:
    own = "{model.name} has {model.num_kv_heads} key and value heads"
    if ANY_FAMILY in context.traits.support.tp_families:
        return own
    return f"{{traits.name}} splits {{support.tp_families}}; {own}"


@rule("tp", allowed=_splits)
def tp_fits_model(context: Context, columns: Columns) -> Clauses:
    """The framework can split the layers of the model's family; key/value heads, if it must."""
    support, model = context.traits.support, context.model
    is_known = not model.family or bool({ANY_FAMILY, model.family} & {*support.tp_families})
    heads = "num_heads" if model.mla else "num_kv_heads"
    whole = columns["tp"] == 1
    splits = whole | (getattr(model, heads) % columns["tp"] == 0) | support.replicates_kv_heads
    lacks = f"tp {{tp}} does not divide {{model.{heads}}} key/value heads"
    return {
        "tp {tp} of {model.family}: {software} splits {support.tp_families}": whole | is_known,
        f"{lacks}, and {{software}} does not replicate them": splits,
    }


@rule("tp", only_prunes=True)
def tp_within_scale_up_domain(context: Context, columns: Columns) -> Clauses:
    """Tensor parallelism stays inside the NVLink (xGMI, ICI) domain."""
    inside = columns["tp"] <= context.cluster.node.scale_up.num_accelerators
    return {"tp {tp} leaves the scale-up domain of {node.scale_up.num_accelerators} GPUs": inside}


cp_supported = supported("cp", "context parallelism")


@rule(
    "tp",
    allowed="{model.name} has {mixer.num_heads} heads of values, {mixer.num_key_heads} of keys",
)
def tp_divides_mixer_heads(context: Context, columns: Columns) -> Clauses:
    """Heads and groups of a linear mixer are split whole (Megatron-Core ssm/mamba_mixer.py)."""
    mixer = context.model.mixer
    divides = (mixer.num_key_heads if mixer else 0) % columns["tp"] == 0
    return {
        "tp {tp} does not divide {mixer.num_key_heads} key heads or groups of the mixer": divides
    }


@rule(
    *("tp", "cp"),
    allowed="{mixer.kind}: {mixer.num_heads} heads of values, {mixer.num_key_heads} of keys",
)
def cp_divides_mixer_heads(context: Context, columns: Columns) -> Clauses:
    """Under context parallelism a mixer has some heads of the whole sequence.

    Mamba-2 repeats its groups; Kimi Delta and lightning attention have no context parallelism.
    Source: Megatron-Core ssm/mamba_context_parallel.py, transformer_config.py.
    """
    mixer = context.model.mixer
    legal = columns["cp"] == 1
    if mixer is None:
        legal = legal | True
    elif mixer.kind not in ("kimi_delta", "lightning"):
        heads = mixer.num_heads if mixer.kind == "mamba2" else mixer.num_key_heads
        legal = legal | (heads % (columns["tp"] * columns["cp"]) == 0)
    return {"cp {cp} with tp {tp}: the mixer's heads are split over both": legal}


@rule("cp", allowed="{traits.name} runs {support.cp_attention} attention so")
def cp_fits_attention(context: Context, columns: Columns) -> Clauses:
    """Context parallelism runs attention without biases; some frameworks': plain causal alone."""
    model = context.model
    unusual = {
        "is an {model.architecture}": model.architecture != "decoder",
        "has a window of {model.sliding_window} tokens": model.sliding_window,
        "has attention sinks": has_sinks(model),
        "has linear mixers": model.mixer,  # their state goes from token to token
    }
    why = " and ".join(words for words, holds in unusual.items() if holds)
    whole = columns["cp"] == 1
    bare = whole | (model.position not in ("alibi", "relative"))
    plain = whole | (not why or context.traits.support.cp_attention == "any")
    given = "cp {cp}: {software} runs"
    return {
        f"{given} no biased attention, and {{model.name}} has {{model.position}} positions": bare,
        f"{given} plain causal attention alone, and {{model.name}} {why}": plain,
    }


pp_supported = supported("pp", "pipeline parallelism")


@rule("pp", allowed=LAYERS)
def pp_at_most_layers(context: Context, columns: Columns) -> Clauses:
    """Every stage holds at least one layer."""
    enough = columns["pp"] <= context.model.num_blocks
    return {"pp {pp} is more than the {model.num_blocks} layers": enough}


@rule("pp")
def pp_ties_embeddings(context: Context, columns: Columns) -> Clauses:
    """A model whose embedding is its head is pipelined only where the framework ties stages."""
    ties = context.traits.support.pipelines_tied_embeddings or not context.model.tied_embeddings
    return {
        "pp {pp}: the embedding of {model.name} is its head, which {software} does not tie over "
        "stages": (columns["pp"] == 1) | ties
    }


@rule(
    "schedule",
    allowed="profile {traits.profile} of {traits.name} offers {support.schedules}",
    offered_by="framework",
)
def schedule_offered(context: Context, columns: Columns) -> Clauses:
    """The framework offers the pipeline schedule."""
    offered = is_schedule(columns, *context.traits.support.schedules)
    return {"schedule {schedule}: {software} offers {support.schedules}": offered}


@rule("pp", "schedule")
def schedule_needs_stages(_: Context, columns: Columns) -> Clauses:
    """Schedules other than 1F1B need several stages."""
    legal = (columns["pp"] > 1) | is_schedule(columns, "1f1b")
    return {"schedule {schedule} with pp {pp}: it needs several stages": legal}


@rule("schedule", only_prunes=True)
def schedule_pays(context: Context, columns: Columns) -> Clauses:
    """GPipe takes as long as 1F1B and holds more: not where 1F1B can be chosen."""
    legal = ~is_schedule(columns, "gpipe") | ("1f1b" not in context.schedules)
    return {"schedule {schedule} takes as long as 1f1b and holds more": legal}


vpp_supported = supported("vpp", "interleaved schedule", "an ")


@rule("schedule", "vpp")
def schedule_fits_chunks(_: Context, columns: Columns) -> Clauses:
    """1F1B takes any chunks per stage; V-shaped schedules 2, zb-interleaved several, others one."""
    vpp, given = columns["vpp"], "schedule {schedule} with vpp {vpp}: it takes"
    return {
        f"{given} 2": ~is_schedule(columns, *V_SHAPED) | (vpp == 2),
        f"{given} 2 or more": ~is_schedule(columns, "zb-interleaved") | (vpp > 1),
        f"{given} 1": ~is_schedule(columns, "gpipe", "zb-h1", "zb-h2") | (vpp == 1),
    }


@rule("pp", "schedule", "vpp", allowed=LAYERS)
def layers_fill_chunks(context: Context, columns: Columns) -> Clauses:
    """Interleaving needs several stages and a layer in every chunk, but one at either end.

    Zero-bubble schedules need equal chunks.
    """
    num_layers, pp, vpp = context.model.num_blocks, columns["pp"], columns["vpp"]
    uneven = is_schedule(columns, "1f1b")
    legal = (vpp == 1) | chunks_fit(num_layers, pp, vpp, uneven=uneven)
    unfilled = "{model.num_blocks} layers do not fill pp {pp} x vpp {vpp} = {chunks} chunks"
    return {
        "vpp {vpp} with pp 1: interleaving needs several stages": (vpp == 1) | (pp > 1),
        f"{unfilled}, which must be equal": legal | uneven,
        f"{unfilled} of {{chunk_layers}}, of which the end stages may lack one": legal,
    }


@rule("pp", "vpp")
def chunks_hide_transfers(context: Context, columns: Columns) -> Clauses:
    """Chunks need more stages where transfers are waited for, as far as the framework asks."""
    enough = columns["pp"] >= context.traits.support.fewest_waiting_chunked_stages
    waits = context.traits.overlap.pipeline_p2p_overlap == "none"
    return {
        "vpp {vpp} with pp {pp}: {software} waits for transfers between stages, so that it needs "
        "pp {support.fewest_waiting_chunked_stages}": (columns["vpp"] == 1) | enough | (not waits)
    }
