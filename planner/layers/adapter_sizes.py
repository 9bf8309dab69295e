"""Which adapters a model's layers have: their matrices, their parameters, what is refused."""

from dataclasses import dataclass

from planner.spec.model import ModelSpec
from planner.spec.training import TARGET_GROUPS, Target, Training, target_words

PLACES: dict[str, tuple[Target, ...]] = {
    "qkv": ("q", "k", "v"),
    "attention_output": ("o",),
    "mlp_up": ("gate", "up"),
    "mlp_down": ("down",),
}
"""Projections that an op of a layer holds."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter of a layer: A (width, r) and B (r, out)."""

    name: str
    beside: str
    """The op whose output its own is added to."""
    width: int
    out: int
    num_sharing: int
    """Adapters with the same input, itself among them."""


def target_sizes(model: ModelSpec) -> dict[Target, tuple[int, int]]:
    """Input and output width of every projection of a layer that can have an adapter.

    Empty for models whose adapters are not known here (:func:`unknown_layers`), and of a
    mixture only attention's.
    """
    if unknown_layers(model):
        return {}
    hidden, ffn = model.hidden_size, model.ffn_size
    sizes: dict[Target, tuple[int, int]] = {
        "q": (hidden, model.query_size),
        "k": (hidden, model.kv_size),
        "v": (hidden, model.kv_size),
        "o": (model.value_size, hidden),
    }
    if model.moe:
        return sizes
    if model.gated_mlp:
        sizes["gate"] = (hidden, ffn)
    return {**sizes, "up": (hidden, ffn), "down": (ffn, hidden)}


def unknown_layers(model: ModelSpec) -> str:
    """What of a model's layers has no adapters here; empty where all is known."""
    if model.mla:
        return "latent attention"
    return "encoder-decoders" if model.num_decoder_layers else ""


def _mixture_problem(model: ModelSpec, training: Training, *, joined: bool) -> tuple[str, str]:
    """What of a mixture is refused: all but adapters of attention under transformers' code."""
    if model.moe is None:
        return "", ""
    allowed = f"allowed for {model.name} is full"
    if joined:
        return "--train", f"{training.mode} of mixtures of experts is not modelled; {allowed}"
    if training.mode == "qlora":
        text = f"experts, which are one tensor, are not stored in 4 bits; {allowed} and lora"
        return "--train", text
    attention = TARGET_GROUPS["attention"]
    if not {*training.targets} <= {*attention}:
        text = f"adapters of experts are not modelled: {model.name} is a mixture"
        return "--lora-targets", f"{text}; allowed are attention, {', '.join(attention)}"
    return "", ""


def adapters_of(model: ModelSpec, training: Training, *, joined: bool) -> tuple[Adapter, ...]:
    """The adapters of a layer: one per target, or one per op where projections are ``joined``."""
    sizes, found = target_sizes(model), list[Adapter]()
    for op, places in PLACES.items():
        held = [target for target in places if target in sizes]
        chosen = [target for target in held if target in training.targets]
        if joined and chosen:
            width, out = sizes[held[0]][0], sum(sizes[target][1] for target in held)
            found.append(Adapter(name=op, beside=op, width=width, out=out, num_sharing=1))
            continue
        found += [
            Adapter(
                name=target,
                beside=op,
                width=sizes[target][0],
                out=sizes[target][1],
                num_sharing=len(chosen),
            )
            for target in chosen
        ]
    return tuple(found)


def adapter_params(model: ModelSpec, training: Training, *, joined: bool = False) -> int:
    """Adapter parameters of the whole model: ``Σ r · (in + out)`` over layers and adapters.

    ``joined``: projections of one product share an adapter, of the width of all their outputs.
    Source: arXiv 2106.09685, section 4.2. Excludes biases, which PEFT does not train.
    """
    beside = adapters_of(model, training, joined=joined)
    per_rank = sum(adapter.width + adapter.out for adapter in beside)
    return model.num_layers * training.num_adapters * training.rank * per_rank


def _parted(training: Training, sizes: dict[Target, tuple[int, int]]) -> str:
    """The first projections of one product of which only some are targets; else empty."""
    for places in PLACES.values():
        held = [target for target in places if target in sizes]
        chosen = [target for target in held if target in training.targets]
        if chosen and chosen != held:
            return f"{','.join(held)} have one adapter here; given {','.join(chosen)} alone"
    return ""


def training_problem(
    model: ModelSpec,
    training: Training,
    joined_families: tuple[str, ...] = (),
    *,
    joined: bool = False,
) -> tuple[str, str]:
    """Option and reason why a model cannot be trained so; both empty where it can.

    ``joined_families`` have code whose adapters are not known; ``joined``: as in
    :func:`adapter_params`.
    """
    if not training.is_frozen:
        return "", ""
    if (refused := _mixture_problem(model, training, joined=joined))[0]:
        return refused
    kind = unknown_layers(model)
    if model.family in joined_families:
        kind = f"{model.family}, whose code joins projections,"
    if kind:
        text = f"{training.mode} of {kind} is not modelled; allowed for {model.name} is full"
        return "--train", text
    sizes = target_sizes(model)
    chosen = [target for target in training.targets if target in sizes]
    allowed = ", ".join((*TARGET_GROUPS, *sizes))
    lacking = [target for target in training.targets if target not in sizes]
    is_group = target_words(training.targets) in TARGET_GROUPS
    if not chosen or (lacking and not is_group):
        text = f"{model.name} has no {', '.join(lacking) or 'target'}; allowed are {allowed}"
        return "--lora-targets", text
    if joined and (parted := _parted(training, sizes)):
        whole = ", ".join(
            ",".join(target for target in places if target in sizes) for places in PLACES.values()
        )
        groups = ", ".join(TARGET_GROUPS)
        return "--lora-targets", f"{parted}; allowed are {groups} and, in any number, {whole}"
    least = min(min(each.width, each.out) for each in adapters_of(model, training, joined=joined))
    if training.rank > least:
        text = (
            f"a rank above the smallest side of a targeted matrix saves nothing: {training.rank} "
            f"given, allowed for {model.name} is 1 to {least}"
        )
        return "--lora-rank", text
    return "", ""
