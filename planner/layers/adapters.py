"""Frozen layers: ops whose weights are not trained, and the low-rank adapters beside them."""

from dataclasses import replace
from functools import partial

from planner.layers.op import ONE, ZERO, Gemm, LayerShape, Op
from planner.layers.saved import saved_by
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.training import FROZEN_BYTES, TARGET_GROUPS, Target, Training, target_words
from planner.spec.traits import KernelTraits
from planner.units import Array

PLACES: dict[str, tuple[Target, ...]] = {
    "qkv": ("q", "k", "v"),
    "attention_output": ("o",),
    "mlp_up": ("gate", "up"),
    "mlp_down": ("down",),
}
"""Projections that an op of a layer holds."""
FORWARD_BYTES = (12.0, 10.0)
"""Per element of a projection's input and of its output, beside its two products: the input to fp32
and, by autocast, back to 16 bits (read 2, write 4, read 4, write 2); the adapter's output scaled
and added (read 2, write 2; read 4, write 2). Counted in peft/tuners/lora/layer.py, Linear.forward.
"""
BACKWARD_BYTES = (18.0, 4.0)
"""The same in backward: gradients of both casts and the sum with the base layer's; of scaling."""
SMALL_KERNELS = (5.0, 7.0)
"""Launches beside the products of one adapter, less one: two casts of the input and two of weights,
scaling, addition; backward the two casts of the input's gradient and its sum, scaling, and cast and
accumulation of two weight gradients."""
DEQUANTISE_KERNELS = 3.0
"""Launches to rebuild a matrix in 16 bits: of its scales, their offset and the weights.

Counted in bitsandbytes/functional.py, dequantize_4bit.
"""


def target_sizes(model: ModelSpec) -> dict[Target, tuple[int, int]]:
    """Input and output width of every projection of a layer that can have an adapter.

    Empty for models whose adapters are not known here (:func:`unknown_layers`).
    """
    if unknown_layers(model):
        return {}
    hidden, ffn = model.hidden_size, model.ffn_size
    sizes: dict[Target, tuple[int, int]] = {
        "q": (hidden, model.query_size),
        "k": (hidden, model.kv_size),
        "v": (hidden, model.kv_size),
        "o": (model.value_size, hidden),
        "gate": (hidden, ffn),
        "up": (hidden, ffn),
        "down": (ffn, hidden),
    }
    if not model.gated_mlp:
        del sizes["gate"]
    return sizes


def unknown_layers(model: ModelSpec) -> str:
    """What of a model's layers has no adapters here; empty where all is known."""
    if model.moe:
        return "mixtures of experts"
    if model.mla:
        return "latent attention"
    return "encoder-decoders" if model.num_decoder_layers else ""


def adapter_params(model: ModelSpec, training: Training) -> int:
    """Adapter parameters of the whole model: ``Σ r · (in + out)`` over layers and targets.

    Source: arXiv 2106.09685, section 4.2. Excludes biases, which PEFT does not train.
    """
    sizes = target_sizes(model)
    per_rank = sum(sum(sizes[target]) for target in training.targets if target in sizes)
    return model.num_layers * training.rank * per_rank


def training_problem(
    model: ModelSpec, training: Training, joined_families: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Option and reason why a model cannot be trained so; both empty where it can."""
    if not training.is_frozen:
        return "", ""
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
    least = min(min(sizes[target]) for target in chosen)
    if training.rank > least:
        text = (
            f"a rank above the smallest side of a targeted matrix saves nothing: {training.rank} "
            f"given, allowed for {model.name} is 1 to {least}"
        )
        return "--lora-rank", text
    return "", ""


def frozen_op(op: Op, training: Training) -> Op:
    """The op with its weights frozen: stored, read, and without gradients of their own.

    Bytes: 2 per weight, or in linear layers of a 4-bit base ``0.5 + (1 + 4/256) / 64`` (arXiv
    2305.14314, section 3: blocks of 64, scales in 8 bits by blocks of 256). Such a base is rebuilt
    in 16 bits for each product: ``stored + 2`` bytes per weight through HBM, forward and backward.
    Excludes what ``prepare_model_for_kbit_training`` widens to fp32.
    """
    weights = ZERO + sum(gemm.n * gemm.k * gemm.count for gemm in op.gemms if gemm.has_weight)
    stored = weights * training.frozen_linear_bytes
    is_quantised = training.frozen_linear_bytes < FROZEN_BYTES and bool(op.gemms)
    rebuilt = stored + weights * FROZEN_BYTES if is_quantised else ZERO
    matrices = len(PLACES.get(op.name, ()))
    kernels = DEQUANTISE_KERNELS * matrices if is_quantised else 0.0
    return replace(
        op,
        params=ZERO,
        frozen_bytes=stored + (op.params - weights) * FROZEN_BYTES,
        gemms=tuple(replace(gemm, is_frozen=gemm.has_weight) for gemm in op.gemms),
        forward_bytes=op.forward_bytes + rebuilt,
        backward_bytes=op.backward_bytes + rebuilt,
        small_kernels=(kernels, kernels),
    )


@item(
    "memory.activations.adapters",
    inputs=(*SHAPE, "traits.training.rank", "traits.training.targets"),
)
def adapter_op(
    target: Target, model: ModelSpec, shape: LayerShape, traits: KernelTraits, training: Training
) -> Op:
    """One projection's adapter: ``x A B`` with A (in, r) and B (r, out), added to its output.

    Parameters: ``r · (in + out)``. Saved: the table's ``adapter`` section, the input in A's
    precision and ``x A``. Source: arXiv 2106.09685, section 4; peft/tuners/lora/layer.py. Excludes
    dropout, which PEFT leaves out by default.
    """
    width, out = target_sizes(model)[target]
    tokens, rank = shape.num_tokens, ZERO + float(training.rank)
    name = f"adapters.{target}"
    traffic = [
        tokens * (per_input * width + per_output * out)
        for per_input, per_output in (FORWARD_BYTES, BACKWARD_BYTES)
    ]
    return Op(
        name=name,
        params=rank * (width + out),
        gemms=(
            Gemm(m=tokens, n=rank, k=ZERO + float(width)),
            Gemm(m=tokens, n=ZERO + float(out), k=rank),
        ),
        forward_bytes=traffic[0],
        backward_bytes=traffic[1],
        small_kernels=SMALL_KERNELS,
        saved=saved_by(
            name,
            "adapter",
            model,
            shape,
            traits,
            widths={"adapter_input": ONE * width, "adapter_rank": rank},
        ),
    )


def with_adapters(
    ops: tuple[Op, ...],
    model: ModelSpec,
    shape: LayerShape,
    traits: KernelTraits,
    training: Training,
) -> tuple[Op, ...]:
    """The ops of a layer, frozen, each followed by the adapters of its projections."""
    if not training.is_frozen:
        return ops
    beside = partial(adapter_op, model=model, shape=shape, traits=traits, training=training)
    sizes, found = target_sizes(model), list[Op]()
    for op in ops:
        found.append(frozen_op(op, training))
        chosen = (each for each in PLACES.get(op.name, ()) if each in training.targets)
        found += [beside(target) for target in chosen if target in sizes]
    return tuple(found)


def frozen_end(op: Op, training: Training) -> Op:
    """Embedding or head, frozen in 16 bits; nothing runs backward through an embedding."""
    if not training.is_frozen:
        return op
    return replace(
        op,
        params=ZERO,
        frozen_bytes=op.params * FROZEN_BYTES,
        gemms=tuple(replace(gemm, is_frozen=True) for gemm in op.gemms),
        backward_bytes=op.backward_bytes if op.gemms else ZERO,
    )


def dequantised_bytes(model: ModelSpec, training: Training) -> Array:
    """Bytes of the largest matrix of a layer rebuilt in 16 bits; 0 where none is quantised.

    Gate and up projection are two. Source: bitsandbytes/autograd/_functions.py, MatMul4Bit.
    """
    if training.frozen_linear_bytes >= FROZEN_BYTES:
        return ZERO
    sizes = target_sizes(model).values()
    return ZERO + FROZEN_BYTES * max(width * out for width, out in sizes)
