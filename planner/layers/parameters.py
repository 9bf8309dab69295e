"""Parameter counts of a transformer, matrix by matrix.

Every function takes a :class:`ModelSpec` and, where a matrix is split, the tensor-parallel
degree ``tp`` (a number or a column). It returns what one tensor-parallel rank holds, so
``tp=1`` gives the whole matrix. Layouts follow Megatron-LM (arXiv 1909.08053, section 3):
projections into heads and into the MLP are split by column together with their bias,
projections back to the hidden size by row with a whole bias on every rank; norms, routers,
latent down-projections and learned positions are whole on every rank.

Shapes are written (out, in). Letters in docstrings: d hidden size, a heads, k key/value
heads, e head size, f MLP width, V vocabulary, E experts.

Layers of multi-token prediction (DeepSeek-V3, GLM-4.5) are counted apart from the model.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from planner.spec.model import MlaSpec, ModelSpec
from planner.units import Array, ceil_div, format_count

# A number or a column of numbers.
Count: TypeAlias = Array | int
LayerKind: TypeAlias = str
# By letter of ``layer_pattern``: kinds of a layer with attention or a mixer, and an MLP or experts.
PREFIXES = {"F": "", "S": "second_", "L": "mixer_", "P": "parallel_"}
PREFIXES |= {"W": "window_", "C": "chosen_", "H": "pooled_"}
TWO_PARTS = {letter: (f"{prefix}dense", f"{prefix}moe") for letter, prefix in PREFIXES.items()}
TWO_PARTS |= {"D": ("double", "double")}  # two attentions, two MLPs and a mixture
# By letter: kinds of a layer of one part.
ONE_PART = {"M": "mixer", "*": "attention", "E": "experts", "-": "mlp"}
LETTERS = {kind: letter for letter, kinds in TWO_PARTS.items() for kind in kinds}
WITH_MIXER = ("mixer", *TWO_PARTS["L"], *TWO_PARTS["P"])
# ``cross`` is a dense decoder layer that also attends to an encoder.
WITH_ATTENTION = ("attention", "cross", *(LETTERS.keys() - TWO_PARTS["L"]))
WITH_EXPERTS = ("experts", *(moe for _, moe in TWO_PARTS.values()))
WITH_MLP = ("mlp", "cross", *(dense for dense, _ in TWO_PARTS.values()))


class ParamCount(NamedTuple):
    """One named matrix (out, in) on one tensor-parallel rank; a group of vectors has one column."""

    rows: Array
    columns: Array
    biases: Array

    @property
    def weights(self) -> Array:
        """Elements of the matrix."""
        return self.rows * self.columns

    @property
    def total(self) -> Array:
        """Weights and biases together."""
        return self.weights + self.biases


Parts: TypeAlias = dict[str, ParamCount]


def _matrix(rows: Count, columns: Count, *, biased: bool = False) -> ParamCount:
    return ParamCount(np.asarray(rows), np.asarray(columns), np.asarray(biased * rows))


def _vector(size: Count, *, biased: bool = False) -> ParamCount:
    return _matrix(size, 1, biased=biased)


def attention_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """Self-attention projections of one layer.

    ``qkv``: ((a + k)·e + k·v, d) with values of v, usually e, a·e more rows with a gate
    (Qwen3-Next), k·v fewer where keys are the values (Gemma 4); its rows split over tp
    (grouped queries, arXiv 2305.13245); with k < tp a rank holds part of a key/value head and
    gathers the rest at run time (Megatron-LM, megatron/core/transformer/attention.py).
    ``attention_output``: (d, a·v). ``head_gates``: (a, d), one gate per head (transformers
    modeling_step3p7.py, modeling_bailing_hybrid.py). ``query_norm``, ``key_norm``: gains of e, or
    of a·e and k·e (``full``). With latent attention see :func:`latent_attention_params`.
    """
    heads = ceil_div(model.num_heads, tp)
    gates = {"head_gates": _matrix(heads, model.hidden_size)} if model.gated_heads else {}
    gates |= indexer_params(model)
    if model.mla is not None:
        return latent_attention_params(model, model.mla, tp) | gates
    rows = (
        model.query_size * (1 + model.gated_attention) + model.kv_size + model.projected_value_size
    )
    qkv_rows = ceil_div(rows, tp)
    query, key = {
        "none": (0, 0),
        "head": (model.head_dim, model.head_dim),
        "full": (model.query_size, model.kv_size),
    }[model.qk_norm]
    return {
        "qkv": _matrix(qkv_rows, model.hidden_size, biased=model.biases.qkv),
        "attention_output": _matrix(
            model.hidden_size, heads * model.value_dim, biased=model.biases.attention_output
        ),
        **gates,
        "query_norm": _vector(query),
        "key_norm": _vector(key),
    }


def latent_attention_params(model: ModelSpec, mla: MlaSpec, tp: Count = 1) -> Parts:
    """Multi-head latent attention of one layer (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    With query rank r, key/value rank c, head sizes n (no position), p (rotary), v (value):
    ``query_down`` (r, d) and ``query_up`` (a·(n+p), r), or ``query_up`` (a·(n+p), d) when
    r = 0; ``kv_down`` (c+p, d); ``kv_up`` (a·(n+v), c); ``attention_output`` (d, a·v).
    The down-projections and gains over their latent vectors are whole on every rank. No biases.
    With outputs in g groups of rank l (DeepSeek-V4) there is no ``kv_up``,
    ``output_groups`` is (g·l, a·v/g), ``attention_output`` (d, g·l), and where entries are pooled
    of m tokens ``compressor`` (2·w·c, d) with biases by position m·w·c and a gain of c; w = 2 where
    an indexer chooses among entries, which overlap.
    """
    heads = ceil_div(model.num_heads, tp)
    outputs = mla.output_groups * mla.output_rank
    rows = ceil_div(outputs, tp)
    pooled = mla.kv_lora_rank * (mla.ratio > 0)
    wide = 2 * pooled if mla.indexer else pooled
    return {
        "query_down": _matrix(mla.q_lora_rank, model.hidden_size),
        "query_down_norm": _vector(mla.q_lora_rank),
        "query_up": _matrix(
            heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim),
            mla.q_lora_rank or model.hidden_size,
        ),
        "kv_down": _matrix(mla.kv_lora_rank + mla.qk_rope_head_dim, model.hidden_size),
        "kv_down_norm": _vector(mla.kv_lora_rank),
        "kv_up": _matrix(
            heads * (mla.qk_nope_head_dim + mla.v_head_dim) * (not outputs),
            mla.kv_lora_rank,
        ),
        "compressor": _matrix(2 * wide, model.hidden_size),
        "compressor_vectors": _vector(mla.ratio * wide + pooled),
        "output_groups": _matrix(rows, model.value_size // (mla.output_groups or 1)),
        "attention_output": _matrix(model.hidden_size, rows if outputs else heads * mla.v_head_dim),
    }


def indexer_params(model: ModelSpec) -> Parts:
    """Return an indexer of i heads of j, whole on every rank.

    ``indexer_query`` (i·j, r) from latent queries or (i·j, d), ``indexer_key`` (j, d),
    ``indexer_weights`` (i, d), which one that chooses blocks (MiniMax-M3) does not have.
    ``indexer_vectors``: gain and shift of keys, or gains of queries and keys (MiniMax-M3). Keys of
    entries pooled of m tokens (DeepSeek-V4) are two of overlapping windows, with gates: (4·j, d),
    with biases by position 2·m·j and a gain of j.
    """
    indexer, mla = model.chooser, model.mla
    if indexer is None:
        return {}
    num_keys, num_vectors = (4, 2 * mla.ratio + 1) if mla and mla.ratio else (1, 2)
    return {
        "indexer_query": _matrix(
            indexer.num_heads * indexer.head_dim,
            mla.q_lora_rank if mla else model.hidden_size,
        ),
        "indexer_key": _matrix(num_keys * indexer.head_dim, model.hidden_size),
        "indexer_vectors": _vector(num_vectors * indexer.head_dim),
        "indexer_weights": _matrix(indexer.num_heads * (mla is not None), model.hidden_size),
    }


def mixer_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """One linear mixer, with H heads of P values, d = H·P, and G key heads of N, n = G·N.

    ``mixer_in``: rows of all that is projected from h. Mamba-2 z, x (d each), B, C (n each) and
    dt (H); Gated DeltaNet q, k (n), v, gate (d), beta and alpha (H); Kimi Delta q, k (n), v (d),
    beta (H) and two gates, of low rank (P each) or full (d each); lightning q, k, v and gate (d).
    ``mixer_gates``: (d, P) twice for gates of low rank. ``mixer_conv``: a kernel per channel of
    what is convolved (x, B, C or q, k, v), with a bias in Mamba-2. ``mixer_vectors``: dt bias, A
    and D (3H), dt bias and A (2H; Kimi Delta d + H), and the gain of the gated norm (d, or P shared
    by heads; Falcon-H1 has none). ``mixer_out``: (h, d). All is split by heads over tp.
    Mamba-1, with heads of one value and a time step of rank R: x and z; ``mixer_gates`` x_proj
    (R + 2N, d) and dt_proj (d, R), R + N columns of d twice; A is (d, N), norms of R + 2N. Source:
    transformers modeling_jamba.py, modeling_nemotron_h.py, modeling_falcon_h1.py,
    modeling_qwen3_next.py, modeling_kimi_linear.py, modeling_bailing_hybrid.py,
    modeling_minimax.py; Megatron-Core ssm/mamba_mixer.py.
    """
    mixer = model.mixer
    if mixer is None:
        return {}
    heads, width, values, keys = mixer.num_heads, mixer.head_dim, mixer.value_size, mixer.key_size
    kimi_rank = width if mixer.kind == "kimi_delta" and not mixer.full_rank_gates else 0
    low_rank = mixer.time_rank + mixer.key_dim if mixer.time_rank else kimi_rank
    full_gates = 2 * values if mixer.full_rank_gates else 0
    rows, vectors, norm = {
        "mamba1": (2 * values, (2 + mixer.key_dim) * values, mixer.time_rank + 2 * mixer.key_dim),
        "mamba2": (2 * values + 2 * keys + heads, 3 * heads, values * mixer.gated_norm),
        "gated_delta_net": (2 * values + 2 * keys + 2 * heads, 2 * heads, width),
        "kimi_delta": (values + 2 * keys + heads + full_gates, values + heads, width),
        "lightning": (4 * values, 0, values),
    }[mixer.kind]
    has_bias = mixer.kind in ("mamba1", "mamba2")
    conv = mixer.num_channels * (mixer.conv_kernel + has_bias) if mixer.conv_kernel else 0
    is_whole = norm == width or mixer.time_rank
    whole_norm = norm if is_whole else ceil_div(norm, tp)
    own_values = ceil_div(values, tp)
    return {
        "mixer_in": _matrix(ceil_div(rows, tp) + 2 * kimi_rank, model.hidden_size),
        "mixer_gates": _matrix(2 * own_values, low_rank),
        "mixer_conv": _vector(ceil_div(conv, tp)),
        "mixer_vectors": _vector(ceil_div(vectors, tp) + whole_norm),
        "mixer_out": _matrix(model.hidden_size, own_values),
    }


def _two_layer_params(
    name: str, sizes: tuple[int, int], tp: Count, *, gated: bool, biased: bool
) -> Parts:
    """``up`` (g·f, d) split by column and ``down`` (d, f) split by row; g = 2 when gated."""
    hidden, ffn_size = sizes
    width = ceil_div(ffn_size, tp)
    return {
        f"{name}_up": _matrix(width * (2 if gated else 1), hidden, biased=biased),
        f"{name}_down": _matrix(hidden, width, biased=biased),
    }


def mlp_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """Dense MLP of one layer: ``mlp_up`` (g·f, d) and ``mlp_down`` (d, f).

    g = 2 for gated activations, whose gate and up projections are one matrix here
    (arXiv 2002.05202), else 1.
    """
    return _two_layer_params(
        "mlp",
        (model.hidden_size, model.ffn_size),
        tp,
        gated=model.gated_mlp,
        biased=model.biases.mlp,
    )


def moe_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """Mixture of one layer: the router, ONE routed expert, and all shared experts together.

    ``router`` (E, d), with a bias (or balancing offset) of E, those that compute nothing included;
    ``routed_expert_up``, ``routed_expert_down`` as in :func:`mlp_params` at the expert width, to be
    multiplied by the experts held (or that a token meets); ``shared_expert_up``, ``_down``
    at the width of all shared experts (DeepSeekMoE, arXiv 2401.06066). Here ``tp`` is the
    degree inside one expert. ``latent``: (l, d) and (d, l) where routed experts work at a width of
    l, whole on every rank (Nemotron 3).
    """
    if model.moe is None:
        return {}
    moe, hidden = model.moe, model.hidden_size
    choices = moe.num_experts + moe.num_zero_experts
    parts = {"router": _matrix(choices, hidden, biased=moe.router_bias)}
    experts = {
        "routed_expert": (model.expert_hidden_size, moe.expert_ffn_size),
        "shared_expert": (hidden, moe.shared_ffn_size),
    }
    for name, sizes in experts.items():
        biased = moe.expert_bias and sizes[1] > 0
        parts |= _two_layer_params(name, sizes, tp, gated=model.gated_mlp, biased=biased)
    if moe.latent_size:
        parts["latent"] = _matrix(2 * moe.latent_size, hidden)
    return parts


def _norm(model: ModelSpec, size: int) -> ParamCount:
    return _vector(size, biased=model.norm == "layernorm" and model.biases.norm)


def norm_params(model: ModelSpec) -> ParamCount:
    """All norms of the hidden state in one layer, whole on every rank.

    norms_per_layer gains of d, and as many shifts for a layernorm with bias.
    """
    return _norm(model, model.norms_per_layer * model.hidden_size)


def hidden_norm(model: ModelSpec) -> ParamCount:
    """Gain (and shift) of one norm over the hidden state."""
    return _norm(model, model.hidden_size)


def layer_params(model: ModelSpec, kind: LayerKind = "dense", tp: Count = 1) -> Parts:
    """Every part of one layer of this kind, experts counted once (see :func:`moe_params`).

    ``extra`` holds the named extras of the model file (attention sinks, relative keys), whole
    on every rank.
    """
    own = model.with_attention(LETTERS.get(kind, "F"))
    gains = norm_params(own)
    halves = 2 if kind in ONE_PART.values() else 1
    parts = {"norms": gains._replace(rows=gains.rows // halves, biases=gains.biases // halves)}
    if kind in WITH_ATTENTION:
        parts |= attention_params(own, tp)
    if kind in WITH_MIXER:
        parts |= mixer_params(model, tp)
    if kind == "cross":
        # the shapes of self-attention once more (T5, arXiv 1910.10683, section 2.1)
        own_parts = attention_params(model, tp).items()
        parts |= {"cross_norm": hidden_norm(model)} | {f"cross_{name}": n for name, n in own_parts}
    if kind in WITH_MLP:
        parts |= mlp_params(model, tp)
    if kind == "double":
        parts |= {f"second_{name}": part for name, part in parts.items()}
    if kind in WITH_EXPERTS:
        parts |= moe_params(model, tp)
    return parts | {"extra": _vector(model.extra_params_per_layer), "streams": stream_params(model)}


def stream_params(model: ModelSpec) -> ParamCount:
    """Both hyper-connections of a layer with n streams: (n² + 2n, n·d), n² + 2n and 3 scales.

    Source: transformers modeling_deepseek_v4.py DeepseekV4HyperConnection; arXiv 2512.24880.
    """
    streams = model.num_streams
    rows = 2 * streams * (streams + 2) * (streams > 1)
    return ParamCount(
        np.asarray(rows), np.asarray(model.stream_size), np.asarray(rows + 6 * (rows > 0))
    )


def embedding_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """``token_embedding`` (V, d) split by vocabulary, ``position_embedding`` (P, d) whole.

    P counts the learned position rows, with the two spare ones of OPT. Padding the
    vocabulary to a multiple is left to the framework.
    """
    return {
        "token_embedding": _matrix(ceil_div(model.vocab_size, tp), model.hidden_size),
        "position_embedding": _matrix(model.num_learned_positions, model.hidden_size),
    }


def final_norm_params(model: ModelSpec) -> Parts:
    """Count the norm that ends a stack; an encoder-decoder has one per stack, both counted."""
    num_stacks = 2 if model.num_decoder_layers else 1
    return {"final_norm": _norm(model, model.final_norm * num_stacks * model.hidden_size)}


def head_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """``lm_head`` (V, d) split by vocabulary; tied embeddings leave only its bias."""
    rows = ceil_div(model.vocab_size, tp)
    head = _matrix(rows, model.hidden_size, biased=model.biases.lm_head)
    return {"lm_head": head._replace(rows=rows * (not model.tied_embeddings))}


def mtp_params(model: ModelSpec, tp: Count = 1) -> Parts:
    """Return the parameters of one multi-token prediction layer besides its block.

    ``mtp_norms``: gains of d over the token's embedding and over the hidden state;
    ``mtp_projection`` (d, 2d) of both joined, split by column; ``mtp_final_norm``. Embedding and
    head are the model's own (arXiv 2412.19437, section 2.2).
    """
    return {
        "mtp_norms": _norm(model, 2 * model.hidden_size),
        "mtp_projection": _matrix(
            ceil_div(model.hidden_size, tp),
            2 * model.hidden_size,
        ),
        "mtp_final_norm": _norm(model, model.hidden_size),
    }


def count_layer_tensors(model: ModelSpec) -> int:
    """Weights of a layer that are tensors of their own in transformers' model code.

    Norms, queries, keys, values, output, and those of the MLP. Excludes biases, and what latent
    attention and mixtures have besides.
    """
    return model.norms_per_layer + 4 + (3 if model.gated_mlp else 2)


def layer_kind(model: ModelSpec, position: int) -> LayerKind:
    """Kind of the layer at a position of the (first) stack, from 0."""
    letter = model.layer_pattern[position : position + 1]
    if letter in ONE_PART:
        return ONE_PART[letter]
    after = position + 1 - (model.moe.num_leading_dense_layers if model.moe else 0)
    is_moe = model.moe is not None and after > 0 and after % model.moe.moe_layer_step == 0
    return TWO_PARTS[letter or "F"][is_moe]


@cache
def layer_counts(model: ModelSpec) -> Mapping[LayerKind, int]:
    """Return the number of layers of each kind that the model has."""
    kinds = Counter(layer_kind(model, position) for position in range(model.num_layers))
    return {"dense": 0, "moe": 0, "cross": model.num_decoder_layers, **kinds}


def _sum(parts: Parts, num_routed_experts: int = 1) -> int:
    experts = sum(int(part.total) for name, part in parts.items() if name.startswith("routed"))
    return sum(int(part.total) for part in parts.values()) + (num_routed_experts - 1) * experts


def count_mtp_parameters(model: ModelSpec) -> int:
    """All parameters that one layer of multi-token prediction adds: its block is the last layer's.

    A checkpoint that holds embedding and head once more has V·d more of each.
    """
    block = layer_params(model, layer_kind(model, model.num_layers - 1))
    return _sum(block, model.moe.num_experts if model.moe else 0) + _sum(mtp_params(model))


@cache
def _count_with_experts(model: ModelSpec, num_routed_experts: int) -> int:
    layers = sum(
        number * _sum(layer_params(model, kind), num_routed_experts)
        for kind, number in layer_counts(model).items()
        if number
    )
    ends = embedding_params(model) | final_norm_params(model) | head_params(model)
    return layers + _sum(ends) + model.extra_params


def count_parameters(model: ModelSpec) -> int:
    """All parameters: layers, embeddings, final norm, head and named extras."""
    return _count_with_experts(model, model.moe.num_experts if model.moe else 0)


def count_active_parameters(model: ModelSpec) -> int:
    """Parameters one token meets: as :func:`count_parameters` with the experts it computes.

    The input embedding and the head are included; several publishers leave them out.
    """
    return _count_with_experts(model, int(model.moe.mean_experts) if model.moe else 0)


def describe_size(model: ModelSpec) -> str:
    """Return ``70.6B parameters``, with the active ones of a mixture."""
    total = f"{format_count(count_parameters(model))} parameters"
    if model.moe is None:
        return total
    return f"{total}, {format_count(count_active_parameters(model))} active"
