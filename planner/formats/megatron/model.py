"""The model that Megatron's words describe, as pretrain_gpt.py builds it.

Defaults: megatron/training/arguments.py (validate_args for widths), schema.json.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile

from planner.cost.context import Context
from planner.formats.decision import Line
from planner.formats.format import OwnModel, Value
from planner.formats.megatron.layout import pattern_text
from planner.formats.megatron.options import MTP, chosen, is_on, load_options, number
from planner.formats.settings import given, word
from planner.limits import MAX_LAYERS
from planner.spec.model import Biases, MlaSpec, ModelSpec, MoeSpec, has_sinks

Settings = Mapping[str, Value]
SIZES = ("--num-layers", "--hidden-size", "--num-attention-heads")
VOCABULARY = 32_000
"""Where neither the words nor a tokenizer of known size say it."""
TOKENIZERS = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
OTHERS = (
    "--hybrid-layer-pattern",
    "--hybrid-override-pattern",
    "--heterogeneous-layers-config-path",
)
_NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
_POSITIONS = {"learned_absolute": "learned", "none": "none"}
_GATES = {"--swiglu": "silu", "--quick-geglu": "quick-gelu-clamped"}
"""Options that gate the MLP, and the activation of each."""
_PLACES: Mapping[str, str] = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_heads": "--num-attention-heads",
    "ffn_size": "--ffn-hidden-size",
    "head_dim": "--kv-channels",
    "vocab_size": "--vocab-size",
    "moe.num_experts": "--num-experts",
    "moe.top_k": "--moe-router-topk",
    "moe.expert_ffn_size": "--moe-ffn-hidden-size",
    "moe.shared_ffn_size": "--moe-shared-expert-intermediate-size",
}
"""Fields that are compared where the words say them."""
_ALWAYS: Mapping[str, str] = {
    "num_kv_heads": "--group-query-attention",
    "norm": "--normalization",
    "position": "--position-embedding-type",
    "tied_embeddings": "--untie-embeddings-and-output-weights",
    "qk_norm": "--qk-layernorm",
    "biases.qkv": "--add-qkv-bias",
    "biases.mlp": "--disable-bias-linear",
}
"""Fields that leaving a word out decides as well."""


def described(settings: Settings) -> OwnModel | None:
    """The model, or None where the words do not describe one that pretrain_gpt.py builds."""
    sizes = [number(settings, option) for option in SIZES]
    if not all(sizes) or any(option in settings for option in OTHERS):
        return None
    num_layers, hidden_size, num_heads = (size or 0 for size in sizes)
    if min(num_layers, hidden_size, num_heads) < 1 or num_layers > MAX_LAYERS:
        return None
    if hidden_size % num_heads and number(settings, "--kv-channels") is None:
        return None
    vocab_size = number(settings, "--vocab-size") or number(settings, "--padded-vocab-size")
    vocab_size = vocab_size or TOKENIZERS.get(word(settings, "--tokenizer-type"))
    positions = _number(settings, "--max-position-embeddings", 0)
    position = _position(settings)
    spec = ModelSpec(
        name=f"the script's model ({num_layers} layers of {hidden_size})",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_kv_heads(settings, num_heads),
        head_dim=_number(settings, "--kv-channels", hidden_size // num_heads),
        ffn_size=_ffn_size(settings, hidden_size),
        gated_mlp=any(is_on(settings, option) for option in _GATES),
        activation=_activation(settings),
        vocab_size=vocab_size or VOCABULARY,
        max_seq_len=max(positions, _number(settings, "--seq-length", 1)),
        tied_embeddings=not is_on(settings, "--untie-embeddings-and-output-weights"),
        biases=_biases(settings),
        norm=_NORMS[word(settings, "--normalization", "LayerNorm")],  # type: ignore[arg-type]
        qk_norm="head" if is_on(settings, "--qk-layernorm") else "none",
        position=position,  # type: ignore[arg-type]
        num_learned_positions=positions if position == "learned" else 0,
        moe=_mixture(settings, num_layers, hidden_size),
        mla=_latent(settings),
        num_mtp_layers=_number(settings, MTP, 0),
    )
    assumed = () if vocab_size else (f"a vocabulary of {VOCABULARY:,}",)
    return OwnModel(spec=spec, places=dict(_places(settings, spec)), assumed=assumed)


def _places(settings: Settings, spec: ModelSpec) -> Iterator[tuple[str, Value]]:
    for field, option in _PLACES.items():
        if given(settings, option) is not None and (spec.moe or "." not in field):
            yield field, settings[option]
    gate = next((option for option in _GATES if is_on(settings, option)), "--swiglu")
    for field, option in {"gated_mlp": gate, **_ALWAYS}.items():
        yield field, settings.get(option, Value(value=None, key=option))


def _default(option: str) -> int:
    return int(load_options()[option].default)


def _number(settings: Settings, option: str, default: int) -> int:
    return number(settings, option) or default


def _kv_heads(settings: Settings, num_heads: int) -> int:
    if not is_on(settings, "--group-query-attention"):
        return num_heads
    return _number(settings, "--num-query-groups", 1)


def _ffn_size(settings: Settings, hidden_size: int) -> int:
    usual = hidden_size * 4
    if is_on(settings, "--swiglu"):
        usual = int((4 * hidden_size * 2 / 3) / 64) * 64
    return _number(settings, "--ffn-hidden-size", usual)


def _activation(settings: Settings) -> str:
    for option, activation in _GATES.items():
        if is_on(settings, option):
            return activation
    return "squared-relu" if is_on(settings, "--squared-relu") else "gelu"


def _position(settings: Settings) -> str:
    kind = word(settings, "--position-embedding-type", "learned_absolute")
    if is_on(settings, "--use-rotary-position-embeddings"):
        kind = "rope"
    return _POSITIONS.get(kind, "rope")


def _biases(settings: Settings) -> Biases:
    has = not is_on(settings, "--disable-bias-linear")
    is_shifted = word(settings, "--normalization", "LayerNorm") == "LayerNorm"
    qkv = has or is_on(settings, "--add-qkv-bias")
    return Biases(qkv=qkv, attention_output=has, mlp=has, norm=is_shifted)


def _mixture(settings: Settings, num_layers: int, hidden_size: int) -> MoeSpec | None:
    num_experts = number(settings, "--num-experts")
    if not num_experts or num_experts < 2:
        return None
    ffn_size = _ffn_size(settings, hidden_size)
    leading, step = _frequency(settings, num_layers)
    return MoeSpec(
        num_experts=num_experts,
        top_k=_number(settings, "--moe-router-topk", _default("--moe-router-topk")),
        expert_ffn_size=_number(settings, "--moe-ffn-hidden-size", ffn_size),
        shared_ffn_size=_number(settings, "--moe-shared-expert-intermediate-size", 0),
        num_leading_dense_layers=leading,
        moe_layer_step=step,
        router_bias=is_on(settings, "--moe-router-enable-expert-bias"),
        expert_bias=not is_on(settings, "--disable-bias-linear"),
    )


def _frequency(settings: Settings, num_layers: int) -> tuple[int, int]:
    """Leading dense layers and the step of mixtures: of ``2``, or of ``([0]*3+[1]*58)``."""
    pattern = word(settings, "--moe-layer-freq", "1")
    if pattern.isdigit():
        return 0, max(1, int(pattern[:4]))
    runs = re.findall(r"\[([01])\](?:\*(\d{1,4}))?", pattern.replace(" ", ""))
    layers = [int(kind) for kind, count in runs for _ in range(int(count or 1))]
    leading = len(list(takewhile(lambda kind: not kind, layers)))
    return (leading, 1) if leading < num_layers else (0, 1)


def _latent(settings: Settings) -> MlaSpec | None:
    if not is_on(settings, "--multi-latent-attention"):
        return None
    sizes = {
        "kv_lora_rank": "--kv-lora-rank",
        "qk_nope_head_dim": "--qk-head-dim",
        "qk_rope_head_dim": "--qk-pos-emb-head-dim",
        "v_head_dim": "--v-head-dim",
    }
    found = {name: _number(settings, option, _default(option)) for name, option in sizes.items()}
    return MlaSpec(q_lora_rank=_number(settings, "--q-lora-rank", 0), **found)


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
_NORM_NAMES = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITION_NAMES = {"learned": "learned_absolute", "rope": "rope", "none": "none"}


def _has_biases(model: ModelSpec) -> tuple[bool, bool, bool]:
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
        f"position {model.position}": model.position not in _POSITION_NAMES,
        f"{'gated ' if model.gated_mlp else ''}activation {model.activation}": (
            (model.gated_mlp, model.activation) not in _ACTIVATIONS
        ),
        "biases on some linear layers only": _has_biases(model) not in _BIASES,
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
    yield chosen("--normalization", _NORM_NAMES[model.norm])
    for words in _ACTIVATIONS[model.gated_mlp, model.activation]:
        yield chosen(*words)
    yield from map(chosen, _BIASES[_has_biases(model)])
    if model.moe:
        yield from _mixture_options(model, model.moe)
    yield chosen("--position-embedding-type", _POSITION_NAMES[model.position])
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


def _mixture_options(model: ModelSpec, moe: MoeSpec) -> Iterator[Line]:
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
