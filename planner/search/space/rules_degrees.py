"""Rules of tensor, context and pipeline parallelism, each by itself."""

import numpy as np

from planner.cost.context import Context
from planner.search.space.rule import Columns, Row, lacks, layers, rule, software
from planner.spec.model import has_sinks
from planner.spec.traits import ANY_FAMILY
from planner.units import Mask


@rule("tp", says=lacks("tp", "tensor parallelism"), offered_by="framework")
def tp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers tensor parallelism."""
    return np.asarray((columns["tp"] == 1) | context.traits.support.tp)


def _split_adapters(context: Context, row: Row) -> str:
    training = context.traits.training
    given = f"tp {row['tp']} with --train {training.mode}"
    if context.traits.kernels.joins_adapters:
        return f"{given}: tp does not divide a rank of {training.rank}"
    why = {
        "lora": "adapters of split matrices are not modelled",
        "qlora": "bitsandbytes' 4-bit matrices cannot be split",
    }
    return f"{given}: {why.get(training.mode, '')}"


def _split_ranks(context: Context) -> str:
    if context.traits.kernels.joins_adapters:
        return f"tp that divides --lora-rank {context.traits.training.rank}"
    return "tp 1 where weights are frozen"


@rule("tp", says=_split_adapters, allowed=_split_ranks)
def adapters_can_be_split(context: Context, columns: Columns) -> Mask:
    """Where only adapters are trained, the framework splits them: tp divides their rank."""
    training = context.traits.training
    divides = training.rank % np.maximum(columns["tp"], 1) == 0
    can = divides & context.traits.kernels.joins_adapters
    return np.asarray((columns["tp"] == 1) | can | (not training.is_frozen))


def _heads(context: Context) -> str:
    model = context.model
    return f"{model.name} has {model.num_heads} heads, {model.num_kv_heads} of keys and values"


@rule(
    "tp",
    says=lambda context, row: f"tp {row['tp']} does not divide {context.model.num_heads} heads",
    allowed=_heads,
)
def tp_divides_heads(context: Context, columns: Columns) -> Mask:
    """Attention heads are split whole over tensor-parallel ranks."""
    return np.asarray(context.model.num_heads % columns["tp"] == 0)


def _against_kv_heads(context: Context, row: Row) -> str:
    heads = context.model.num_kv_heads
    return f"tp {row['tp']} and {heads} key/value heads: neither divides the other"


@rule("tp", says=_against_kv_heads, allowed=_heads)
def tp_divides_kv_heads(context: Context, columns: Columns) -> Mask:
    """Key/value heads are split whole, or each is replicated the same number of times."""
    heads = context.model.num_kv_heads
    return np.asarray((heads % columns["tp"] == 0) | (columns["tp"] % heads == 0))


def _undivided_widths(context: Context, row: Row) -> str:
    moe = context.model.moe
    widths = {"an MLP": context.model.ffn_size}
    if moe:
        widths |= {"the shared experts": moe.shared_ffn_size}
    off = [f"the width {width} of {what}" for what, width in widths.items() if width % row["tp"]]
    return f"tp {row['tp']} does not divide {' or '.join(off)}"


def _widths(context: Context) -> str:
    moe = context.model.moe
    experts = f", shared experts {moe.shared_ffn_size}" if moe and moe.shared_ffn_size else ""
    return f"the MLP is {context.model.ffn_size} wide{experts}"


@rule("tp", says=_undivided_widths, allowed=_widths)
def tp_divides_ffn(context: Context, columns: Columns) -> Mask:
    """The MLP's width is split evenly."""
    legal = context.model.ffn_size % columns["tp"] == 0
    if context.model.moe:
        legal &= context.model.moe.shared_ffn_size % columns["tp"] == 0
    return np.asarray(legal)


def _unsplit(context: Context, row: Row) -> str:
    """A family that is not split, or heads that are not replicated."""
    model, support = context.model, context.traits.support
    if model.family and not {ANY_FAMILY, model.family} & set(support.tp_families):
        known = ", ".join(support.tp_families)
        return f"tp {row['tp']} of {model.family}: {software(context)} splits {known}"
    heads = model.num_heads if model.mla else model.num_kv_heads
    given = f"tp {row['tp']} does not divide {heads} key/value heads"
    return f"{given}, and {software(context)} does not replicate them"


def _splits(context: Context) -> str:
    model, support = context.model, context.traits.support
    own = f"{model.name} has {model.num_kv_heads} key and value heads"
    if ANY_FAMILY in support.tp_families:
        return own
    return f"{context.traits.name} splits {', '.join(support.tp_families)}; {own}"


@rule("tp", says=_unsplit, allowed=_splits)
def tp_fits_model(context: Context, columns: Columns) -> Mask:
    """The framework can split the layers of the model's family; key/value heads, if it must."""
    support, model = context.traits.support, context.model
    knows = not model.family or bool({ANY_FAMILY, model.family} & set(support.tp_families))
    kv_heads = model.num_heads if model.mla else model.num_kv_heads
    splits = (kv_heads % columns["tp"] == 0) | support.replicates_kv_heads
    return np.asarray((columns["tp"] == 1) | (knows & splits))


def _outside_domain(context: Context, row: Row) -> str:
    domain = context.cluster.node.scale_up.num_accelerators
    return f"tp {row['tp']} leaves the scale-up domain of {domain} GPUs"


@rule("tp", says=_outside_domain, only_prunes=True)
def tp_within_scale_up_domain(context: Context, columns: Columns) -> Mask:
    """Tensor parallelism stays inside the NVLink (xGMI, ICI) domain."""
    return np.asarray(columns["tp"] <= context.cluster.node.scale_up.num_accelerators)


@rule("cp", says=lacks("cp", "context parallelism"), offered_by="framework")
def cp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers context parallelism."""
    return np.asarray((columns["cp"] == 1) | context.traits.support.cp)


def _unusual_attention(context: Context, row: Row) -> str:
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


def _attention(context: Context) -> str:
    return f"{context.traits.name} runs {context.traits.support.cp_attention} attention so"


@rule("cp", says=_unusual_attention, allowed=_attention)
def cp_fits_attention(context: Context, columns: Columns) -> Mask:
    """Context parallelism runs attention without biases; some frameworks': plain causal alone."""
    model = context.model
    is_biased = model.position in ("alibi", "relative")
    is_plain = model.architecture == "decoder" and not (model.sliding_window or has_sinks(model))
    runs = not is_biased and (is_plain or context.traits.support.cp_attention == "any")
    return np.asarray((columns["cp"] == 1) | runs)


@rule("pp", says=lacks("pp", "pipeline parallelism"), offered_by="framework")
def pp_supported(context: Context, columns: Columns) -> Mask:
    """The framework offers pipeline parallelism."""
    return np.asarray((columns["pp"] == 1) | context.traits.support.pp)


@rule(
    "pp",
    says=lambda context, row: f"pp {row['pp']} is more than the {context.model.num_blocks} layers",
    allowed=layers,
)
def pp_at_most_layers(context: Context, columns: Columns) -> Mask:
    """Every stage holds at least one layer."""
    return np.asarray(columns["pp"] <= context.model.num_blocks)


def _untied(context: Context, row: Row) -> str:
    tied = f"the embedding of {context.model.name} is its head"
    return f"pp {row['pp']}: {tied}, which {software(context)} does not tie over stages"


@rule("pp", says=_untied)
def pp_ties_embeddings(context: Context, columns: Columns) -> Mask:
    """A model whose embedding is its head is pipelined only where the framework ties stages."""
    ties = context.traits.support.pipelines_tied_embeddings or not context.model.tied_embeddings
    return np.asarray((columns["pp"] == 1) | ties)
