"""The model's shape as options of Megatron's GPT model, and what it has no option for."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.decision import Line
from planner.formats.megatron.layout import pattern_text
from planner.formats.megatron.rows import chosen
from planner.spec.model import ModelSpec, MoeSpec, has_sinks

_ACTIVATIONS: dict[tuple[bool, str], tuple[tuple[str, ...], ...]] = {
    (True, "silu"): (("--swiglu",),),
    (True, "quick-gelu-clamped"): (
        ("--quick-geglu",),
        ("--glu-linear-offset", "1.0"),
        ("--activation-func-clamp-value", "7.0"),
    ),
    (False, "gelu"): (),
    (False, "gelu-tanh"): (),
    (False, "squared-relu"): (("--squared-relu",), ("--no-bias-gelu-fusion",)),
}
"""gpt-oss clamps its gate: gpt_oss/torch/model.py of openai/gpt-oss."""
_BIASES: dict[tuple[bool, bool, bool], tuple[str, ...]] = {
    (True, True, True): (),
    (True, False, False): ("--disable-bias-linear", "--add-qkv-bias"),
    (False, False, False): ("--disable-bias-linear",),
}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def _biases(model: ModelSpec) -> tuple[bool, bool, bool]:
    mlp = model.moe.expert_bias if model.moe else model.biases.mlp
    return model.biases.qkv, model.biases.attention_output, mlp


def _sums_sigmoids(model: ModelSpec) -> bool:
    """Megatron lets sigmoid scores of several experts add up to 1 (moe_utils.py)."""
    moe = model.moe
    return (
        moe is not None
        and moe.top_k > 1
        and moe.router.score == "sigmoid"
        and not moe.router.normalises
    )


def shape_reasons(context: Context) -> Iterator[str]:
    """Every property of the model that no option of Megatron's GPT model expresses."""
    model, seq_len = context.model, context.job.seq_len
    refused = {
        f"architecture {model.architecture}: only decoders": model.architecture != "decoder",
        f"position {model.position}": model.position not in _POSITIONS,
        f"{'gated ' if model.gated_mlp else ''}activation {model.activation}": (
            (model.gated_mlp, model.activation) not in _ACTIVATIONS
        ),
        "biases on some linear layers only": _biases(model) not in _BIASES,
        "a bias on the head": model.biases.lm_head,
        "layernorms without shift": model.norm == "layernorm" and not model.biases.norm,
        f"{model.norms_per_layer} norms per layer": model.norms_per_layer != 2,
        "no final norm": not model.final_norm,
        "attention and MLP side by side": model.parallel_block,
        "a norm over all query heads": model.qk_norm == "full",
        "a norm of latent keys and values, none of queries": (
            model.mla is not None and not model.mla.q_lora_rank
        ),
        "a norm after the embedding": model.embedding_norm,
        "further parameters outside the layers": model.extra_params > 0
        and not model.embedding_norm,
        "further parameters in every layer": model.extra_params_per_layer > 0
        and not has_sinks(model),
        "scores of several experts that are sigmoids and do not add up to 1": (
            _sums_sigmoids(model)
        ),
        model.special_blocks: bool(model.special_blocks),
        f"learned positions for {model.num_learned_positions} tokens, sequences of {seq_len}": (
            0 < model.num_learned_positions < seq_len
        ),
    }
    yield from (f"model {model.name}: {what}" for what, is_so in refused.items() if is_so)


def shape_choices(context: Context) -> Iterator[Line]:
    """The options that build the model."""
    model = context.model
    yield chosen("--num-layers", model.num_layers)
    yield chosen("--hidden-size", model.hidden_size)
    yield chosen("--ffn-hidden-size", model.ffn_size)
    yield chosen("--num-attention-heads", model.num_heads)
    yield from _attention(model)
    yield chosen("--normalization", _NORMS[model.norm])
    for words in _ACTIVATIONS[model.gated_mlp, model.activation]:
        yield chosen(*words)
    yield from map(chosen, _BIASES[_biases(model)])
    if model.moe:
        yield from _mixture(model, model.moe)
    yield chosen("--position-embedding-type", _POSITIONS[model.position])
    positions = model.num_learned_positions or max(model.max_seq_len, context.job.seq_len)
    yield chosen("--max-position-embeddings", positions)
    if not model.tied_embeddings:
        yield chosen("--untie-embeddings-and-output-weights")
    yield chosen("--vocab-size", model.vocab_size)
    yield chosen("--make-vocab-size-divisible-by", context.traits.support.vocab_padding)


def _attention(model: ModelSpec) -> Iterator[Line]:
    if model.mla:
        yield chosen("--multi-latent-attention")
        if model.mla.q_lora_rank:
            yield chosen("--q-lora-rank", model.mla.q_lora_rank)
            yield chosen("--qk-layernorm")
        yield chosen("--kv-lora-rank", model.mla.kv_lora_rank)
        yield chosen("--qk-head-dim", model.mla.qk_nope_head_dim)
        yield chosen("--qk-pos-emb-head-dim", model.mla.qk_rope_head_dim)
        yield chosen("--v-head-dim", model.mla.v_head_dim)
        return
    yield chosen("--kv-channels", model.head_dim)
    if model.num_kv_heads != model.num_heads:
        yield chosen("--group-query-attention")
        yield chosen("--num-query-groups", model.num_kv_heads)
    if model.qk_norm == "head":
        yield chosen("--qk-layernorm")
    if has_sinks(model):
        yield chosen("--softmax-type", "learnable")
    if model.sliding_window:
        yield chosen("--window-size", f"{model.sliding_window - 1},0")
        if model.full_attention_step:
            yield chosen("--window-attn-skip-freq", model.full_attention_step)


def _mixture(model: ModelSpec, moe: MoeSpec) -> Iterator[Line]:
    yield chosen("--num-experts", moe.num_experts)
    yield chosen("--moe-router-topk", moe.top_k)
    yield chosen("--moe-ffn-hidden-size", moe.expert_ffn_size)
    if moe.shared_ffn_size:
        yield chosen("--moe-shared-expert-intermediate-size", moe.shared_ffn_size)
    if moe.num_leading_dense_layers or moe.moe_layer_step > 1:
        after = range(1, model.num_layers - moe.num_leading_dense_layers + 1)
        layers = [0] * moe.num_leading_dense_layers
        layers += [int(n % moe.moe_layer_step == 0) for n in after]
        yield chosen("--moe-layer-freq", pattern_text(layers))
    yield from _router(moe)
    yield chosen("--moe-grouped-gemm")


def _router(moe: MoeSpec) -> Iterator[Line]:
    """How experts are scored and chosen: megatron/core/transformer/moe/moe_utils.py."""
    router = moe.router
    if router.score == "sigmoid":
        yield chosen("--moe-router-score-function", "sigmoid")
    elif not router.normalises or moe.top_k == 1:
        yield chosen("--moe-router-pre-softmax")
    if moe.router_bias and not moe.expert_bias:
        yield chosen("--moe-router-enable-expert-bias")
    if router.num_groups > 1:
        yield chosen("--moe-router-num-groups", router.num_groups)
        yield chosen("--moe-router-group-topk", router.top_groups)
    if router.scaling != 1.0:
        yield chosen("--moe-router-topk-scaling-factor", router.scaling)
