"""Rules of tensor, context and pipeline parallelism, of schedules, and of the chunks of a stage."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.interleaving import chunks_fit
from planner.search.space.rule import Columns, Row, is_schedule, rule, supported
from planner.spec.model import has_sinks
from planner.spec.strategy import SCHEDULES, V_SHAPED
from planner.spec.traits import ANY_FAMILY
from planner.units import Mask

LAYERS = "{model.name} has {model.num_blocks} layers"
_HEADS = "{model.name} has {model.num_heads} heads, {model.num_kv_heads} of keys and values"


tp_supported = supported("tp", "tensor parallelism")


def _split_adapters(context: Context, _: Row) -> str:
    given = "tp {tp} with --train {training.mode}"
    if context.traits.kernels.joins_adapters:
        return f"{given}: tp does not divide a rank of {{training.rank}}"
    why = {
        "lora": "adapters of split matrices are not modelled",
        "qlora": "bitsandbytes' 4-bit matrices cannot be split",
    }
    return f"{given}: {why.get(context.traits.training.mode, '')}"


def _split_ranks(context: Context) -> str:
    if context.traits.kernels.joins_adapters:
        return "tp that divides --lora-rank {training.rank}"
    return "tp 1 where weights are frozen"


@rule("tp", says=_split_adapters, allowed=_split_ranks)
def adapters_can_be_split(context: Context, columns: Columns) -> Mask:
    """The framework splits adapters, and tp divides their rank, where only adapters are trained."""
    training = context.traits.training
    divides = training.rank % np.maximum(columns["tp"], 1) == 0
    can = divides & context.traits.kernels.joins_adapters
    legal: Mask = (columns["tp"] == 1) | can
    return legal | (not training.is_frozen)


@rule("tp", says="tp {tp} does not divide {model.num_heads} heads", allowed=_HEADS)
def tp_divides_heads(context: Context, columns: Columns) -> Mask:
    """Attention heads are split whole over tensor-parallel ranks."""
    return np.asarray(context.model.num_heads % columns["tp"] == 0)


@rule(
    "tp",
    says="tp {tp} and {model.num_kv_heads} key/value heads: neither divides the other",
    allowed=_HEADS,
)
def tp_divides_kv_heads(context: Context, columns: Columns) -> Mask:
    """Key/value heads are split whole, or each is replicated the same number of times."""
    heads = context.model.num_kv_heads
    splits = heads % columns["tp"] == 0
    replicates = columns["tp"] % heads == 0
    legal: Mask = splits | replicates
    return legal


def _undivided_widths(context: Context, row: Row) -> str:
    moe = context.model.moe
    widths = {
        "an MLP": context.model.ffn_size,
        "the shared experts": moe.shared_ffn_size if moe else 0,
    }
    off = [f"the width {width} of {what}" for what, width in widths.items() if width % row["tp"]]
    return f"tp {{tp}} does not divide {' or '.join(off)}"


def _widths(context: Context) -> str:
    moe = context.model.moe
    experts = ", shared experts {moe.shared_ffn_size}" if moe and moe.shared_ffn_size else ""
    return f"the MLP is {{model.ffn_size}} wide{experts}"


@rule("tp", says=_undivided_widths, allowed=_widths)
def tp_divides_ffn(context: Context, columns: Columns) -> Mask:
    """The MLP's width is split evenly."""
    legal = context.model.ffn_size % columns["tp"] == 0
    if context.model.moe:
        legal &= context.model.moe.shared_ffn_size % columns["tp"] == 0
    return np.asarray(legal)


def _is_family_known(context: Context) -> bool:
    family = context.model.family
    return not family or bool({ANY_FAMILY, family} & {*context.traits.support.tp_families})


def _unsplit(context: Context, _: Row) -> str:
    """A family that is not split, or heads that are not replicated."""
    if not _is_family_known(context):
        return "tp {tp} of {model.family}: {software} splits {support.tp_families}"
    heads = "{model.num_heads}" if context.model.mla else "{model.num_kv_heads}"
    given = f"tp {{tp}} does not divide {heads} key/value heads"
    return f"{given}, and {{software}} does not replicate them"


def _splits(context: Context) -> str:
    own = "{model.name} has {model.num_kv_heads} key and value heads"
    if ANY_FAMILY in context.traits.support.tp_families:
        return own
    return f"{{traits.name}} splits {{support.tp_families}}; {own}"


@rule("tp", says=_unsplit, allowed=_splits)
def tp_fits_model(context: Context, columns: Columns) -> Mask:
    """The framework can split the layers of the model's family; key/value heads, if it must."""
    support, model = context.traits.support, context.model
    kv_heads = model.num_heads if model.mla else model.num_kv_heads
    splits = (kv_heads % columns["tp"] == 0) | support.replicates_kv_heads
    can = _is_family_known(context) & splits
    return np.asarray((columns["tp"] == 1) | can)


@rule(
    "tp",
    says="tp {tp} leaves the scale-up domain of {node.scale_up.num_accelerators} GPUs",
    only_prunes=True,
)
def tp_within_scale_up_domain(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism stays inside the NVLink (xGMI, ICI) domain."""
    return columns["tp"] <= context.cluster.node.scale_up.num_accelerators


cp_supported = supported("cp", "context parallelism")


@rule(
    "tp",
    says="tp {tp} does not divide {mixer.num_key_heads} key heads or groups of the mixer",
    allowed="{model.name} has {mixer.num_heads} heads of values, {mixer.num_key_heads} of keys",
)
def tp_divides_mixer_heads(context: Context, columns: Columns) -> Mask:
    """Heads and groups of a linear mixer are split whole (Megatron-Core ssm/mamba_mixer.py)."""
    mixer = context.model.mixer
    groups = mixer.num_key_heads if mixer else 0
    return np.asarray(groups % columns["tp"] == 0)


@rule(
    "tp",
    "cp",
    says="cp {cp} with tp {tp}: the mixer's heads are split over both",
    allowed="{mixer.kind}: {mixer.num_heads} heads of values, {mixer.num_key_heads} of keys",
)
def cp_divides_mixer_heads(context: Context, columns: Columns) -> Mask:
    """Under context parallelism a mixer has some heads of the whole sequence.

    Mamba-2 repeats its groups; Kimi Delta and lightning attention have no context parallelism.
    Source: Megatron-Core ssm/mamba_context_parallel.py, transformer_config.py.
    """
    mixer = context.model.mixer
    if mixer is None:
        return np.ones_like(columns["cp"], dtype=bool)
    if mixer.kind in ("kimi_delta", "lightning"):
        return np.asarray(columns["cp"] == 1)
    heads = mixer.num_heads if mixer.kind == "mamba2" else mixer.num_key_heads
    splits = heads % (columns["tp"] * columns["cp"]) == 0
    legal: Mask = (columns["cp"] == 1) | splits
    return legal


_BIASED = ("alibi", "relative")


def _unusual_attention(context: Context, _: Row) -> str:
    """Return what is not plain about the model's attention."""
    model = context.model
    if model.position in _BIASED:
        runs = "cp {cp}: {software} runs no biased attention"
        return f"{runs}, and {{model.name}} has {{model.position}} positions"
    what = {
        "is an {model.architecture}": model.architecture != "decoder",
        "has a window of {model.sliding_window} tokens": model.sliding_window,
        "has attention sinks": has_sinks(model),
    }
    why = " and ".join(words for words, holds in what.items() if holds)
    return f"cp {{cp}}: {{software}} runs plain causal attention alone, and {{model.name}} {why}"


@rule(
    "cp",
    says=_unusual_attention,
    allowed="{traits.name} runs {support.cp_attention} attention so",
)
def cp_fits_attention(context: Context, columns: Columns) -> Mask:
    """Context parallelism runs attention without biases; some frameworks': plain causal alone."""
    model = context.model
    is_plain = model.architecture == "decoder" and not (model.sliding_window or has_sinks(model))
    runs = is_plain or context.traits.support.cp_attention == "any"
    runs = runs and model.position not in _BIASED
    return np.asarray((columns["cp"] == 1) | runs)


pp_supported = supported("pp", "pipeline parallelism")


@rule("pp", says="pp {pp} is more than the {model.num_blocks} layers", allowed=LAYERS)
def pp_at_most_layers(context: Context, columns: Columns) -> Mask:
    """Every stage holds at least one layer."""
    return columns["pp"] <= context.model.num_blocks


@rule(
    "pp",
    says="pp {pp}: the embedding of {model.name} is its head, which {software} does not tie over "
    "stages",
)
def pp_ties_embeddings(context: Context, columns: Columns) -> Mask:
    """A model whose embedding is its head is pipelined only where the framework ties stages."""
    ties = context.traits.support.pipelines_tied_embeddings or not context.model.tied_embeddings
    return np.asarray((columns["pp"] == 1) | ties)


@rule(
    "schedule",
    says="schedule {schedule}: {software} offers {support.schedules}",
    allowed="profile {traits.profile} of {traits.name} offers {support.schedules}",
    offered_by="framework",
)
def schedule_offered(context: Context, columns: Columns) -> Mask:
    """The framework offers the pipeline schedule."""
    return is_schedule(columns, *context.traits.support.schedules)


@rule("pp", "schedule", says="schedule {schedule} with pp {pp}: it needs several stages")
def schedule_needs_stages(_: Context, columns: Columns) -> Mask:
    """Schedules other than 1F1B need several stages."""
    return (columns["pp"] > 1) | is_schedule(columns, "1f1b")


@rule(
    "schedule",
    says="schedule {schedule} takes as long as 1f1b and holds more",
    only_prunes=True,
)
def schedule_pays(context: Context, columns: Columns) -> Mask:
    """GPipe takes as long as 1F1B and holds more: not where 1F1B can be chosen."""
    return ~is_schedule(columns, "gpipe") | ("1f1b" not in context.schedules)


vpp_supported = supported("vpp", "interleaved schedule", "an ")


def _chunks_it_takes(_: Context, row: Row) -> str:
    name = SCHEDULES[row["schedule"]]
    takes = "2" if name in V_SHAPED else "2 or more" if name == "zb-interleaved" else "1"
    return f"schedule {name} with vpp {{vpp}}: it takes {takes}"


@rule("schedule", "vpp", says=_chunks_it_takes)
def schedule_fits_chunks(_: Context, columns: Columns) -> Mask:
    """1F1B takes any chunks per stage; V-shaped schedules 2, zb-interleaved several, others one."""
    vpp = columns["vpp"]
    legal = is_schedule(columns, "1f1b")
    legal |= is_schedule(columns, *V_SHAPED) & (vpp == 2)
    legal |= is_schedule(columns, "zb-interleaved") & (vpp > 1)
    legal |= is_schedule(columns, "gpipe", "zb-h1", "zb-h2") & (vpp == 1)
    return legal


def _unfilled_chunks(context: Context, row: Row) -> str:
    pp = row["pp"]
    vpp = row["vpp"]
    uneven = context.traits.support.uneven_stages
    if pp == 1:
        return "vpp {vpp} with pp 1: interleaving needs several stages"
    chunks = f"pp {{pp}} x vpp {{vpp}} = {pp * vpp} chunks"
    unfilled = f"{{model.num_blocks}} layers do not fill {chunks}"
    if not uneven or SCHEDULES[row["schedule"]] != "1f1b":
        return f"{unfilled}, which must be equal" + ("" if uneven else " under {software}")
    size = -(-context.model.num_blocks // (pp * vpp))
    return f"{unfilled} of {size}, of which the end stages may lack one"


@rule("pp", "schedule", "vpp", says=_unfilled_chunks, allowed=LAYERS)
def layers_fill_chunks(context: Context, columns: Columns) -> Mask:
    """Interleaving needs several stages and a layer in every chunk, but one at either end.

    Zero-bubble schedules need equal chunks, frameworks without uneven stages equal stages too.
    """
    can = context.traits.support.uneven_stages
    uneven = is_schedule(columns, "1f1b") & can
    fit = chunks_fit(context.model.num_blocks, columns["pp"], columns["vpp"], uneven=uneven)
    whole = can | (context.model.num_blocks % columns["pp"] == 0)
    return np.where(columns["vpp"] == 1, whole, (columns["pp"] > 1) & fit)


@rule(
    *("pp", "vpp"),
    says="vpp {vpp} with pp {pp}: {software} waits for transfers between stages, so that it needs "
    "pp {support.fewest_waiting_chunked_stages}",
)
def chunks_hide_transfers(context: Context, columns: Columns) -> Mask:
    """Chunks need more stages where transfers are waited for, as far as the framework asks."""
    least = context.traits.support.fewest_waiting_chunked_stages
    waits = context.traits.overlap.pipeline_p2p_overlap == "none"
    legal: Mask = (columns["vpp"] == 1) | (columns["pp"] >= least)
    return legal | (not waits)
