"""The model in Megatron's words, as pretrain_gpt.py and pretrain_hybrid.py build it.

What options say of it stands in ``model.yaml``, what they say of a run in ``runtime.yaml``.
Defaults: megatron/training/arguments.py (validate_args for widths), schema.json.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.expr import Names, parsed
from planner.formats.decision import KeyValue
from planner.formats.format import DECISIONS, Located, ModelInFile
from planner.formats.megatron.options import (
    MTP,
    PARTS,
    alike,
    choices,
    every_nth,
    hybrid_pattern,
    load_options,
    names,
    number,
    pattern_layers,
    pattern_text,
    whole,
    word,
)
from planner.formats.settings import FUNCTIONS, Settings, flag, given
from planner.limits import MAX_LAYERS
from planner.spec.model import (
    Activation,
    Biases,
    IndexerSpec,
    MixerSpec,
    MlaSpec,
    ModelSpec,
    MoeSpec,
    Norm,
    Position,
    has_shared_gate,
    has_sinks,
)
from planner.spec.strategy import Strategy

# Where neither the words nor a tokenizer of known size say it.
VOCABULARY = 32_000
_NORMS: Mapping[str, Norm] = {
    "LayerNorm": "layernorm",
    "RMSNorm": "rmsnorm",
}
# Options that gate the MLP, and the activation of each.
_GATES: Mapping[str, Activation] = {
    "--swiglu": "silu",
    "--quick-geglu": "quick-gelu-clamped",
}
# Of one part; with norms over all heads, of Megatron-Bridge, which has to be installed beside.
HYBRID_LAYERS = (
    "megatron.core.models.hybrid.hybrid_layer_specs",
    "hybrid_stack_spec",
)
FULL_NORMS = (
    "megatron.bridge.models.minimax_m2.minimax_m2_provider",
    "minimax_m2_layer_spec",
)
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
    "moe.latent_size": "--moe-latent-size",
}
_PARTS = {
    "mamba": "mixer",
    "delta": "mixer",
    "mla": "mla",
    "indexer": "mla.indexer",
}
# Decisions on the model by what states them.
SIZES: Mapping[str, str] = {
    name: option
    for field, option in _PLACES.items()
    if (name := f"model.{field.removeprefix('moe.')}") in DECISIONS
}


def described(settings: Settings) -> ModelInFile | None:
    """The model, or None where the words do not describe one that these scripts build."""
    num_layers, hidden_size, num_heads, *_ = (number(settings, n) or 0 for n in SIZES.values())
    if min(num_layers, hidden_size, num_heads) < 1 or num_layers > MAX_LAYERS:
        return None
    segments, further = hybrid_pattern(settings)
    pattern, mtp_pattern = "".join(segments), further[0] if further else ""
    stack, indexer = names(settings, "--spec"), _part(settings, "indexer")
    variant = word(settings, "--experimental-attention-variant")
    is_uneven = hidden_size % num_heads and number(settings, "--kv-channels") is None
    is_open = variant == "dsa" and not all(indexer.values())
    is_other = not PARTS.issuperset(pattern + mtp_pattern) or (
        "--heterogeneous-layers-config-path" in settings
        or (stack and stack not in (HYBRID_LAYERS, FULL_NORMS))
    )
    if is_uneven or is_open or is_other:
        return None
    mixer = None
    if "M" in pattern:
        sizes = _part(settings, "mamba")
        # The mixer is twice as wide as the layer where heads are not given (mamba_mixer.py).
        sizes["num_heads"] = sizes["num_heads"] or max(1, 2 * hidden_size // sizes["head_dim"])
        mixer = MixerSpec(kind="mamba2", chunk_size=128, **sizes)
    elif variant == "gated_delta_net":
        mixer = MixerSpec(kind="gated_delta_net", **_part(settings, "delta"))
        pattern = "".join("FL"[is_linear] for is_linear in _linear_layers(settings, num_layers))
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
    spelled: Mapping[str, Position] = {"learned_absolute": "learned", "none": "none"}
    position = spelled.get(word(settings, "--position-embedding-type"), "rope")
    if flag(settings, "--use-rotary-position-embeddings"):
        position = "rope"
    is_grouped = flag(settings, "--group-query-attention")
    norm = word(settings, "--normalization")
    has_qk_norm = flag(settings, "--qk-layernorm")
    has_biases, latent = not flag(settings, "--disable-bias-linear"), None
    if flag(settings, "--multi-latent-attention"):
        latent = MlaSpec(
            q_lora_rank=number(settings, "--q-lora-rank") or 0,
            indexer=IndexerSpec(**indexer) if variant == "dsa" else None,
            **_part(settings, "mla"),
        )
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
        norm=_NORMS[norm],
        qk_norm="full" if stack == FULL_NORMS else "head" if has_qk_norm else "none",
        position=position,
        num_learned_positions=positions if position == "learned" else 0,
        moe=_mixture(settings, num_layers, ffn_size),
        mla=latent,
        mixer=mixer,
        layer_pattern=pattern,
        gated_attention=flag(settings, "--attention-output-gate"),
        extra_params_per_layer=hidden_size * flag(settings, "--moe-shared-expert-gate"),
        num_mtp_layers=number(settings, MTP) or 0,
        mtp_pattern=mtp_pattern,
    )
    assumed = () if vocab_size else (f"a vocabulary of {VOCABULARY:,}",)
    of_parts = [
        (f"{own}.{name}", option)
        for part, own in _PARTS.items()
        for name, option in _fields(part).items()
    ]
    places = {
        field: settings[option]
        for field, option in (*_PLACES.items(), *of_parts)
        if given(settings, option) is not None and (spec.moe or not field.startswith("moe."))
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
        "gated_attention": "--attention-output-gate",
        "layer_pattern": "--linear-attention-freq" if variant else "--hybrid-layer-pattern",
    }
    for field, option in always.items():
        places[field] = settings.get(option, Located(key=option))
    return ModelInFile(spec=spec, places=places, assumed=assumed)


@cache
def _fields(part: str) -> Mapping[str, str]:
    """Options that say a field of a part of the model alone, by the field."""
    found = {}
    for option, text in load_own(__package__, "model.yaml")["options"].items():
        node = parsed(str(text))
        name = node.id if isinstance(node, ast.Name) else ""
        if name.startswith(f"{part}."):
            found[name.removeprefix(f"{part}.")] = option
    return found


def _part(settings: Settings, part: str) -> dict[str, Any]:
    """Sizes of a part of the model by its fields; 0 where neither words nor defaults say one."""
    options = load_options()
    return {
        name: whole(settings, option, int(options[option].default or 0))
        for name, option in _fields(part).items()
    }


def _linear_layers(settings: Settings, num_layers: int) -> list[int]:
    """1 for every layer with a linear mixer: of ``4`` all but every fourth, or of a list."""
    frequency = word(settings, "--linear-attention-freq")
    if frequency.isdigit():
        return every_nth(num_layers, max(1, int(frequency[:4])))
    listed = pattern_layers(frequency)
    return [*listed, *[1] * num_layers][:num_layers]


def _mixture(settings: Settings, num_layers: int, ffn_size: int) -> MoeSpec | None:
    num_experts = number(settings, "--num-experts")
    if not num_experts or num_experts < 2:
        return None
    # Leading dense layers and the step of mixtures: of ``2``, or of ``([0]*3+[1]*58)``.
    pattern = word(settings, "--moe-layer-freq")
    leading, step = 0, max(1, int(pattern[:4])) if pattern.isdigit() else 1
    layers = pattern_layers(pattern)
    if 1 in layers[:num_layers]:
        leading = layers.index(1)
    return MoeSpec(
        num_experts=num_experts,
        top_k=number(settings, "--moe-router-topk") or 2,
        expert_ffn_size=number(settings, "--moe-ffn-hidden-size") or ffn_size,
        shared_ffn_size=number(settings, "--moe-shared-expert-intermediate-size") or 0,
        num_leading_dense_layers=leading,
        moe_layer_step=step,
        router_bias=flag(settings, "--moe-router-enable-expert-bias"),
        latent_size=number(settings, "--moe-latent-size") or 0,
        expert_bias=not flag(settings, "--disable-bias-linear"),
    )


def _names(context: Context, strategy: Strategy | None = None) -> Names:
    """Names in the tables of options: of a model, its job and a plan; None where there is none."""
    model, moe, mla, mixer = (
        context.model,
        context.model.moe,
        context.model.mla,
        context.model.mixer,
    )
    kind = mixer and mixer.kind
    parts: Mapping[str, Any] = {
        "": model,
        "router": moe and moe.router,
        "indexer": mla and mla.indexer,
        "mamba": mixer if kind == "mamba2" else None,
        "delta": mixer if kind == "gated_delta_net" else None,
        "job": context.job,
        "kernels": context.traits.kernels,
        "overlap": context.traits.overlap,
        "states": context.traits.states,
    }

    def ask(name: str) -> Any:  # noqa: ANN401 - whatever a part has
        part, _, field = name.rpartition(".")
        owner = parts[part] if part in parts else getattr(model, part, None)
        return getattr(owner, field, getattr(strategy, name, None))

    has_single_parts = PARTS.intersection(model.layer_pattern)
    mixtures = [1]
    if moe:
        dense = moe.num_leading_dense_layers
        behind = range(1, model.num_layers - dense + 1)
        mixtures = [0] * dense
        mixtures += [int(at % moe.moe_layer_step == 0) for at in behind]
    linear = [int(letter == "L") for letter in model.layer_pattern]
    step = linear.index(0) + 1 if 0 in linear else 1
    is_regular = linear == every_nth(model.num_layers, step)
    frequency = step if is_regular else pattern_text(linear)
    is_full = model.qk_norm == "full"
    return Names(
        ask,
        FUNCTIONS,
        **parts,
        cuts_weights=context.traits.states.cuts_weights,
        has_shared_gate=has_shared_gate(model),
        has_single_parts=has_single_parts,
        has_sinks=has_sinks(model),
        is_grouped=not mla and model.num_kv_heads != model.num_heads,
        layer_spec=HYBRID_LAYERS if has_single_parts else FULL_NORMS if is_full else None,
        linear_layers=frequency if kind == "gated_delta_net" else None,
        other_layers="".join(sorted({*model.layer_pattern} - PARTS - {*"FLS"})),
        longest=max(model.max_seq_len, context.job.seq_len),
        mlp_bias=moe.expert_bias if moe else model.biases.mlp,
        moe_layers=None if all(mixtures) else pattern_text(mixtures),
        rotary_base=int(model.rotary_base),
        seq_len=context.job.seq_len,
        sorts_chunks=any(context.traits.kernels.chunk_sorting_bytes),
        vocab_padding=context.traits.support.vocab_padding,
        window=f"{model.sliding_window - 1},0" if model.sliding_window and not mla else None,
    )


def shape_reasons(context: Context) -> Iterator[str]:
    """Every property of the model that no option of Megatron's models expresses."""
    found = _names(context).texts_that_hold(load_own(__package__, "model.yaml")["refused"])
    return (f"model {context.model.name}: {text}" for text in found)


def shape_choices(context: Context) -> Iterator[KeyValue]:
    """The options that build the model."""
    names, own = _names(context), load_own(__package__, "model.yaml")["options"]
    return alike({option: names.value(text) for option, text in own.items()})


def runtime_choices(
    context: Context,
    strategy: Strategy,
    among: str = "",
) -> Iterator[KeyValue]:
    """Yield what the plan's time and memory depend on, besides its decisions; of some options."""
    names = _names(context, strategy)
    for option, values in load_own(__package__, "runtime.yaml").items():
        if option in (among.split() or [option]):
            for text, why in values.items():
                yield from choices({option: (names.value(text), why)})
