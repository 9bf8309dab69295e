"""Options and environment that make Megatron run as its traits say: overlap, kernels, dispatch."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.decision import Line
from planner.formats.format import Value
from planner.formats.megatron.options import chosen, is_on
from planner.formats.settings import Settings, as_number, decided, given, word
from planner.frameworks.settings import capacity_settings
from planner.spec.strategy import Strategy
from planner.spec.traits import Setting

FP32_GRADIENTS = "--accumulate-allreduce-grads-in-fp32"
"""Megatron sets it for bf16 by itself, not for fp16."""
BF16_GRADIENTS = "--grad-reduce-in-bf16"
FSDP_GRADIENTS = "--megatron-fsdp-main-grads-dtype"
"""The weights' dtype where it is left out; gradients travel in it too."""
EXCHANGES = {
    "--moe-shared-expert-overlap": "shared_expert",
    "--overlap-moe-expert-parallel-comm": "batches",
}
"""What expert exchange runs beside."""
CAPACITY = "--moe-expert-capacity-factor"
"""Below 0: no capacity, as without it."""
PADS = "--moe-pad-expert-input-to-capacity"
ORDERED_FROM = 10.0
"""Compute capability (Blackwell's) from which kernels keep their order over several queues.

Source: get_device_arch_version in megatron/training/arguments.py.
"""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MANY_QUEUES = "32"
"""Megatron-FSDP refuses 1: as recipes of Megatron-Bridge, perf_recipes/llama/gb200/llama3.py."""


def runtime_choices(context: Context, strategy: Strategy) -> Iterator[Line]:
    """What the plan's time and memory rest on, beside its decisions."""
    yield from _data_parallel(context, strategy)
    yield from _tensor_parallel(context, strategy)
    if context.model.moe:
        yield from _mixture(context, strategy)
    yield from _kernels(context)


def of_runtime(settings: Settings) -> Iterator[tuple[str, Value]]:
    """What of it a file decides: the bytes of gradients, what expert exchange runs beside."""
    yield from of_exchange(settings)
    is_16_bits = is_on(settings, "--bf16") or is_on(settings, "--fp16")
    if is_on(settings, "--use-megatron-fsdp"):
        if word(settings, FSDP_GRADIENTS) == "fp32":
            yield "gradient_bytes", decided(settings, FSDP_GRADIENTS, 4)
        elif is_16_bits:
            yield "gradient_bytes", decided(settings, FSDP_GRADIENTS, 2)
    elif is_on(settings, BF16_GRADIENTS):
        yield "gradient_bytes", decided(settings, BF16_GRADIENTS, 2)
    elif is_on(settings, FP32_GRADIENTS) or is_on(settings, "--bf16"):
        yield "gradient_bytes", decided(settings, FP32_GRADIENTS, 4)
    elif is_16_bits:
        yield "gradient_bytes", decided(settings, FP32_GRADIENTS, 2)


def traits_of(settings: Settings) -> Iterator[Setting]:
    """The capacity of experts that a file asks for."""
    factor = as_number(given(settings, CAPACITY))
    if factor is not None and factor > 0:
        yield from capacity_settings(factor, pads=is_on(settings, PADS))


def gradient_reasons(context: Context, strategy: Strategy) -> Iterator[str]:
    """Bytes of gradients that no option gives: they are reduced as they are held."""
    states = context.traits.states
    held = states.gradient_bytes, states.gradient_reduce_bytes
    if strategy.zero_stage < 2 and held not in ((2, 2), (4, 4)):
        yield (
            f"gradient_bytes: {held[0]:g}, reduced in {held[1]:g}; Megatron holds and reduces "
            "gradients in 2 or 4: --set traits.states.gradient_bytes and gradient_reduce_bytes"
        )


def of_exchange(settings: Settings) -> Iterator[tuple[str, Value]]:
    """What expert exchange runs beside."""
    for option, beside in EXCHANGES.items():
        if is_on(settings, option):
            yield "expert_exchange", decided(settings, option, beside)


def _data_parallel(context: Context, strategy: Strategy) -> Iterator[Line]:
    overlap = context.traits.overlap
    if overlap.overlaps_gradient_reduction:
        why = "gradients are reduced while backward runs"
        yield chosen("--overlap-grad-reduce", why=why)
        if overlap.overlaps_parameter_gather and strategy.zero_stage:
            why = "updated weights are gathered during the next forward"
            yield chosen("--overlap-param-gather", why=why)
    if strategy.zero_stage > 1:
        yield from _fully_sharded(context, strategy)
        return
    reduced_bytes, is_fp16 = (
        context.traits.states.gradient_reduce_bytes,
        context.job.precision == "fp16",
    )
    if reduced_bytes == 2 and not is_fp16:
        yield chosen(BF16_GRADIENTS, why="gradients are reduced in 16 bits")
    elif reduced_bytes == 4 and is_fp16:
        yield chosen(FP32_GRADIENTS, why="gradients are held and reduced in fp32")


def _fully_sharded(context: Context, strategy: Strategy) -> Iterator[Line]:
    """What Megatron-FSDP's buffers and gradients are priced with."""
    states = context.traits.states
    yield chosen("--no-gradient-accumulation-fusion", why="gradients are sharded as they are made")
    if (states.zero2_gradient_bytes or states.gradient_bytes) == 4:
        yield chosen(FSDP_GRADIENTS, "fp32", why="gradients are held and reduced in fp32")
    if strategy.zero_stage == 3 and not exchanges_beside_batches(context, strategy):
        why = "two layers' weights and gradients are whole at a time"
        yield chosen("--fsdp-double-buffer", why=why)


def exchanges_beside_batches(context: Context, strategy: Strategy) -> bool:
    """Whether expert exchange runs beside another micro-batch."""
    return context.traits.overlap.expert_all_to_all_overlap == "batches" and strategy.ep > 1


def _tensor_parallel(context: Context, strategy: Strategy) -> Iterator[Line]:
    overlap = context.traits.overlap
    if overlap.tensor_parallel_overlap != "none" and strategy.sequence_parallel:
        why = "gathers and scatters of tensor parallelism run beside products"
        yield chosen("--tp-comm-overlap", why=why)
    if overlap.pipeline_p2p_overlap == "none" and strategy.vpp > 1:
        yield chosen("--no-overlap-p2p-communication", why="planned without overlap")
    if context.traits.kernels.exchanges_context and strategy.cp > 1:
        yield chosen("--cp-comm-type", "a2a", why="context parallelism exchanges heads")


def _mixture(context: Context, strategy: Strategy) -> Iterator[Line]:
    if context.traits.kernels.deduplicated_dispatch:
        yield chosen("--moe-token-dispatcher-type", "flex", why="tokens are sent once per domain")
        backend = "hybridep" if context.traits.kernels.dispatch_permutes else "deepep"
        yield chosen("--moe-flex-dispatcher-backend", backend)
    else:
        why = "every expert's copy of a token is sent"
        yield chosen("--moe-token-dispatcher-type", "alltoall", why=why)
    overlap = context.traits.overlap.expert_all_to_all_overlap
    moe = context.model.moe
    if overlap == "shared_expert" and moe and moe.shared_ffn_size:
        why = "expert exchange runs beside the shared expert"
        yield chosen("--moe-shared-expert-overlap", why=why)
    yield from capacity_choices(context, strategy)
    yield from exchange_choices(context, strategy)


def capacity_choices(context: Context, _strategy: Strategy) -> Iterator[Line]:
    """The capacity of experts, and whether they are padded to it."""
    kernels = context.traits.kernels
    if context.model.moe and (factor := kernels.expert_capacity_factor):
        why = "an expert takes so many times the mean of tokens at most"
        yield chosen(CAPACITY, factor, why=why)
        if kernels.pads_to_capacity:
            yield chosen(PADS, why="every expert is padded to that")


def exchange_choices(context: Context, strategy: Strategy) -> Iterator[Line]:
    """Expert exchange beside another micro-batch, with the weight gradients it runs beside."""
    if exchanges_beside_batches(context, strategy):
        why = "expert exchange runs beside another micro-batch"
        yield chosen("--overlap-moe-expert-parallel-comm", why=why)
        why = "weight gradients are left for what the exchange runs beside"
        yield chosen("--delay-wgrad-compute", why=why)


def _kernels(context: Context) -> Iterator[Line]:
    kernels = context.traits.kernels
    if kernels.attention != "fused":
        backend = {"flash2": "flash", "flash_attn": "flash", "unfused": "unfused"}[
            kernels.attention
        ]
        yield chosen("--attention-backend", backend, why="planned with this kernel")
    if kernels.loss == "fused":
        why = "the loss keeps 16-bit logits only"
        yield chosen("--cross-entropy-loss-fusion", why=why)
    if not kernels.dropout:
        yield chosen("--attention-dropout", 0, why="planned without dropout")
        yield chosen("--hidden-dropout", 0, why="planned without dropout")


def keeps_order(compute_capability: float) -> bool:
    """Whether an accelerator runs kernels in order without CUDA_DEVICE_MAX_CONNECTIONS."""
    return compute_capability >= ORDERED_FROM


def environment(context: Context, strategy: Strategy) -> dict[str, str]:
    """Variables every process needs."""
    if strategy.zero_stage > 1:
        return {CONNECTIONS: MANY_QUEUES}
    needs_order = strategy.tp > 1 or strategy.cp > 1
    if not needs_order or keeps_order(context.cluster.accelerator.compute_capability):
        return {}
    return {CONNECTIONS: "1"}
