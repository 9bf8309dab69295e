"""Targets of adapters: the projections of a model that have one, and what is refused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.layers.parameters import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_MIXER,
    WITH_MLP,
    layer_counts,
)
from planner.spec.model import ModelSpec, has_shared_gate
from planner.spec.training import TARGET_GROUPS, WHOLE, Training, target_words
from planner.spec.traits import KernelTraits

# Products of routed experts, whose weights are one stack.
EXPERTS = ("expert_up", "expert_down")
PAIR = ("gate", "up")
# Mixtures of whose layers "all linear" is attention: experts and router are nn.Parameter, and the
# type has no mixture's entry in _MODEL_TO_CONVERSION_PATTERN of transformers/conversion_mapping.py,
# by which PEFT adapts others' (peft/utils/transformers_weight_conversion.py).
BARE_EXPERTS = ("gpt-oss", "gpt_oss", "qwen3.5", "qwen3_5_moe_text")
# Mixtures whose stacked experts have their modules' names: types under mixtral and qwen2_moe in
# that table of transformers 5.23, with attention that is modelled (PEFT 0.21).
CONVERTED_EXPERTS = (
    *("mixtral", "minimax-m2", "minimax_m2", "qwen3", "qwen3_moe", "qwen3-next", "qwen3_next"),
    *("glm-4.5", "glm4_moe", "ernie-4.5", "ernie4_5_moe", "olmoe", "dots1"),
)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter of a layer: A (width, r) and B (r, out)."""

    name: str
    beside: str  # the op whose output its own is added to
    width: int
    out: int
    num_sharing: int = 1  # Adapters with the same input, itself among them
    num_ranks: int = 1  # r over the rank that is asked for
    num_copies: int = 1  # one for each expert, where they have their own
    is_merged: bool = False  # its product is added to the weights, before theirs


def projections(model: ModelSpec) -> dict[str, dict[str, tuple[int, int]]]:
    """Input and output width of every projection that can have an adapter, by the op it is in.

    Empty for models whose adapters are not known here (:func:`unknown_layers`).
    """
    if unknown_layers(model):
        return {}
    hidden, moe, mixer = model.hidden_size, model.moe, model.mixer
    sizes: dict[str, dict[str, tuple[int, int]]] = {
        "qkv": {
            "q": (hidden, model.query_size * (1 + model.gated_attention)),
            "k": (hidden, model.kv_size),
            "v": (hidden, model.kv_size),
        },
        "attention_output": {"o": (model.value_size, hidden)},
    }
    if mixer:
        sizes["mixer_in"] = mixer_inputs(model)
        sizes["mixer_out"] = {"out_proj": (mixer.value_size, hidden)}
    widths = {"mlp": model.ffn_size * (layer_counts(model)["dense"] > 0)}
    if moe:
        widths |= {"expert": moe.expert_ffn_size, "shared_expert": moe.shared_ffn_size}
    for name, width in widths.items():
        if width:
            ups = PAIR if model.gated_mlp else PAIR[1:]
            sizes[f"{name}_up"] = dict.fromkeys(ups, (hidden, width))
            sizes[f"{name}_down"] = {"down": (width, hidden)}
    return sizes


def mixer_inputs(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """Sides of the linear layers that take a mixer's input; none where they are not known.

    Each has the name of what it makes: queries, keys, values, z, beta and alpha. Source:
    transformers 5.23 modeling_qwen3_next.py, modeling_qwen3_5.py.
    """
    mixer = model.mixer
    if mixer is None or not model.family.startswith("qwen3"):
        return {}
    keys, values, heads = mixer.key_size, mixer.value_size, mixer.num_heads
    widths = {
        "q": keys,
        "k": keys,
        "v": values,
        "z": values,
        "b": heads,
        "a": heads,
    }
    made = "qkvz ba" if "next" in model.family else "qkv z b a"
    return {
        f"in_proj_{each}": (model.hidden_size, sum(widths[part] for part in each))
        for each in made.split()
    }


def joined_ops(family: str, kernels: KernelTraits) -> tuple[str, ...]:
    """Ops of which one adapter serves all projections; else there is one beside each.

    Source: query_key_value, c_attn, Wqkv, qkv_proj and gate_up_proj of transformers 5.23
    modeling_*.py.
    """
    qkv = "bloom falcon gpt2 gpt-neox gpt_neox pythia mpt phi3 phi4 gpt_bigcode"
    joins = {
        "qkv": family in qkv.split(),
        "attention_output": False,
        "mlp_up": family in ("phi3", "phi4", "glm", "glm4"),
        "mlp_down": False,
    }
    return tuple(op for op, is_one in joins.items() if is_one or kernels.joins_adapters)


def unknown_layers(model: ModelSpec) -> str:
    """Return what of a model's layers has no adapters here; empty if all is known."""
    if model.mla:
        return "latent attention"
    if model.has_special_layers and not mixer_inputs(model):
        return "such linear mixers, gates or attention of several shapes"
    return "encoder-decoders" if model.num_decoder_layers else ""


def adapters_of(
    model: ModelSpec,
    training: Training,
    kernels: KernelTraits,
) -> tuple[Adapter, ...]:
    """The adapters of a layer: one per target, or one per op whose projections are joined.

    PEFT reaches a mixture's stacks by the names of the modules that they were, r for each (gate and
    up projection: 2r), and the router with all; or by the stack's own name, r. Source:
    _convert_peft_config_moe in peft/utils/transformers_weight_conversion.py 0.21.
    """
    found: list[Adapter] = []
    joined, joins_all = joined_ops(model.family, kernels), kernels.joins_adapters
    is_merged = kernels.expert_adapters == "merged"
    places, targets_all = projections(model), "router" in training.targets
    has_bare_experts = model.family in BARE_EXPERTS
    by_module = targets_all and kernels.all_linear == "modules"
    is_converted = model.family in CONVERTED_EXPERTS
    if by_module and "mlp_up" not in places and "shared_expert_up" not in places:
        is_converted = False  # no linear module has the names that stacked ones had
    for op, sizes in places.items():
        chosen = [target for target in sizes if targets_all or target in training.targets]
        widths, outs = zip(*sizes.values(), strict=True)
        whole = Adapter(
            name=op,
            beside=op,
            width=widths[0],
            out=sum(outs),
        )
        if model.moe and op in EXPERTS:
            copies = 1 if kernels.expert_adapters == "shared" else model.moe.num_experts
            ranks = min(len(chosen), 1) if joins_all else len(chosen) * is_converted
            ranks = ranks or int(op in training.targets)
            stack = replace(whole, num_ranks=ranks, num_copies=copies, is_merged=is_merged)
            found += [stack] if ranks else []
        elif model.moe and not (joins_all or has_bare_experts) and op.startswith(("mlp", "shared")):
            continue
        elif joins_all or op in joined:
            found += [whole] if chosen else []
        else:
            shared = replace(whole, num_sharing=len(chosen))
            for target in chosen:
                found.append(replace(shared, name=target, out=sizes[target][1]))
    if model.moe and targets_all and not joins_all:
        router = Adapter(name="router", beside="router", width=model.hidden_size, out=1)
        if is_converted and not by_module:
            found.append(replace(router, out=model.moe.num_experts, is_merged=is_merged))
        if has_shared_gate(model):
            found.append(replace(router, name="shared_expert_gate", beside="shared_expert_up"))
    return tuple(found)


def adapter_params(model: ModelSpec, training: Training, kernels: KernelTraits) -> int:
    """Trained parameters of the whole model: ``Σ r · (in + out)`` over layers and adapters.

    Embedding and head have ``V · h`` each where they are trained whole. Source: arXiv 2106.09685,
    section 4.2. Excludes biases, which PEFT does not train.
    """
    counts = layer_counts(model).items()
    kinds = {"mlp": WITH_MLP, "mixer": WITH_MIXER, "qkv": WITH_ATTENTION}
    kinds["attention"] = WITH_ATTENTION
    total = sum(end in training.targets for end in WHOLE) * model.vocab_size * model.hidden_size
    for adapter in adapters_of(model, training, kernels):
        chosen = kinds.get(adapter.beside.partition("_")[0], WITH_EXPERTS)
        number = sum(number for kind, number in counts if kind in chosen)
        rank = training.num_adapters * training.rank * adapter.num_ranks
        total += number * adapter.num_copies * rank * (adapter.width + adapter.out)
    return total


def training_problem(
    model: ModelSpec,
    training: Training,
    kernels: KernelTraits,
) -> tuple[str, str]:
    """Option and reason why a model cannot be trained so; both empty where it can."""
    if not training.is_frozen:
        return "", ""
    joins, joined = kernels.joins_adapters, joined_ops(model.family, kernels)
    full = f"allowed for {model.name} is full"
    kind = unknown_layers(model)
    if model.moe and joined and not joins:
        kind = kind or "such mixtures"
    if joins and model.mixer:
        kind = "linear mixers under Megatron-Bridge"
    if kind:
        return "--train", f"{training.mode} of {kind} is not modelled; {full}"
    if model.moe and training.mode == "qlora":
        text = "experts, which are one tensor, are not stored in 4 bits"
        return "--train", f"{text}; {full} and lora"
    adapters = adapters_of(model, training, kernels)
    problem = _targets_problem(model, training, kernels, adapters)
    if problem:
        return "--lora-targets", problem
    # Few outputs, one a head or an expert: any rank is above them.
    small = (
        "router",
        "shared_expert_gate",
        "in_proj_ba",
        "in_proj_b",
        "in_proj_a",
    )
    large = [each for each in adapters if each.name not in small] or adapters
    least = min(min(each.width, each.out) // each.num_ranks for each in large)
    if training.rank > least:
        text = "a rank above the smallest side of a targeted matrix saves nothing"
        allowed = f"allowed for {model.name} is 1 to {least}"
        return "--lora-rank", f"{text}: {training.rank} given, {allowed}"
    return "", ""


def _targets_problem(
    model: ModelSpec,
    training: Training,
    kernels: KernelTraits,
    adapters: Sequence[Adapter],
) -> str:
    """Return what of the targets the model, or the code that trains it, does not have."""
    targets, places, family = {*training.targets}, projections(model), model.family
    has_stacks = model.moe is not None and not kernels.joins_adapters
    known = (*BARE_EXPERTS, *CONVERTED_EXPERTS)
    lacked = {"experts": not has_stacks, "mixer": not model.mixer}
    groups = [word for word in TARGET_GROUPS if not lacked.get(word)]
    names = dict.fromkeys(target for held in places.values() for target in held)
    allowed = [*groups, *names, *(EXPERTS if has_stacks else ())]
    words = target_words(training.targets).split(",")
    lacking = [word for word in words if word not in (*allowed, *WHOLE)]
    if lacking or not adapters:
        text = f"{model.name} has no {', '.join(lacking) or 'target'}"
        return f"{text}; allowed are {', '.join(allowed)}"
    for op in places if kernels.joins_adapters else joined_ops(family, kernels):
        held = [*places.get(op, ())]
        chosen = [target for target in held if target in targets]
        if chosen and chosen != held:
            whole = ", ".join(dict.fromkeys(",".join(each) for each in places.values()))
            text = f"{','.join(held)} have one adapter here; given {','.join(chosen)} alone"
            return f"{text}; allowed are {', '.join(groups)} and, in any number, {whole}"
    ends = not targets.isdisjoint(WHOLE)
    inside = f"{model.name}: {{}}; allowed are attention{', experts' if family in known else ''}"
    outside = f"{{}}; allowed are targets without {', '.join(WHOLE)}"
    is_beyond = has_stacks and targets.difference(TARGET_GROUPS["attention"], WHOLE)
    is_parted = model.gated_mlp and len(targets.intersection(PAIR)) == 1
    refused = {
        inside.format("adapters of experts of its family are not modelled"): is_beyond
        and family not in known,
        inside.format("gate and up projection of experts are one tensor"): is_beyond and is_parted,
        inside.format("PEFT has no dropout beside stacked weights"): kernels.adapter_dropout
        and any(each.is_merged for each in adapters),
        outside.format("embedding and head stay frozen under Megatron-Bridge"): ends
        and kernels.joins_adapters,
        outside.format(f"embedding and head of {model.name} are one tensor"): ends
        and model.tied_embeddings,
        outside.format(f"{model.name}'s positions are learned"): ends
        and model.num_learned_positions,
    }
    return next((text for text, is_so in refused.items() if is_so), "")
