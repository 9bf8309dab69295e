"""Adapters of a model's layers: their matrices, their parameters, what is refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.layers.op import ZERO, BothComms, Comm, Comms, Gemm, LayerShape, Op, waited_for
from planner.layers.saved import saved_by, stream_width, widened_op
from planner.spec.cluster import Collective
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.training import (
    FROZEN_BYTES,
    QUANTISED_BYTES,
    TARGET_GROUPS,
    TARGETS,
    WHOLE,
    Dequantisation,
    Target,
    Training,
    target_words,
)
from planner.spec.traits import KernelTraits
from planner.units import Array

# Projections that an op of a layer holds.
PLACES: dict[str, tuple[Target, ...]] = {
    "qkv": ("q", "k", "v"),
    "attention_output": ("o",),
    "mlp_up": ("gate", "up"),
    "mlp_down": ("down",),
}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One adapter of a layer: A (width, r) and B (r, out)."""

    name: str
    beside: str  # the op whose output its own is added to
    width: int
    out: int
    num_sharing: int  # Adapters with the same input, itself among them


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
    """Return what of a model's layers has no adapters here; empty if all is known."""
    if model.mla:
        return "latent attention"
    if model.has_special_layers:
        return "linear mixers, gates and attention of several shapes"
    return "encoder-decoders" if model.num_decoder_layers else ""


def _mixture_problem(
    model: ModelSpec,
    training: Training,
    kernels: KernelTraits,
) -> tuple[str, str]:
    """Return what of a mixture is refused: all but attention adapters under transformers' code."""
    if model.moe is None:
        return "", ""
    allowed = f"allowed for {model.name} is full"
    if kernels.joined_ops(model.family):
        return "--train", f"{training.mode} of mixtures of experts is not modelled; {allowed}"
    if training.mode == "qlora":
        text = f"experts, which are one tensor, are not stored in 4 bits; {allowed} and lora"
        return "--train", text
    attention = TARGET_GROUPS["attention"]
    beyond = {*training.targets} - {*attention, *WHOLE}
    is_all = beyond == {*TARGETS[4:]}
    if beyond and not (is_all and model.family in kernels.bare_expert_families):
        text = f"adapters of experts are not modelled: {model.name} is a mixture"
        text += ", and PEFT's all-linear reaches its experts" * is_all
        return "--lora-targets", f"{text}; allowed are attention, {', '.join(attention)}"
    return "", ""


def adapters_of(
    model: ModelSpec,
    training: Training,
    joined: tuple[str, ...],
) -> tuple[Adapter, ...]:
    """The adapters of a layer: one per target, or one per op whose projections are ``joined``."""
    sizes, found = target_sizes(model), list[Adapter]()
    for op, places in PLACES.items():
        held = [target for target in places if target in sizes]
        chosen = [target for target in held if target in training.targets]
        if op in joined and chosen:
            width = sizes[held[0]][0]
            out = sum(sizes[target][1] for target in held)
            found.append(Adapter(name=op, beside=op, width=width, out=out, num_sharing=1))
            continue
        for target in chosen:
            width, out = sizes[target]
            found.append(
                Adapter(
                    name=target,
                    beside=op,
                    width=width,
                    out=out,
                    num_sharing=len(chosen),
                )
            )
    return tuple(found)


def adapter_params(model: ModelSpec, training: Training, joined: tuple[str, ...] = ()) -> int:
    """Trained parameters of the whole model: ``Σ r · (in + out)`` over layers and adapters.

    ``joined``: ops of which one adapter, of the width of all outputs, serves all projections.
    Embedding and head have ``V · h`` each where they are trained whole. Source: arXiv 2106.09685,
    section 4.2. Excludes biases, which PEFT does not train.
    """
    per_rank = sum(adapter.width + adapter.out for adapter in adapters_of(model, training, joined))
    adapters = model.num_layers * training.num_adapters * training.rank * per_rank
    ends = sum(end in training.targets for end in WHOLE)
    return adapters + ends * model.vocab_size * model.hidden_size


def _parted(
    training: Training,
    sizes: dict[Target, tuple[int, int]],
    joined: tuple[str, ...],
) -> str:
    """The first projections of one product of which only some are targets; else empty."""
    for op in joined:
        held = [target for target in PLACES[op] if target in sizes]
        chosen = [target for target in held if target in training.targets]
        if chosen and chosen != held:
            return f"{','.join(held)} have one adapter here; given {','.join(chosen)} alone"
    return ""


def _ends_problem(model: ModelSpec, training: Training, kernels: KernelTraits) -> str:
    """Return why embedding and head are not trained whole beside adapters; empty if they can be."""
    refused = {
        "embedding and head stay frozen under Megatron-Bridge": kernels.joins_adapters,
        f"embedding and head of {model.name} are one tensor": model.tied_embeddings,
        f"{model.name}'s positions are learned": model.num_learned_positions > 0,
    }
    is_meant = not {*WHOLE}.isdisjoint(training.targets)
    return next((text for text, is_so in refused.items() if is_meant and is_so), "")


def training_problem(
    model: ModelSpec,
    training: Training,
    kernels: KernelTraits,
) -> tuple[str, str]:
    """Option and reason why a model cannot be trained so; both empty where it can."""
    if not training.is_frozen:
        return "", ""
    if (refused := _mixture_problem(model, training, kernels))[0]:
        return refused
    if kind := unknown_layers(model):
        text = f"{training.mode} of {kind} is not modelled; allowed for {model.name} is full"
        return "--train", text
    sizes, joined = target_sizes(model), kernels.joined_ops(model.family)
    chosen = [target for target in training.targets if target in sizes]
    lacking = [target for target in training.targets if target not in (*sizes, *WHOLE)]
    is_group = target_words(training.targets).partition(",")[0] in TARGET_GROUPS
    if not chosen or (lacking and not is_group):
        allowed = ", ".join((*TARGET_GROUPS, *sizes))
        text = f"{model.name} has no {', '.join(lacking) or 'target'}; allowed are {allowed}"
        return "--lora-targets", text
    if parted := _parted(training, sizes, joined):
        whole = ", ".join(
            ",".join(target for target in places if target in sizes) for places in PLACES.values()
        )
        groups = ", ".join(TARGET_GROUPS)
        return "--lora-targets", f"{parted}; allowed are {groups} and, in any number, {whole}"
    if problem := _ends_problem(model, training, kernels):
        return "--lora-targets", f"{problem}; allowed are targets without {', '.join(WHOLE)}"
    least = min(min(each.width, each.out) for each in adapters_of(model, training, joined))
    if training.rank > least:
        text = (
            f"a rank above the smallest side of a targeted matrix saves nothing: {training.rank} "
            f"given, allowed for {model.name} is 1 to {least}"
        )
        return "--lora-rank", text
    return "", ""


def is_by_rows(adapter: Adapter) -> bool:
    """The matrix beside which it stands is split by rows: its input is split, its output summed."""
    return adapter.beside in ("attention_output", "mlp_down")


def adapter_parts(adapter: Adapter, rank: int, tp: Array) -> tuple[Array, Array, Array]:
    """Return widths on one rank: of A's input, of A's output, of B's output.

    By columns ``(in, r/t, out/t)``, by rows ``(in/t, r, out/t)``: A is split as the matrix it
    stands beside is, B always by columns; r (in + out) / t parameters either way. Source:
    ParallelLinearAdapter in megatron/bridge/peft/utils.py.
    """
    width = np.asarray(float(adapter.width))
    out = adapter.out / tp
    if is_by_rows(adapter):
        return width / tp, rank * np.ones_like(tp), out
    return width * np.ones_like(tp), rank / tp, out


def adapter_comms(
    adapter: Adapter, rank: int, shape: LayerShape, *, is_overlapped: bool
) -> BothComms:
    """Collectives of an adapter of a split matrix, forward and backward; nothing hides them.

    With T tokens and two bytes an element. By columns: the r numbers between A and B are gathered,
    T·r, and their gradient is all-reduced; without sequence parallelism the gradient of A's input
    too, T·in. With it A takes the gathered output of the norm, which the matrix gathers anyway;
    where that gather is cut into chunks (``is_overlapped``) A gathers its own, T·in, and scatters
    its gradient. By rows: A's partial sums are all-reduced, T·r, as is their gradient, and B's
    output is gathered, T·out; under sequence parallelism its gradient too. Source:
    ParallelLinearAdapter and get_adapter_attributes_from_linear in megatron/bridge/peft/utils.py.
    """
    split = shape.num_tokens * shape.element_bytes * (shape.tp > 1)
    is_sp = shape.sequence_parallel == 1
    latent, whole = split * rank, split * adapter.width
    if is_by_rows(adapter):
        output = split * adapter.out
        return (
            _waited([("all_reduce", latent), ("all_gather", output)]),
            _waited([("all_reduce", latent), ("all_gather", output * is_sp)]),
        )
    own = whole * (is_sp & is_overlapped)
    return (
        _waited([("all_gather", latent), ("all_gather", own)]),
        _waited([("all_reduce", latent), ("all_reduce", whole * ~is_sp), ("reduce_scatter", own)]),
    )


def _waited(comms: Iterable[tuple[Collective, Array]]) -> Comms:
    return tuple(
        Comm(collective=collective, axis="tp", num_bytes=num_bytes, is_waited_for=True)
        for collective, num_bytes in comms
    )


@dataclass(frozen=True, kw_only=True)
class AdapterKernels:
    """Traffic and launches of an implementation besides the two GEMMs of an adapter."""

    forward_bytes: tuple[float, float]  # Per element of a projection's input and of its output
    backward_bytes: tuple[float, float]
    small_kernels: tuple[float, float]  # Launches of forward and of backward
    keeps_own_input: bool = False
    """Every adapter keeps a copy of its input; else projections of one input share it."""


# By the trait ``kernels.adapters``.
#
# peft: fp32 adapters under autocast. The input to fp32 and back to 16 bits (read 2, write 4, read
# 4, write 2); the adapter's output scaled and added (read 2, write 2; read 4, write 2); backward
# the gradients of both casts and the sum with the base layer's; of scaling. Kernels: two casts of
# the input and two of weights, scaling, addition; backward two casts of the input's gradient and
# its sum, scaling, cast and accumulation of two weight gradients: peft/tuners/lora/layer.py,
# Linear.forward. 16-bit: no casts (torchtune/modules/peft/lora.py; PEFT with adapters as narrow as
# the base). compiled: scaling and addition in one kernel. megatron: as 16-bit, gradients are added
# to the main ones inside products: ParallelLinearAdapter in megatron/bridge/peft/utils.py,
# LoRALinear in lora_layers.py.
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
    "megatron": AdapterKernels(
        forward_bytes=(0.0, 10.0), backward_bytes=(6.0, 4.0), small_kernels=(2.0, 2.0)
    ),
}
# Bytes per weight through HBM in forward and in backward to rebuild a matrix in 16 bits, and
# launches, by the trait ``kernels.dequantisation``.
#
# kernel: read as stored, written in 16 bits, for each product; kernels of scales, their offset and
# weights: bitsandbytes/functional.py, dequantize_4bit. operations: torch's own, forward only, for
# the product keeps the matrix: shifted into 32 bits 4.5, narrowed 5, masked 2, less zeros gathered
# by group 4 + 1.5 + 4, times scales gathered so 4 + 4: forward of
# auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, counted (recalled).
DEQUANTISATIONS: Mapping[Dequantisation, tuple[float, float, float]] = {
    "kernel": (QUANTISED_BYTES + FROZEN_BYTES, QUANTISED_BYTES + FROZEN_BYTES, 3.0),
    "operations": (29.0, 0.0, 8.0),
}


def frozen_op(op: Op, training: Training, traits: KernelTraits, num_matrices: int = 1) -> Op:
    """The op with its weights frozen: stored, read, and without gradients of their own.

    Bytes: 2 per weight, or in linear layers of a 4-bit base ``0.5 + (1 + 4/256) / 64`` (arXiv
    2305.14314, section 3: blocks of 64, scales in 8 bits by blocks of 256). Such a base is rebuilt
    in 16 bits (:data:`DEQUANTISATIONS`). The rest has 2 bytes, 4 where it was widened.
    """
    weights = ZERO + sum(gemm.n * gemm.k * gemm.count for gemm in op.gemms if gemm.has_weight)
    frozen_bytes = weights * training.frozen_linear_bytes + (
        op.params - weights
    ) * frozen_input_bytes(traits)
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
        comms=(op.comms[0], _of_inputs(op.comms[1])),
    )


def input_share(adapter: Adapter, traits: KernelTraits) -> float:
    """Return the share of its input an adapter saves: all of its own copy, or part of a shared one.

    The output projection's is kept by attention anyway. Source: :data:`IMPLEMENTATIONS`; dropout
    makes one of each adapter's own.
    """
    if IMPLEMENTATIONS[traits.adapters].keeps_own_input or traits.adapter_dropout:
        return 1.0
    return 0.0 if adapter.beside == "attention_output" else 1.0 / adapter.num_sharing


@item(
    "memory.activations.adapters",
    inputs=(*SHAPE, "traits.training.rank", "traits.training.targets"),
    also=(adapter_parts,),
)
def adapter_op(
    adapter: Adapter,
    model: ModelSpec,
    shape: LayerShape,
    traits: KernelTraits,
    training: Training,
    *,
    is_overlapped: bool = False,
) -> Op:
    """One adapter: ``x A B`` with A (in, r) and B (r, out), added to the output beside it.

    Parameters: ``r · (in + out)`` of each adapter, of which a token takes one; over tp
    :func:`adapter_parts`. Saved: the table's ``adapter`` section, the input in A's precision
    (:func:`input_share`), whole under sequence parallelism, and ``x A``. Source: arXiv 2106.09685,
    section 4; :data:`IMPLEMENTATIONS`. ``is_overlapped``: as for :func:`adapter_comms`.
    """
    width, between, out = adapter_parts(adapter, training.rank, shape.tp)
    tokens, rank = shape.num_tokens, ZERO + float(training.rank)
    name, kernels = f"adapters.{adapter.name}", IMPLEMENTATIONS[traits.adapters]
    # Bytes per element of an adapter's input and pass: read and written in fp32, or in 16 bits,
    # with a mask of one byte. Source: native_dropout, counted.
    wide = 9.0 if kernels.keeps_own_input else 5.0
    dropout = wide if traits.adapter_dropout else 0.0
    # Output elements per token that a rank scales and adds, and that it joins after a gather.
    added, joined = adapter.out / shape.tp, np.zeros_like(shape.tp)
    if is_by_rows(adapter):
        # The whole output is gathered, of which sequence parallelism keeps a rank's tokens.
        added = adapter.out / shape.sp
        joined = adapter.out * np.where(shape.tp > 1, 1.0, 0.0)
    # What is gathered by columns is laid side by side: read and written, 4 bytes per element.
    side_by_side = tokens * 4.0 * joined
    traffic = [
        tokens * ((per_input + dropout) * width + per_output * added)
        for per_input, per_output in (kernels.forward_bytes, kernels.backward_bytes)
    ]
    return Op(
        name=name,
        params=training.rank / shape.tp * (training.num_adapters * (adapter.width + adapter.out)),
        gemms=(
            Gemm(m=tokens, n=ZERO + between, k=ZERO + width),
            Gemm(m=tokens, n=out, k=rank),
        ),
        forward_bytes=traffic[0] + side_by_side,
        backward_bytes=traffic[1],
        small_kernels=kernels.small_kernels,
        has_own_kernels=True,
        runs_in_16_bit=True,
        saved=saved_by(
            name,
            "adapter",
            model,
            shape,
            traits,
            widths={
                "adapter_input": width * input_share(adapter, traits),
                "adapter_rank": rank,
                "adapter_mask": width * traits.adapter_dropout,
            },
        ),
        comms=adapter_comms(adapter, training.rank, shape, is_overlapped=is_overlapped),
    )


def _adapted(op: Op, adapters: tuple[Op, ...], *, is_overlapped: bool) -> tuple[Op, ...]:
    """An op and the adapters beside it, as they are where one kernel no longer does for both.

    The norm's output is returned to adapters in 16 bits, cast apart for products in 8 bits, and
    its gather is not cut into chunks. What recomputation repeats of the op it repeats of them.
    Source: transformer_engine/pytorch/module/layernorm_linear.py (with_quantized_norm,
    ub_overlap_ag_fprop).
    """
    if not adapters:
        return (op,)
    if op.selective_fraction == 1.0 and op.selective_saved == ():
        adapters = tuple(
            replace(each, selective_fraction=1.0, selective_saved=()) for each in adapters
        )
    if is_overlapped:
        op = replace(op, comms=(waited_for(op.comms[0]), op.comms[1]))
    return (
        replace(op, gemms=tuple(replace(gemm, follows_norm=False) for gemm in op.gemms)),
        *adapters,
    )


def with_adapters(
    ops: tuple[Op, ...],
    model: ModelSpec,
    shape: LayerShape,
    traits: KernelTraits,
    training: Training,
    *,
    is_overlapped: bool = False,
) -> tuple[Op, ...]:
    """The ops of a layer, frozen, each followed by the adapters of its projections.

    ``is_overlapped``: collectives of tensor parallelism run beside products, chunk by chunk.
    """
    if not training.is_frozen:
        return ops
    beside = partial(
        adapter_op,
        model=model,
        shape=shape,
        traits=traits,
        training=training,
        is_overlapped=is_overlapped,
    )
    sizes, found = target_sizes(model), list[Op]()
    adapters = adapters_of(model, training, traits.joined_ops(model.family))
    for op in ops:
        op = widened_op(op, shape, gated=model.gated_mlp) if traits.widens_stream else op
        num_matrices = sum(each in sizes for each in PLACES.get(op.name, ()))
        own = [adapter for adapter in adapters if adapter.beside == op.name]
        found += _adapted(
            frozen_op(op, training, traits, num_matrices),
            tuple(beside(adapter) for adapter in own),
            is_overlapped=is_overlapped and not any(map(is_by_rows, own)),
        )
    return tuple(found)


def _of_inputs(comms: Comms) -> Comms:
    """Return the communication without that of weight gradients, which frozen weights lack."""
    return tuple(comm for comm in comms if not comm.is_for_weights)


def frozen_input_bytes(traits: KernelTraits) -> float:
    """Per frozen weight outside the linear layers."""
    return FROZEN_BYTES * stream_width(traits.widens_stream)


def frozen_end(op: Op, training: Training, traits: KernelTraits) -> Op:
    """Embedding or head, frozen; nothing runs backward through an embedding.

    One that is trained whole is a copy of the frozen one, which stays (ModulesToSaveWrapper in
    peft/utils/other.py). Excludes the head's input, which its gradient needs.
    """
    if not training.is_frozen:
        return op
    if op.name in training.targets:
        return replace(op, frozen_bytes=op.params * frozen_input_bytes(traits))
    return replace(
        op,
        params=ZERO,
        frozen_bytes=op.params * frozen_input_bytes(traits),
        gemms=tuple(replace(gemm, is_frozen=True) for gemm in op.gemms),
        backward_bytes=op.backward_bytes if op.gemms else ZERO,
        comms=(op.comms[0], _of_inputs(op.comms[1]) if op.gemms else ()),
    )


def dequantised_bytes(model: ModelSpec, training: Training) -> Array:
    """Bytes of the largest matrix of a layer rebuilt in 16 bits; 0 where none is quantised.

    Gate and up projection are two. Source: bitsandbytes/autograd/_functions.py, MatMul4Bit.
    """
    if training.frozen_linear_bytes >= FROZEN_BYTES:
        return ZERO
    return ZERO + FROZEN_BYTES * max(width * out for width, out in target_sizes(model).values())
