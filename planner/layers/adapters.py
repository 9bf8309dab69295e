"""Frozen layers: ops whose weights are not trained, and the low-rank adapters beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.layers.op import ONE, ZERO, Gemm, LayerShape, Op
from planner.layers.saved import saved_by
from planner.layers.widened import stream_width, widened_op
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.training import (
    FROZEN_BYTES,
    QUANTISED_BYTES,
    TARGET_GROUPS,
    Dequantisation,
    Target,
    Training,
    target_words,
)
from planner.spec.traits import KernelTraits
from planner.units import Array

PLACES: dict[str, tuple[Target, ...]] = {
    "qkv": ("q", "k", "v"),
    "attention_output": ("o",),
    "mlp_up": ("gate", "up"),
    "mlp_down": ("down",),
}
"""Projections that an op of a layer holds."""


@dataclass(frozen=True, kw_only=True)
class AdapterKernels:
    """What an implementation moves and launches beside the two products of an adapter."""

    forward_bytes: tuple[float, float]
    """Per element of a projection's input and of its output."""
    backward_bytes: tuple[float, float]
    small_kernels: tuple[float, float]
    """Launches of forward and of backward."""
    keeps_own_input: bool = False
    """Every adapter keeps a copy of its input; else projections of one input share it."""


IMPLEMENTATIONS: Mapping[str, AdapterKernels] = {
    "peft": AdapterKernels(
        forward_bytes=(12.0, 10.0),
        backward_bytes=(18.0, 4.0),
        small_kernels=(6.0, 8.0),
        keeps_own_input=True,
    ),
    "16-bit": AdapterKernels(
        forward_bytes=(0.0, 10.0), backward_bytes=(6.0, 4.0), small_kernels=(2.0, 4.0)
    ),
    "compiled": AdapterKernels(
        forward_bytes=(0.0, 6.0), backward_bytes=(6.0, 4.0), small_kernels=(1.0, 3.0)
    ),
}
"""By the trait ``kernels.adapters``.

peft: fp32 adapters under autocast. The input to fp32 and back to 16 bits (read 2, write 4, read 4,
write 2); the adapter's output scaled and added (read 2, write 2; read 4, write 2); backward the
gradients of both casts and the sum with the base layer's; of scaling. Kernels: two casts of the
input and two of weights, scaling, addition; backward two casts of the input's gradient and its sum,
scaling, cast and accumulation of two weight gradients: peft/tuners/lora/layer.py, Linear.forward.
16-bit: no casts (torchtune/modules/peft/lora.py; PEFT with adapters as narrow as the base).
compiled: scaling and addition in one kernel.
"""
DROPOUT_BYTES = 9.0
"""Per element of an adapter's input and pass: read and written in fp32, with a mask of one byte.

5 in 16 bits. Source: native_dropout, counted.
"""
DEQUANTISATIONS: Mapping[Dequantisation, tuple[float, float, float]] = {
    "kernel": (QUANTISED_BYTES + FROZEN_BYTES, QUANTISED_BYTES + FROZEN_BYTES, 3.0),
    "operations": (29.0, 0.0, 8.0),
}
"""Bytes per weight through HBM in forward and in backward to rebuild a matrix in 16 bits, and
launches, by the trait ``kernels.dequantisation``.

kernel: read as stored, written in 16 bits, for each product; kernels of scales, their offset and
weights: bitsandbytes/functional.py, dequantize_4bit. operations: torch's own, forward only, for
the product keeps the matrix: shifted into 32 bits 4.5, narrowed 5, masked 2, less zeros gathered
by group 4 + 1.5 + 4, times scales gathered so 4 + 4: forward of
auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, counted (recalled).
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
    return model.num_layers * training.num_adapters * training.rank * per_rank


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


def frozen_op(op: Op, training: Training, traits: KernelTraits, num_matrices: int = 1) -> Op:
    """The op with its weights frozen: stored, read, and without gradients of their own.

    Bytes: 2 per weight, or in linear layers of a 4-bit base ``0.5 + (1 + 4/256) / 64`` (arXiv
    2305.14314, section 3: blocks of 64, scales in 8 bits by blocks of 256). Such a base is rebuilt
    in 16 bits (:data:`DEQUANTISATIONS`). The rest has 2 bytes, 4 where it was widened.
    """
    weights = ZERO + sum(gemm.n * gemm.k * gemm.count for gemm in op.gemms if gemm.has_weight)
    stored = weights * training.frozen_linear_bytes
    frozen_bytes = stored + (op.params - weights) * rest_bytes(traits)
    is_quantised = training.frozen_linear_bytes < FROZEN_BYTES and bool(op.gemms)
    forward, backward, launches = DEQUANTISATIONS[traits.dequantisation]
    kernels = launches * num_matrices if is_quantised else 0.0
    weights = weights if is_quantised else ZERO
    return replace(
        op,
        params=ZERO,
        frozen_bytes=frozen_bytes,
        gemms=tuple(replace(gemm, is_frozen=gemm.has_weight) for gemm in op.gemms),
        forward_bytes=op.forward_bytes + weights * forward,
        backward_bytes=op.backward_bytes + weights * backward,
        small_kernels=(kernels * (forward > 0), kernels * (backward > 0)),
        has_own_kernels=op.has_own_kernels or not np.any(op.forward_bytes),
    )


def input_share(target: Target, traits: KernelTraits, training: Training) -> float:
    """Of an adapter's input, what it keeps: all of its own copy, or its share of one of all.

    The output projection's is kept by attention anyway. Source: :data:`IMPLEMENTATIONS`; dropout
    makes one of each adapter's own.
    """
    if IMPLEMENTATIONS[traits.adapters].keeps_own_input or traits.adapter_dropout:
        return 1.0
    beside = next(place for place in PLACES.values() if target in place)
    num_sharing = sum(each in training.targets for each in beside)
    return 0.0 if target == "o" else 1.0 / num_sharing


@item(
    "memory.activations.adapters",
    inputs=(*SHAPE, "traits.training.rank", "traits.training.targets"),
)
def adapter_op(
    target: Target, model: ModelSpec, shape: LayerShape, traits: KernelTraits, training: Training
) -> Op:
    """One projection's adapter: ``x A B`` with A (in, r) and B (r, out), added to its output.

    Parameters: ``r · (in + out)`` of each adapter, of which a token takes one. Saved: the table's
    ``adapter`` section, the input in A's precision (:func:`input_share`) and ``x A``. Source: arXiv
    2106.09685, section 4; :data:`IMPLEMENTATIONS`.
    """
    width, out = target_sizes(model)[target]
    tokens, rank = shape.num_tokens, ZERO + float(training.rank)
    name, kernels = f"adapters.{target}", IMPLEMENTATIONS[traits.adapters]
    wide = DROPOUT_BYTES if kernels.keeps_own_input else (DROPOUT_BYTES + 1.0) / 2.0
    dropout = wide if traits.adapter_dropout else 0.0
    traffic = [
        tokens * ((per_input + dropout) * width + per_output * out)
        for per_input, per_output in (kernels.forward_bytes, kernels.backward_bytes)
    ]
    return Op(
        name=name,
        params=rank * (training.num_adapters * (width + out)),
        gemms=(
            Gemm(m=tokens, n=rank, k=ZERO + float(width)),
            Gemm(m=tokens, n=ZERO + float(out), k=rank),
        ),
        forward_bytes=traffic[0],
        backward_bytes=traffic[1],
        small_kernels=kernels.small_kernels,
        has_own_kernels=True,
        saved=saved_by(
            name,
            "adapter",
            model,
            shape,
            traits,
            widths={
                "adapter_input": ONE * width * input_share(target, traits, training),
                "adapter_rank": rank,
                "adapter_mask": ONE * width * traits.adapter_dropout,
            },
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
        op = widened_op(op, shape, gated=model.gated_mlp) if traits.widens_stream else op
        places = [each for each in PLACES.get(op.name, ()) if each in sizes]
        found.append(frozen_op(op, training, traits, len(places)))
        found += [beside(target) for target in places if target in training.targets]
    return tuple(found)


def rest_bytes(traits: KernelTraits) -> float:
    """Per frozen weight outside the linear layers."""
    return FROZEN_BYTES * stream_width(traits.widens_stream)


def frozen_end(op: Op, training: Training, traits: KernelTraits) -> Op:
    """Embedding or head, frozen; nothing runs backward through an embedding."""
    if not training.is_frozen:
        return op
    return replace(
        op,
        params=ZERO,
        frozen_bytes=op.params * rest_bytes(traits),
        gemms=tuple(replace(gemm, is_frozen=True) for gemm in op.gemms),
        backward_bytes=op.backward_bytes if op.gemms else ZERO,
        backward_comms=op.backward_comms if op.gemms else (),
    )


def dequantised_bytes(model: ModelSpec, training: Training) -> Array:
    """Bytes of the largest matrix of a layer rebuilt in 16 bits; 0 where none is quantised.

    Gate and up projection are two. Source: bitsandbytes/autograd/_functions.py, MatMul4Bit.
    """
    if training.frozen_linear_bytes >= FROZEN_BYTES:
        return ZERO
    sizes = target_sizes(model).values()
    return ZERO + FROZEN_BYTES * max(width * out for width, out in sizes)
