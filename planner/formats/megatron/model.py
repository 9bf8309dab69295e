"""The model that Megatron's words describe, as pretrain_gpt.py builds it.

Defaults: megatron/training/arguments.py (validate_args for widths), schema.json.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.cost.context import Context
from planner.formats.decision import KeyValue, which
from planner.formats.format import DECISIONS, Located, ModelInFile
from planner.formats.megatron.options import MTP, alike, load_options, number, pattern_text, word
from planner.formats.settings import Settings, flag, given
from planner.limits import MAX_LAYERS
from planner.spec.model import (
    Activation,
    Biases,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    Norm,
    Position,
    has_sinks,
)

# Where neither the words nor a tokenizer of known size say it.
VOCABULARY = 32_000
_NORMS: Mapping[Norm, str] = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_POSITIONS: Mapping[Position, str] = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
# Options that gate the MLP, and the activation of each.
_GATES: Mapping[str, Activation] = {"--swiglu": "silu", "--quick-geglu": "quick-gelu-clamped"}
_ACTIVATIONS: Mapping[tuple[bool, str], Mapping[str, object]] = {
    (True, "silu"): {"--swiglu": True},
    # gpt-oss clamps its gate: gpt_oss/torch/model.py of openai/gpt-oss.
    (True, "quick-gelu-clamped"): {
        "--quick-geglu": True,
        "--glu-linear-offset": "1.0",
        "--activation-func-clamp-value": "7.0",
    },
    (False, "gelu"): {},
    (False, "gelu-tanh"): {},
    (False, "squared-relu"): {"--squared-relu": True, "--no-bias-gelu-fusion": True},
}
# By biases of queries to values, of attention's projection, and of the MLP.
_BIASES: Mapping[tuple[bool, bool, bool], Mapping[str, object]] = {
    (True, True, True): {},
    (True, False, False): {"--disable-bias-linear": True, "--add-qkv-bias": True},
    (False, False, False): {"--disable-bias-linear": True},
}
_LATENT = {
    "kv_lora_rank": "--kv-lora-rank",
    "qk_nope_head_dim": "--qk-head-dim",
    "qk_rope_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
}
# Options of models that pretrain_gpt.py does not build.
_OTHER = {
    *("--hybrid-layer-pattern", "--hybrid-override-pattern", "--heterogeneous-layers-config-path"),
    *("--experimental-attention-variant", "--attention-output-gate", "--moe-latent-size"),
}
# Fields that are compared where the words say them.
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
# Decisions on the model by what states them.
SIZES: Mapping[str, str] = {
    name: option
    for field, option in _PLACES.items()
    if (name := f"model.{field.removeprefix('moe.')}") in DECISIONS
}


def described(settings: Settings) -> ModelInFile | None:
    """The model, or None where the words do not describe one that pretrain_gpt.py builds."""
    num_layers, hidden_size, num_heads, *_ = (number(settings, n) or 0 for n in SIZES.values())
    if min(num_layers, hidden_size, num_heads) < 1 or num_layers > MAX_LAYERS:
        return None
    is_uneven = hidden_size % num_heads and number(settings, "--kv-channels") is None
    if is_uneven or settings.keys() & _OTHER:
        return None
    tokenizers = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
    vocab_size = (
        number(settings, "--vocab-size")
        or number(settings, "--padded-vocab-size")
        or tokenizers.get(word(settings, "--tokenizer-type"))
    )
    gate = next((option for option in _GATES if flag(settings, option)), "")
    usual = 4 * hidden_size
    if gate == "--swiglu":
        usual = int((usual * 2 / 3) / 64) * 64
    ffn_size = number(settings, "--ffn-hidden-size") or usual
    positions = number(settings, "--max-position-embeddings") or 0
    kind = word(settings, "--position-embedding-type")
    spelled = {theirs: ours for ours, theirs in _POSITIONS.items()}
    is_rotary = flag(settings, "--use-rotary-position-embeddings")
    position: Position = "rope" if is_rotary else spelled.get(kind, "rope")
    is_grouped = flag(settings, "--group-query-attention")
    norm = word(settings, "--normalization")
    has_biases, latent = not flag(settings, "--disable-bias-linear"), None
    if flag(settings, "--multi-latent-attention"):
        sizes: dict[str, Any] = {
            name: number(settings, key) or _default(key) for name, key in _LATENT.items()
        }
        latent = MlaSpec(q_lora_rank=number(settings, "--q-lora-rank") or 0, **sizes)
    spec = ModelSpec(
        name=f"the script's model ({num_layers} layers of {hidden_size})",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=number(settings, "--num-query-groups") or 1 if is_grouped else num_heads,
        head_dim=number(settings, "--kv-channels") or hidden_size // num_heads,
        ffn_size=ffn_size,
        gated_mlp=bool(gate),
        activation=_GATES.get(gate, "squared-relu" if flag(settings, "--squared-relu") else "gelu"),
        vocab_size=vocab_size or VOCABULARY,
        max_seq_len=max(positions, number(settings, "--seq-length") or 1),
        tied_embeddings=not flag(settings, "--untie-embeddings-and-output-weights"),
        biases=Biases(
            qkv=has_biases or flag(settings, "--add-qkv-bias"),
            attention_output=has_biases,
            mlp=has_biases,
            norm=norm == "LayerNorm",
        ),
        norm=next(name for name, spelled in _NORMS.items() if spelled == norm),
        qk_norm="head" if flag(settings, "--qk-layernorm") else "none",
        position=position,
        num_learned_positions=positions if position == "learned" else 0,
        moe=_mixture(settings, num_layers, ffn_size),
        mla=latent,
        num_mtp_layers=number(settings, MTP) or 0,
    )
    assumed = () if vocab_size else (f"a vocabulary of {VOCABULARY:,}",)
    places = {
        field: settings[option]
        for field, option in _PLACES.items()
        if given(settings, option) is not None and (spec.moe or "." not in field)
    }
    # Fields that leaving a word out decides as well.
    always = {
        "gated_mlp": gate or "--swiglu",
        "num_kv_heads": "--group-query-attention",
        "norm": "--normalization",
        "position": "--position-embedding-type",
        "tied_embeddings": "--untie-embeddings-and-output-weights",
        "qk_norm": "--qk-layernorm",
        "biases.qkv": "--add-qkv-bias",
        "biases.mlp": "--disable-bias-linear",
    }
    for field, option in always.items():
        places[field] = settings.get(option, Located(key=option))
    return ModelInFile(spec=spec, places=places, assumed=assumed)


def _default(option: str) -> int:
    return int(load_options()[option].default)


def _mixture(settings: Settings, num_layers: int, ffn_size: int) -> MoeSpec | None:
    num_experts = number(settings, "--num-experts")
    if not num_experts or num_experts < 2:
        return None
    leading, step = _frequency(settings, num_layers)
    return MoeSpec(
        num_experts=num_experts,
        top_k=number(settings, "--moe-router-topk") or _default("--moe-router-topk"),
        expert_ffn_size=number(settings, "--moe-ffn-hidden-size") or ffn_size,
        shared_ffn_size=number(settings, "--moe-shared-expert-intermediate-size") or 0,
        num_leading_dense_layers=leading,
        moe_layer_step=step,
        router_bias=flag(settings, "--moe-router-enable-expert-bias"),
        expert_bias=not flag(settings, "--disable-bias-linear"),
    )


def _frequency(settings: Settings, num_layers: int) -> tuple[int, int]:
    """Leading dense layers and the step of mixtures: of ``2``, or of ``([0]*3+[1]*58)``."""
    pattern = word(settings, "--moe-layer-freq")
    if pattern.isdigit():
        return 0, max(1, int(pattern[:4]))
    runs = re.findall(r"\[([01])\](?:\*(\d{1,4}))?", pattern.replace(" ", ""))
    leading = 0
    for kind, count in runs:
        repeats = int(count or 1)
        if kind == "1" and repeats:
            break
        leading += repeats
    return (leading, 1) if leading < num_layers else (0, 1)


def _has_biases(model: ModelSpec) -> tuple[bool, bool, bool]:
    mlp = model.moe.expert_bias if model.moe else model.biases.mlp
    return model.biases.qkv, model.biases.attention_output, mlp


def shape_reasons(context: Context) -> Iterator[str]:
    """Every property of the model that no option of Megatron's GPT model expresses."""
    model, moe = context.model, context.model.moe
    seq_len = context.job.seq_len
    score = moe.router.score if moe else ""
    is_summed = moe is None or moe.top_k == 1 or moe.router.normalises
    given = f"{'gated ' if model.gated_mlp else ''}activation {model.activation}"
    is_latent = model.mla is not None and not model.mla.q_lora_rank
    has_others = model.extra_params > 0 and not model.embedding_norm
    has_more = model.extra_params_per_layer > 0 and not has_sinks(model)
    refused = {
        f"architecture {model.architecture}: only decoders": model.architecture != "decoder",
        f"position {model.position}": model.position not in _POSITIONS,
        given: (model.gated_mlp, model.activation) not in _ACTIVATIONS,
        "biases on some linear layers only": _has_biases(model) not in _BIASES,
        "a bias on the head": model.biases.lm_head,
        "layernorms without shift": model.norm == "layernorm" and not model.biases.norm,
        f"{model.norms_per_layer} norms per layer": model.norms_per_layer != 2,
        "no final norm": not model.final_norm,
        "attention and MLP side by side": model.parallel_block,
        "a norm over all query heads": model.qk_norm == "full",
        "a norm of latent keys and values, none of queries": is_latent,
        "a norm after the embedding": model.embedding_norm,
        "further parameters outside the layers": has_others,
        "further parameters in every layer": has_more,
        # Megatron lets sigmoid scores of several experts add up to 1 (moe_utils.py).
        "scores of several experts that are sigmoids and do not add up to 1": (
            score == "sigmoid" and not is_summed
        ),
        # Only sigmoid scores may have them (transformer_config.py).
        "balancing offsets of experts that are scored by a softmax": (
            score == "softmax" and moe and moe.router_bias and not moe.expert_bias
        ),
        model.special_blocks: model.special_blocks,
        "linear mixers, gates, several attentions or latent experts, which are not written yet": (
            model.has_special_layers or (moe and moe.latent_size)
        ),
        f"learned positions for {model.num_learned_positions} tokens, sequences of {seq_len}": (
            0 < model.num_learned_positions < seq_len
        ),
    }
    return (f"model {model.name}: {what}" for what in which(refused))


def shape_choices(context: Context) -> Iterator[KeyValue]:
    """The options that build the model."""
    model = context.model
    longest = max(model.max_seq_len, context.job.seq_len)
    if model.mla:
        indexer = model.mla.indexer
        attention = {
            # Unused by latent attention, but asked for where heads do not divide (arguments.py).
            "--kv-channels": model.head_dim if model.hidden_size % model.num_heads else None,
            "--multi-latent-attention": True,
            "--q-lora-rank": model.mla.q_lora_rank or None,
            "--qk-layernorm": model.mla.q_lora_rank > 0,
            **{option: getattr(model.mla, name) for name, option in _LATENT.items()},
            # Sparse attention: transformer_config.py refuses fused rotary embeddings and other ways
            # to exchange context beside it.
            "--experimental-attention-variant": "dsa" if indexer else None,
            "--dsa-indexer-n-heads": indexer and indexer.num_heads,
            "--dsa-indexer-head-dim": indexer and indexer.head_dim,
            "--dsa-indexer-topk": indexer and indexer.top_k,
            "--no-rope-fusion": indexer is not None,
            "--cp-comm-type": "allgather" if indexer else None,
        }
    else:
        window, is_grouped = model.sliding_window, model.num_kv_heads != model.num_heads
        attention = {
            "--kv-channels": model.head_dim,
            "--group-query-attention": is_grouped,
            "--num-query-groups": model.num_kv_heads if is_grouped else None,
            "--qk-layernorm": model.qk_norm == "head",
            "--softmax-type": "learnable" if has_sinks(model) else None,
            "--window-size": f"{window - 1},0" if window else None,
            "--window-attn-skip-freq": (window and model.full_attention_step) or None,
        }
    mixture: dict[str, object] = {}
    if model.moe:
        # How experts are scored and chosen: megatron/core/transformer/moe/moe_utils.py.
        moe, router = model.moe, model.moe.router
        layers = [0] * moe.num_leading_dense_layers
        for number_behind in range(1, model.num_layers - len(layers) + 1):
            layers.append(int(number_behind % moe.moe_layer_step == 0))
        is_sigmoid, has_groups = router.score == "sigmoid", router.num_groups > 1
        is_plain_softmax = not is_sigmoid and (not router.normalises or moe.top_k == 1)
        mixture = {
            "--num-experts": moe.num_experts,
            "--moe-router-topk": moe.top_k,
            "--moe-ffn-hidden-size": moe.expert_ffn_size,
            "--moe-shared-expert-intermediate-size": moe.shared_ffn_size or None,
            "--moe-layer-freq": None if all(layers) else pattern_text(layers),
            "--moe-router-score-function": "sigmoid" if is_sigmoid else None,
            "--moe-router-pre-softmax": is_plain_softmax,
            "--moe-router-enable-expert-bias": moe.router_bias and not moe.expert_bias,
            "--moe-router-num-groups": router.num_groups if has_groups else None,
            "--moe-router-group-topk": router.top_groups if has_groups else None,
            "--moe-router-topk-scaling-factor": None if router.scaling == 1.0 else router.scaling,
            "--moe-grouped-gemm": True,
        }
    options: dict[str, object] = {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.ffn_size,
        "--num-attention-heads": model.num_heads,
        **attention,
        "--normalization": _NORMS[model.norm],
        **_ACTIVATIONS[model.gated_mlp, model.activation],
        **_BIASES[_has_biases(model)],
        **mixture,
        "--position-embedding-type": _POSITIONS[model.position],
        "--max-position-embeddings": model.num_learned_positions or longest,
        "--rotary-base": int(model.rotary_base) or None,
        "--use-rope-scaling": model.rotary_factor > 1,
        "--rope-scaling-factor": model.rotary_factor if model.rotary_factor > 1 else None,
        "--norm-epsilon": model.norm_eps or None,
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--vocab-size": model.vocab_size,
        "--make-vocab-size-divisible-by": context.traits.support.vocab_padding,
    }
    return alike(options)
