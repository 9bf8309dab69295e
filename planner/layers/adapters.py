"""Frozen layers and the adapters beside them: what they compute, keep and communicate."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.layers.adapter_targets import EXPERTS, Adapter, adapters_of, projections
from planner.layers.op import (
    ONE,
    ZERO,
    Axis,
    BothComms,
    Comm,
    Comms,
    Gemm,
    LayerShape,
    Op,
    SavedTensor,
    kept_token_fraction,
    waited_for,
)
from planner.layers.saved import saved_by, widened_op
from planner.spec.cluster import Collective
from planner.spec.items import SHAPE, item
from planner.spec.model import ModelSpec
from planner.spec.training import FROZEN_BYTES, QUANTISED_BYTES, Dequantisation, Training
from planner.spec.traits import KernelTraits
from planner.units import Array


def is_by_rows(adapter: Adapter) -> bool:
    """The matrix beside which it stands is split by rows: its input is split, its output summed."""
    return adapter.beside.endswith(("_output", "_out", "_down"))


def adapter_parts(adapter: Adapter, rank: float, tp: Array) -> tuple[Array, Array, Array]:
    """Return widths on one rank: of A's input, of A's output, of B's output.

    By columns ``(in, r/t, out/t)``, by rows ``(in/t, r, out/t)``, r (in + out) / t parameters: A is
    split as its matrix, B by columns. Source: ParallelLinearAdapter of megatron/bridge/peft.
    """
    width = np.asarray(float(adapter.width))
    out = adapter.out / tp
    if is_by_rows(adapter):
        return width / tp, rank * np.ones_like(tp), out
    return width * np.ones_like(tp), rank / tp, out


def adapter_comms(
    adapter: Adapter, rank: float, tokens: Array, shape: LayerShape, *, is_overlapped: bool
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
    axis: Axis = "etp" if adapter.beside in EXPERTS else "tp"
    split = tokens * shape.element_bytes * (getattr(shape, axis) > 1)
    is_sp = shape.sequence_parallel == 1
    latent, whole = split * rank, split * adapter.width
    if is_by_rows(adapter):
        output = split * adapter.out
        return (
            _waited(axis, [("all_reduce", latent), ("all_gather", output)]),
            _waited(axis, [("all_reduce", latent), ("all_gather", output * is_sp)]),
        )
    own = whole * (is_sp & is_overlapped)
    return (
        _waited(axis, [("all_gather", latent), ("all_gather", own)]),
        _waited(
            axis, [("all_reduce", latent), ("all_reduce", whole * ~is_sp), ("reduce_scatter", own)]
        ),
    )


def _waited(axis: Axis, comms: Iterable[tuple[Collective, Array]]) -> Comms:
    return tuple(
        Comm(collective=collective, axis=axis, num_bytes=num_bytes, is_waited_for=True)
        for collective, num_bytes in comms
    )


@dataclass(frozen=True, kw_only=True)
class AdapterKernels:
    """Traffic and launches of an implementation besides the two GEMMs of an adapter."""

    # Per element of a projection's input and of its output
    forward_bytes: tuple[float, float] = (0.0, 10.0)
    backward_bytes: tuple[float, float] = (6.0, 4.0)
    small_kernels: tuple[float, float]  # Launches of forward and of backward
    keeps_own_input: bool = False
    """Every adapter keeps a copy of its input; else projections of one input share it."""


# By the trait ``kernels.adapters``.
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
    "16-bit": AdapterKernels(small_kernels=(2.0, 4.0)),
    "compiled": AdapterKernels(forward_bytes=(0.0, 6.0), small_kernels=(1.0, 3.0)),
    "megatron": AdapterKernels(small_kernels=(2.0, 2.0)),
}
# Bytes per weight through HBM in forward and in backward to rebuild a matrix in 16 bits, and
# launches, by the trait ``kernels.dequantisation``. kernel: read as stored, written in 16 bits, for
# each product; kernels of scales, their offset and weights (dequantize_4bit of bitsandbytes).
# operations: torch's own, forward only, for the product keeps the matrix: shifted into 32 bits 4.5,
# narrowed to 8 bits 5, masked 2, less a group's zeros 2, times its scales 3; 4 launches make zeros
# (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, counted).
DEQUANTISATIONS: Mapping[Dequantisation, tuple[float, float, float]] = {
    "kernel": (QUANTISED_BYTES + FROZEN_BYTES, QUANTISED_BYTES + FROZEN_BYTES, 3.0),
    "operations": (16.5, 0.0, 9.0),
}


def frozen_op(op: Op, training: Training, traits: KernelTraits, num_matrices: int = 1) -> Op:
    """The op with its weights frozen: stored, read, and without gradients of their own.

    Bytes: 2 per weight, or in linear layers of a 4-bit base ``0.5 + (1 + 4/256) / 64`` (arXiv
    2305.14314, section 3: blocks of 64, scales in 8 bits by blocks of 256). Such a base is rebuilt
    in 16 bits (:data:`DEQUANTISATIONS`). The rest has 2 bytes, 4 where it is fp32.
    """
    weights = ZERO + sum(gemm.n * gemm.k * gemm.count for gemm in op.gemms if gemm.has_weight)
    each = frozen_input_bytes(traits)
    linear = training.frozen_linear_bytes if training.mode == "qlora" else each
    frozen_bytes = weights * linear + (op.params - weights) * each
    is_quantised = training.mode == "qlora" and bool(op.gemms)
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

    Attention or mixer keep their output projection's anyway; dropout makes one of each's own.
    """
    if IMPLEMENTATIONS[traits.adapters].keeps_own_input or traits.adapter_dropout:
        return 1.0
    return 0.0 if adapter.beside in ("attention_output", "mixer_out") else 1.0 / adapter.num_sharing


@item(
    "memory.activations.adapters",
    inputs=(
        *SHAPE,
        "traits.training.rank",
        "traits.training.targets",
    ),
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
    :func:`adapter_parts`. Of routed experts on their pairs and over etp, one for all or, over ep,
    one for each. Saved: the table's ``adapter`` section, the input in A's precision
    (:func:`input_share`), whole under sequence parallelism, and ``x A``. Source: arXiv 2106.09685,
    section 4; :data:`IMPLEMENTATIONS`. ``is_overlapped``: as for :func:`adapter_comms`. Excludes
    the sum over ep of the gradient of one adapter for all experts.
    """
    is_expert = adapter.beside in EXPERTS
    copies = ONE
    split, per_token = (shape.etp, shape.expert_share) if is_expert else (shape.tp, ONE)
    if is_expert and model.moe:
        per_token = per_token * model.moe.mean_experts * kept_token_fraction(shape, traits)
        copies = adapter.num_copies / shape.ep if adapter.num_copies > 1 else ONE
    rank = float(training.rank * adapter.num_ranks)
    width, between, out = adapter_parts(adapter, rank, split)
    tokens = shape.num_tokens * per_token
    name, kernels = f"adapters.{adapter.name}", IMPLEMENTATIONS[traits.adapters]
    # Bytes per element of an adapter's input and pass: read and written in fp32, or in 16 bits,
    # with a mask of one byte. Source: native_dropout, counted.
    wide = 9.0 if kernels.keeps_own_input else 5.0
    dropout = wide if traits.adapter_dropout else 0.0
    # Output elements per token that a rank scales and adds, and that it joins after a gather.
    added, joined = adapter.out / split, np.zeros_like(split)
    if is_by_rows(adapter):
        # The whole output is gathered, of which sequence parallelism keeps a rank's tokens.
        added = adapter.out / (ONE if is_expert else shape.sp)
        joined = adapter.out * np.where(split > 1, 1.0, 0.0)
    # What is gathered by columns is laid side by side: read and written, 4 bytes per element.
    side_by_side = tokens * 4.0 * joined
    traffic = [
        tokens * ((per_input + dropout) * width + per_output * added)
        for per_input, per_output in (kernels.forward_bytes, kernels.backward_bytes)
    ]
    op = Op(
        name=name,
        params=copies * rank / split * (training.num_adapters * (adapter.width + adapter.out)),
        is_expert=is_expert,
        gemms=(
            Gemm(m=tokens / copies, n=ZERO + between, k=ZERO + width, count=copies),
            Gemm(m=tokens / copies, n=out, k=ZERO + rank, count=copies),
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
                "adapter_input": per_token * width * input_share(adapter, traits),
                "adapter_rank": per_token * rank * (not adapter.is_merged),
                "adapter_mask": per_token * width * traits.adapter_dropout,
            },
        ),
        comms=adapter_comms(adapter, rank, tokens, shape, is_overlapped=is_overlapped),
    )
    return merged_op(op, adapter, copies, kernels) if adapter.is_merged else op


def merged_op(op: Op, adapter: Adapter, copies: Array, kernels: AdapterKernels) -> Op:
    """The op of an adapter whose product is added to the weights: ``W + A B`` for every expert.

    ``2 r · in · out`` FLOPs an expert in forward, twice that in backward, whatever the tokens.
    Saved: the sum, 2 bytes a weight, and 16-bit copies of fp32 adapters. Traffic besides: the
    weights once, and those casts. Source: ParamWrapper in peft/tuners/lora/layer.py 0.21.
    """
    rank, weights = op.gemms[1].k, copies * adapter.width * adapter.out
    cast = op.params * kernels.keeps_own_input  # elements, of 4 bytes and of 2
    kept = {"sum": weights, "factors": cast}
    matrix = Gemm(
        m=ZERO + adapter.out,
        n=ZERO + adapter.width,
        k=rank,
        count=copies,
    )
    return replace(
        op,
        gemms=(matrix,),
        forward_bytes=weights * FROZEN_BYTES + 6.0 * cast,
        backward_bytes=6.0 * cast,
        saved=op.saved
        + tuple(
            SavedTensor(
                name=f"{op.name}.{name}",
                rows=number,
                width=ONE,
                element_bytes=FROZEN_BYTES,
            )
            for name, number in kept.items()
        ),
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
    places, found = projections(model), list[Op]()
    adapters = adapters_of(model, training, traits)
    for op in ops:
        if traits.widens_stream and training.mode == "qlora":
            op = widened_op(op, shape, gated=model.gated_mlp)
        own = [adapter for adapter in adapters if adapter.beside == op.name]
        frozen = frozen_op(op, training, traits, len(places.get(op.name, ())))
        if any(adapter.is_merged for adapter in own):
            # The weights with their adapters have a gradient, of which those of the factors follow.
            frozen = replace(frozen, gemms=op.gemms)
        found += _adapted(
            frozen,
            tuple(
                adapter_op(each, model, shape, traits, training, is_overlapped=is_overlapped)
                for each in own
            ),
            is_overlapped=is_overlapped and not any(map(is_by_rows, own)),
        )
    return tuple(found)


def _of_inputs(comms: Comms) -> Comms:
    """Return the communication without that of weight gradients, which frozen weights lack."""
    return tuple(comm for comm in comms if not comm.is_for_weights)


def frozen_input_bytes(traits: KernelTraits) -> float:
    """Per frozen weight outside the linear layers of a 4-bit base."""
    return FROZEN_BYTES * (1.0 + traits.widens_stream)


def frozen_end(op: Op, training: Training, traits: KernelTraits) -> Op:
    """Embedding or head, frozen; nothing runs backward through an embedding.

    One trained whole is a copy of the frozen one, which stays (ModulesToSaveWrapper of PEFT).
    Excludes the head's input, which its gradient needs.
    """
    if not training.is_frozen:
        return op
    stored = replace(op, frozen_bytes=op.params * frozen_input_bytes(traits))
    if op.name in training.targets:
        return stored
    return replace(
        stored,
        params=ZERO,
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
    sides = (side for held in projections(model).values() for side in held.values())
    return ZERO + FROZEN_BYTES * max(width * out for width, out in sides)
