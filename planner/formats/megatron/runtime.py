"""Options and environment that make Megatron run as its traits say: overlap, kernels, dispatch."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.decision import Decided, KeyValue, Of, several, switched
from planner.formats.megatron.options import Choices, choices
from planner.formats.rules import Refused
from planner.formats.settings import Settings, as_number, flag, given, word
from planner.frameworks.settings import capacity_settings
from planner.spec.strategy import Strategy
from planner.spec.traits import Setting

# Megatron sets it for bf16 by itself, not for fp16.
FP32_GRADIENTS = "--accumulate-allreduce-grads-in-fp32"
BF16_GRADIENTS = "--grad-reduce-in-bf16"
# The weights' dtype where it is left out; gradients travel in it too.
FSDP_GRADIENTS = "--megatron-fsdp-main-grads-dtype"
# Below 0: no capacity, as without it.
CAPACITY = "--moe-expert-capacity-factor"
PADS = "--moe-pad-expert-input-to-capacity"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def runtime_choices(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    """Yield what the plan's time and memory depend on, besides its decisions."""
    kernels, overlap, moe = context.traits.kernels, context.traits.overlap, context.model.moe
    yield from _gradients(context, strategy)
    overlaps_tp = overlap.tensor_parallel_overlap != "none" and strategy.sequence_parallel
    is_bare = overlap.pipeline_p2p_overlap == "none" and strategy.vpp > 1
    exchange = "a2a" if kernels.exchanges_context and strategy.cp > 1 else None
    overlapped = "gathers and scatters of tensor parallelism run beside products"
    yield from choices(
        {
            "--tp-comm-overlap": (overlaps_tp, overlapped),
            "--no-overlap-p2p-communication": (is_bare, "planned without overlap"),
            "--cp-comm-type": (exchange, "context parallelism exchanges heads"),
        }
    )
    dispatcher, backend = ("alltoall", "every expert's copy of a token is sent"), None
    if kernels.deduplicated_dispatch:
        dispatcher = "flex", "tokens are sent once per domain"
        backend = "hybridep" if kernels.dispatch_permutes else "deepep"
    is_beside = overlap.expert_all_to_all_overlap == "shared_expert"
    of_shared = "expert exchange runs beside the shared expert"
    of_mixture: Choices = {
        "--moe-token-dispatcher-type": dispatcher,
        "--moe-flex-dispatcher-backend": (backend, ""),
        "--moe-shared-expert-overlap": (is_beside and moe and moe.shared_ffn_size > 0, of_shared),
    }
    yield from choices(of_mixture if moe else {})
    yield from capacity_choices(context, strategy)
    yield from exchange_choices(context, strategy)
    backends = {"flash2": "flash", "flash_attn": "flash", "unfused": "unfused"}
    dropout = None if kernels.dropout else 0, "planned without dropout"
    is_fused = kernels.loss == "fused"
    yield from choices(
        {
            "--attention-backend": (backends.get(kernels.attention), "planned with this kernel"),
            "--cross-entropy-loss-fusion": (is_fused, "the loss keeps 16-bit logits only"),
            "--attention-dropout": dropout,
            "--hidden-dropout": dropout,
        }
    )


def _gradients(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    """The options for gradient storage and reduction, and for what is overlapped."""
    overlap, states = context.traits.overlap, context.traits.states
    beside, in_fp32 = overlap.overlaps_gradient_reduction, "gradients are held and reduced in fp32"
    gathers = beside and overlap.overlaps_parameter_gather and strategy.zero_stage > 0
    found: dict[str, tuple[object, str]] = {
        "--overlap-grad-reduce": (beside, "gradients are reduced while backward runs"),
        "--overlap-param-gather": (gathers, "updated weights are gathered during the next forward"),
    }
    reduced = states.gradient_reduce_bytes
    if strategy.zero_stage > 1:
        held = states.zero2_gradient_bytes or states.gradient_bytes
        is_double = strategy.zero_stage == 3 and not exchanges_beside_batches(context, strategy)
        whole = "two layers' weights and gradients are whole at a time"
        found["--no-gradient-accumulation-fusion"] = True, "gradients are sharded as they are made"
        found[FSDP_GRADIENTS] = "fp32" if held == 4 else None, in_fp32
        found["--fsdp-double-buffer"] = is_double, whole
    elif context.job.precision == "fp16":
        found[FP32_GRADIENTS] = reduced == 4, in_fp32
    else:
        found[BF16_GRADIENTS] = reduced == 2, "gradients are reduced in 16 bits"
    return choices(found)


# What expert exchange runs beside.
of_exchange: Of = several(
    switched("expert_exchange", "--moe-shared-expert-overlap", "shared_expert"),
    switched("expert_exchange", "--overlap-moe-expert-parallel-comm", "batches"),
)


def of_runtime(settings: Settings) -> Decided:
    """Yield the runtime decisions of a file: gradient bytes, and what overlaps expert exchange."""
    yield from of_exchange(settings)
    is_bf16 = flag(settings, "--bf16")
    held = 2 if is_bf16 or flag(settings, "--fp16") else 0
    key, is_fp32 = FP32_GRADIENTS, is_bf16 or flag(settings, FP32_GRADIENTS)
    if flag(settings, "--use-megatron-fsdp"):
        key, is_fp32 = FSDP_GRADIENTS, word(settings, FSDP_GRADIENTS) == "fp32"
    elif flag(settings, BF16_GRADIENTS):
        key, held, is_fp32 = BF16_GRADIENTS, 2, False
    if held or is_fp32:
        yield "gradient_bytes", key, 4 if is_fp32 else held


def traits_of(settings: Settings) -> Iterator[Setting]:
    """The capacity of experts that a file asks for."""
    factor = as_number(given(settings, CAPACITY))
    if factor is not None and factor > 0:
        yield from capacity_settings(factor, pads=flag(settings, PADS))


def gradient_reasons(context: Context, strategy: Strategy) -> Refused:
    """Bytes of gradients that no option gives: they are reduced as they are held."""
    states = context.traits.states
    held = states.gradient_bytes, states.gradient_reduce_bytes
    is_other = strategy.zero_stage < 2 and held not in ((2, 2), (4, 4))
    allowed = "2 or 4: --set traits.states.gradient_bytes and gradient_reduce_bytes"
    given = f"gradient_bytes: {held[0]:g}, reduced in {held[1]:g}"
    return {f"{given}; Megatron holds and reduces gradients in {allowed}": is_other}


def exchanges_beside_batches(context: Context, strategy: Strategy) -> bool:
    """Return True if expert exchange overlaps another micro-batch."""
    return context.traits.overlap.expert_all_to_all_overlap == "batches" and strategy.ep > 1


def capacity_choices(context: Context, _strategy: Strategy) -> Iterator[KeyValue]:
    """The capacity of experts, and whether they are padded to it."""
    kernels = context.traits.kernels
    factor = (context.model.moe and kernels.expert_capacity_factor) or None
    pads = bool(factor and kernels.pads_to_capacity)
    return choices(
        {
            CAPACITY: (factor, "an expert takes so many times the mean of tokens at most"),
            PADS: (pads, "every expert is padded to that"),
        }
    )


def exchange_choices(context: Context, strategy: Strategy) -> Iterator[KeyValue]:
    """Expert exchange beside another micro-batch, with the weight gradients it runs beside."""
    is_so = exchanges_beside_batches(context, strategy)
    beside = "expert exchange runs beside another micro-batch"
    delayed = "weight gradients are left for what the exchange runs beside"
    return choices(
        {
            "--overlap-moe-expert-parallel-comm": (is_so, beside),
            "--delay-wgrad-compute": (is_so, delayed),
        }
    )


def keeps_order(compute_capability: float) -> bool:
    """Return True if an accelerator runs kernels in order without CUDA_DEVICE_MAX_CONNECTIONS."""
    # Blackwell's and later: get_device_arch_version in megatron/training/arguments.py.
    return compute_capability >= 10.0


def environment(context: Context, strategy: Strategy) -> dict[str, str]:
    """Variables every process needs."""
    if strategy.zero_stage > 1:
        # Megatron-FSDP refuses 1; 32 as in Megatron-Bridge's perf_recipes/llama/gb200/llama3.py.
        return {CONNECTIONS: "32"}
    is_ordered = keeps_order(context.cluster.accelerator.compute_capability)
    return {} if is_ordered or strategy.tp * strategy.cp == 1 else {CONNECTIONS: "1"}
