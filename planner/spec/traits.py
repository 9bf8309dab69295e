"""FrameworkTraits: what a training framework does that costs bytes or seconds.

The values live in ``planner/frameworks/NAME/traits.yaml``, each with its source.
"""

from dataclasses import dataclass, replace
from typing import Literal

from planner.spec.job import Precision


@dataclass(frozen=True, kw_only=True)
class StateTraits:
    """Bytes per parameter of weights, gradients and optimizer, and when they are sharded."""

    weight_bytes: float
    """Weights that the kernels read."""
    gradient_bytes: float
    """Gradients kept between micro-batches."""
    optimizer_bytes: float
    """Master weights and Adam moments; sharded from ZeRO stage 1."""
    sharded_gradient_bytes: float
    """A further gradient copy that exists only sharded (DeepSpeed's fp32 partition)."""
    zero3_weight_bytes: float
    """Weights kept sharded between uses under stage 3 (0 where the master shard serves)."""
    gradient_reduce_bytes: float
    """Bytes per gradient element on the wire."""
    sharded_over_cp: bool
    """The sharding group is dp x cp rather than dp."""
    reduces_every_micro_batch: bool
    """Gradients are reduced in every micro-batch from stage 2 on."""
    zero3_reshards_under_pp: bool
    """False: under pipelining the gathered weights and full gradients stay."""
    zero3_gathered_layers: float
    """Layers whose gathered weights coexist at the peak (current and prefetched)."""


@dataclass(frozen=True, kw_only=True)
class KernelTraits:
    """What the layer kernels keep for backward and move through HBM."""

    attention: Literal["fused", "flash2", "unfused"]
    """``fused``: the vendor library's kernel; ``flash2``: FlashAttention-2."""
    selective_policy: Literal["attention_core", "every_second_matmul"]
    """What selective recomputation repeats."""
    attention_rate_fraction: float
    """Of the kernel's rate in hwdb; below 1 for older generations of the kernel."""
    ring_attention_overhead_fraction: float
    """Attention grows by this · (1 - 1/cp): merging partial results, small blocks."""
    dropout: bool
    norm_saved_bytes: float
    """Per hidden element and norm (input, and output where the next matmul keeps it)."""
    mlp_saved_bytes_plain: float
    """Per feed-forward element of an ungated MLP."""
    mlp_saved_bytes_gated: float
    attention_output_saved_bytes: float
    """Per element of the output projection's input."""
    fp8_linear_input_bytes: float
    """What linear layers keep of their input under fp8 and fp4, instead of 2 bytes."""
    block_forward_bytes: float
    """Memory-bound traffic of norms, residuals and dropouts per token and hidden element."""
    block_backward_bytes: float
    mlp_forward_bytes_plain: float
    mlp_forward_bytes_gated: float
    mlp_backward_bytes_plain: float
    mlp_backward_bytes_gated: float
    memory_bound_multiplier: float
    loss_saved_bytes: float
    """Per logit, alive when backward starts."""
    loss_traffic_bytes: float
    """Per logit, moved through HBM by the loss, forward and backward together."""
    weight_gradient_bytes: float
    """Traffic per parameter and micro-batch to accumulate the weight gradient."""
    deduplicated_dispatch: bool
    """Expert dispatch sends a token once to each remote domain (DeepEP, HybridEP)."""
    dummy_weight_gradient_bytes: float
    """Per element of one weight per distinct linear shape, kept for ever beside fused
    weight-gradient accumulation (Transformer Engine)."""
    moe_launch_forward_s: float
    """CPU time to launch one mixture layer's forward: a floor under its kernels' time."""
    moe_launch_backward_s: float
    """The same for its backward."""


def kernels_under(kernels: KernelTraits, precision: Precision) -> KernelTraits:
    """Kernel traits in a training precision: under fp8 linear layers keep quantised inputs.

    The inputs are the norms' outputs, the attention output and the MLP activation's output.
    """
    if precision not in ("fp8", "fp4"):
        return kernels
    saved = 2.0 - kernels.fp8_linear_input_bytes
    return replace(
        kernels,
        norm_saved_bytes=kernels.norm_saved_bytes - saved,
        mlp_saved_bytes_plain=kernels.mlp_saved_bytes_plain - saved,
        mlp_saved_bytes_gated=kernels.mlp_saved_bytes_gated - saved,
        attention_output_saved_bytes=kernels.attention_output_saved_bytes - saved,
    )


@dataclass(frozen=True, kw_only=True)
class OverlapTraits:
    """How much communication runs beside computation."""

    tensor_parallel_hidden_fraction: float
    data_parallel_hidden_fraction: float
    """At most this share of the gradient reduction hides behind the last backward."""
    parameter_gather_hidden_fraction: float
    pipeline_p2p_exposed_fraction: float
    contention_fraction: float
    """Stage 3: max(compute, comm) + this · min(compute, comm)."""


@dataclass(frozen=True, kw_only=True)
class OverheadTraits:
    """Memory and time that belong to no tensor."""

    context_bytes: float
    workspace_bytes: float
    communicator_bytes: float
    """Per process group with more than one rank."""
    fragmentation_fraction: float
    """Reserved over allocated, minus one."""
    optimizer_traffic_bytes: float
    """HBM bytes per owned parameter in the optimizer step."""
    step_overhead_s: float


@dataclass(frozen=True, kw_only=True)
class SupportTraits:
    """What the framework can run at all."""

    tp: bool
    pp: bool
    vpp: bool
    cp: bool
    ep: bool
    sequence_parallel: bool
    zero_stages: tuple[int, ...]
    zero_stages_with_pp: tuple[int, ...]
    offload: tuple[str, ...]
    uneven_stages: bool
    vocab_padding: int
    """Vocabulary is padded to a multiple of this times tp (1: no padding)."""
    vendors: tuple[str, ...]
    """Makers of accelerators it is made for."""


@dataclass(frozen=True, kw_only=True)
class FrameworkTraits:
    """One framework (or an older profile of it)."""

    name: str
    profile: str
    states: StateTraits
    kernels: KernelTraits
    overlap: OverlapTraits
    overheads: OverheadTraits
    support: SupportTraits
