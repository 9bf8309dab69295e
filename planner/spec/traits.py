"""FrameworkTraits: what a training framework does that costs bytes or seconds.

The values live in ``planner/frameworks/traits/NAME.yaml`` and, where all frameworks share them, in
``planner/frameworks/traits/common.yaml``, each with its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from planner.spec.items import RunClass, TimeRange, narrowest
from planner.spec.job import FULL_PRECISIONS, Precision, element_bytes
from planner.spec.saved import SavedTables
from planner.spec.training import FULL, Dequantisation, OptimizerSpec, Training
from planner.units import Array

ExpertOverlap = Literal["none", "shared_expert", "batches"]
ShardedBy = Literal["zero", "fsdp1", "fsdp2", "megatron", "xla"]
# In ``tp_families``: every model's.
ANY_FAMILY = "any"
TraitValue = bool | float | str | tuple[float, ...] | tuple[str, ...]
# Dotted path of a trait, such as ``overlap.ring_achieved_fraction``, and its value.
Setting = tuple[str, TraitValue]


@dataclass(frozen=True, kw_only=True)
class StateTraits:
    """Bytes per parameter of weights, gradients and optimizer, and when they are sharded."""

    weight_bytes: float  # weights that the kernels read
    gradient_bytes: float  # gradients kept between micro-batches
    master_weight_bytes: float  # fp32 weights of the optimizer, sharded as its states are
    fp32_shard_bytes: float  # in fp32 training, beside the weights kernels read, from stage 1 on
    sharded_by: ShardedBy  # whose buffers, copies and gathered weights follow in planner/cost
    shards_replica_states: bool  # in bf16, at stage 0 too, beside whole fp32 gradients
    replica_bucket_bytes: float  # that whole replicas reduce beside their gradients
    sharded_gradient_bytes: float  # a further copy, sharded only (DeepSpeed's fp32 partition)
    zero3_weight_bytes: float  # sharded between uses; 0 where the master shard serves
    splits_experts_by_number: bool  # stage 3 gives ranks whole experts, splits no further
    host_load_bytes: float  # per parameter of the model and rank while it loads, below stage 3
    zero3_secondary_weight_bytes: float  # a copy sharded in the domain, for backward's gathers
    gradient_reduce_bytes: float  # bytes per gradient element on the wire
    zero2_gradient_bytes: float  # gradients kept, and on the wire, from stage 2 on; 0: as below it
    scatters_gradients: bool  # false: stages 1 and 2 all-reduce whole gradients all the same
    broadcasts_weights: bool  # from one rank after the other; otherwise they are gathered
    fp8_gathered_weight_bytes: float  # of weights gathered under stage 3 in fp8 training
    # Neighbouring data-parallel ranks over which each weight outside experts is cut below stage 3,
    # gathered for both passes and its gradient scattered after it; 1: none.
    weight_shards: float
    expert_weight_shards: float  # the same of routed experts
    gradients_made_in_backward: bool  # none exist before an iteration's first backward
    steps_all_at_once: bool  # torch's foreach: roots of all second moments coexist in the step
    optimizer_state_fraction: float  # of the usual ones: half where their type is 16-bit
    gathers_embedding_with_head: bool  # stage 3 gathers both as one unit, and the last layer
    loss_inside_model: bool  # the loss is part of the unit whose weights are gathered for it
    embedding_gradient_is_whole: bool  # every tp rank accumulates the whole embedding's gradient
    collected_head_gradient_bytes: float  # gradient of the head that a chunked loss collects
    accumulated_gradient_bytes: float  # whole gradients kept between micro-batches from stage 2 on
    reduces_every_micro_batch: bool  # gradients are reduced in every micro-batch from stage 2 on
    # What a stage sent on is freed (megatron), kept until its backward (deepspeed), or to the end
    # of the iteration (torch). The last then keeps all logits, and once more when they are joined;
    # every micro-batch has receive buffers of its own; gathered weights and full gradients stay; a
    # matrix cannot be on two stages; there are as many micro-batches as stages without chunks. ZeRO
    # goes up to stage 2 in the last, in the others up to 1.
    pipeline_engine: Literal["megatron", "deepspeed", "torch"]
    frozen_shard_width: float  # over that of the gathered weights: 2 where shards are fp32

    @property
    def keeps_ends_gathered(self) -> bool:
        """Stage 3 gathers embedding and head once an iteration (Megatron-FSDP, release_bucket)."""
        return self.sharded_by == "megatron"

    @property
    def is_fsdp(self) -> bool:
        """Both versions of PyTorch's: units are gathered beside their shards."""
        return self.sharded_by in ("fsdp1", "fsdp2")

    @property
    def gathers_into_pools(self) -> bool:
        """Nothing else uses the buffers of gathered weights: FSDP's streams, XLA's scheduler."""
        return self.is_fsdp or self.sharded_by == "xla"

    @property
    def cuts_weights(self) -> bool:
        """Some weights are cut over further ranks than tensor parallelism's."""
        return max(self.weight_shards, self.expert_weight_shards) > 1.0


@dataclass(frozen=True, kw_only=True)
class KernelTraits:
    """Tensors that layer kernels save for backward, and their traffic through HBM."""

    # ``fused``: the vendor library's kernel; ``flash1``, ``flash2``: FlashAttention of 2022, and as
    # torch chooses version 2 before Blackwell; ``flash_attn``: version 2's package on any device.
    attention: Literal["fused", "flash1", "flash2", "flash_attn", "unfused", "eager"]
    ring_attention_overhead_fraction: float  # attention grows by this · (1 - 1/cp)
    exchanges_context: bool  # heads are exchanged (all-to-all), no keys passed round a ring
    dropout: bool  # on, and its masks are kept
    saved: SavedTables  # tensors the kernels keep for backward, those of the loss included
    loss: str  # name of the vocabulary loss; its tensors are section ``loss`` of ``saved``
    # Pairs are of forward and backward.
    block_bytes: tuple[float, float]  # norms, residuals, dropouts, per token and hidden element
    gated_mlp_bytes: tuple[float, float]  # traffic of a gated activation, per element
    # Torch's own kernels, beside fused ones, have: rotations that scale, clamps of gates, biases of
    # experts' second products.
    unfused: tuple[Literal["scaled_rotary", "clamps", "expert_biases"], ...]
    memory_bound_multiplier: float  # real over counted traffic of element-wise kernels
    loss_traffic_bytes: float  # per logit, through HBM, forward and backward together
    weight_gradient_bytes: float  # traffic per parameter and micro-batch to add it up
    dispatcher: Literal["alltoall", "deepep", "hybridep"]  # of tokens to their experts
    permutation_slowdown: float  # of kernels that sort tokens by expert, on B200, over the others
    sorting_bytes: tuple[float, float]  # traffic per pair and hidden element to sort and put back
    chunk_sorting_bytes: tuple[float, float]  # the same beside the experts
    # Kernels that choose a mixture layer's experts, count and index their tokens, and take the
    # router's losses: each as long as it takes to start.
    router_kernels: tuple[float, float]
    grouped_rate_fraction: float  # of experts' grouped products over dense ones alike
    # What of a job in 8 or 4 bits is: products of routed experts, all others with a weight, the
    # vocabulary's, and fused attention where hwdb has its rate.
    in_8_bit: tuple[Literal["experts", "linears", "head", "attention"], ...]
    layers_in_16_bit_fraction: float  # of the layers of such a job, all of whose GEMMs stay in 16
    # Ranks that split an expert gather token-expert pairs after the exchange; else tokens, once for
    # all experts, before routing.
    gathers_expert_pairs: bool
    # Transformer Engine's keep quantised inputs under fp8 and fp4, and dummy gradients; its
    # workspaces are larger.
    linears: Literal["torch", "transformer_engine"]
    # Implementation of low-rank adapters, as :mod:`planner.layers.adapters` describes them.
    adapters: Literal["peft", "16-bit", "compiled", "megatron"]
    adapter_dropout: bool  # their inputs go through dropout
    all_linear: Literal["peft", "modules"]  # PEFT's word, or modules that a program finds
    expert_adapters: Literal["merged", "each", "shared"]  # in the weights; beside, each or one
    # What flows between layers is fp32: under autocast, with all weights, and beside a 4-bit base,
    # with embedding, head and norms.
    widens_stream: bool
    dequantisation: Dequantisation  # method by which matrices of a 4-bit base are rebuilt
    # Host seconds to launch one kernel, the framework's way to it included: with the number of
    # kernels a floor under the time of a layer's pass.
    launch_s: float
    eager_launch_s: float  # the same for a kernel of torch itself, where others take longer
    waits_for_kernels: bool  # the host does, for each (CUDA_LAUNCH_BLOCKING=1)
    stops_recomputation: bool  # a block is repeated without its last product, not needed again
    returns_cache: bool  # blocks return their keys and values, which live as long as the outputs
    memory_bound_kernels: float  # per op that moves data through HBM: one if fused
    gathered_module_s: float  # host seconds per pass in hooks of a gathered module
    grouped_launch_s: float  # host seconds per expert and product, if launched one by one
    moe_launch_s: tuple[float, float]  # least host seconds of a mixture layer, products apart
    cuda_graph_fraction: float  # share of those launches that CUDA graphs replay
    paired_launch_multiplier: float  # on a mixture layer's host time beside another micro-batch
    host_waits: tuple[str, ...]  # ops behind which the host waits for the device in forward
    padded_host_waits: tuple[str, ...]  # the same where experts are padded to their capacity
    expert_capacity_factor: float  # most tokens an expert takes, over the mean; 0: all
    pads_to_capacity: bool  # every expert gets that many, padding among them

    @property
    def flash_kernel(self) -> Literal["fused", "flash2", "flash_attn"]:
        """Kernel of what is never computed unfused: mixers' scans and sparse attention."""
        match self.attention:
            case "unfused" | "eager" | "flash1":
                return "flash2"
            case kernel:
                return kernel

    @property
    def attention_rate_fraction(self) -> float:
        """Fraction of the kernel's rate in hwdb; plausible 0.4-0.8 for FlashAttention 1.

        It and its Triton port are 1.3-3.0 times slower than version 2: arXiv 2307.08691, section 4.
        """
        return 0.565 if self.attention == "flash1" else 1.0

    @property
    def joins_adapters(self) -> bool:
        """One adapter stands beside a product, whatever it holds, and is split over tp as it is."""
        return self.adapters == "megatron"


@dataclass(frozen=True, kw_only=True)
class RecomputeModule:
    """Something selective recomputation can repeat in backward instead of keeping it."""

    name: str
    drops: tuple[str, ...] = ()  # patterns of names (``op.tensor``) that are not kept
    repeats: Mapping[str, float] = field(default_factory=dict)  # share of the forward, by op
    only_beside: Mapping[str, str] = field(default_factory=dict)  # ops only beside another op
    # Patterns of what is kept beside every second matmul, where those are counted and all else is
    # repeated (:func:`planner.layers.saved.every_second_matmul`).
    keeps: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # ops whose results a compiler neither keeps nor repeats
    fused_qkv: bool = False  # queries, keys and values are one matmul


@dataclass(frozen=True, kw_only=True)
class RecomputeTraits:
    """Modules that a framework's selective recomputation can repeat, and those by default."""

    selected: tuple[str, ...]
    modules: tuple[RecomputeModule, ...]

    @property
    def chosen(self) -> tuple[RecomputeModule, ...]:
        """The modules selected."""
        return tuple(module for module in self.modules if module.name in self.selected)


@dataclass(frozen=True, kw_only=True)
class OverlapTraits:
    """Amount of communication that is overlapped with computation."""

    # Gathers and scatters of sequence parallelism run beside a product that does not need them, or
    # beside the chunks of the one that does.
    tensor_parallel_overlap: Literal["none", "bulk", "ring"]
    # True if, in backward, layers split by column overlap the exchange of their input's gradient
    # with the GEMM of the weight's, and the gather of their input with the other.
    overlaps_input_gradients: bool
    ring_achieved_fraction: float  # fraction achieved of what the chunks could hide
    # Expert dispatch and combine run beside the shared expert, or beside the other pass of another
    # micro-batch.
    expert_all_to_all_overlap: ExpertOverlap
    overlaps_gradient_reduction: bool  # bucket by bucket, while backward makes the next
    overlaps_parameter_gather: bool  # bucket by bucket, during the next forward
    gradient_bucket_elements: float  # gradients reduced in one message; 0: those of one layer
    weight_gather_elements: float  # in one message under stage 3; 0: a layer's
    pipeline_p2p_overlap: Literal["none", "interleaved", "all"]  # schedules where transfers hide
    communication_multiprocessors: float  # that a collective's kernel holds while it runs
    optimizer_waits_for_all_stages: bool  # false: it starts after a stage's own backwards


@dataclass(frozen=True, kw_only=True)
class OverheadTraits:
    """Memory and time that belong to no tensor."""

    context_bytes: float  # of the device, where hwdb has no figure for the accelerator
    num_buckets: float  # in 16 bits that stay allocated; none larger than the rank's parameters
    communicator_bytes: float  # per process group with more than one rank
    fragmentation_fraction: float  # reserved over allocated, minus one
    step_overhead_s: float  # seconds of the rest: logging, host synchronisation, the data path
    node_step_overhead_s: float  # further seconds of a step on several nodes


@dataclass(frozen=True, kw_only=True)
class OffloadTraits:
    """Traffic of offloaded states over the host link and in host memory, and what waits for it."""

    host_step_bytes: float  # through host memory per owned parameter, in all passes
    host_threads: Literal["one", "share"]  # of a rank: one, or its share of the cores
    host_bandwidth_fraction: float  # of the datasheet's, by the threads of all ranks
    # The slowest and the fastest published rate over the modelled one.
    host_optimizer_factors: tuple[float, float]
    host_step_beside: Literal["nothing", "transfers", "backward"]  # what overlaps the host's step
    waited_gradient_zero_stages: tuple[int, ...]  # ZeRO stages whose backward does not hide them
    # Times sharded gradients cross the host link in every micro-batch but the last, from stage 2
    # on: there, and back where they are added up on the device.
    gradient_passes_per_micro_batch: float
    step_returned_bytes: float  # per owned parameter after the step, weights on the device
    pageable_weight_zero_stages: tuple[int, ...]  # ZeRO stages whose new weights are not pinned
    is_pinned: bool  # offloaded states are; else transfers are slower and hide nowhere
    nvme_pipelined: bool  # true if those reads and writes overlap the host's step


@dataclass(frozen=True, kw_only=True)
class SupportTraits:
    """Features that the framework can run at all."""

    # Axes, states and passes that it offers.
    features: tuple[
        Literal[
            "tp",
            "pp",
            "vpp",  # an interleaved schedule
            "cp",
            "ep",
            "sequence_parallel",  # norms and residuals are split over tp
            "hybrid_sharding",  # inside groups that are replicated over the rest of dp
            "mtp",  # layers behind the last one are trained to predict further tokens
            "expert_capacity",  # tokens beyond it are dropped, or all padded to it
            "replicated_kv_heads",  # fewer than the ranks that they are split over
        ],
        ...,
    ]
    # What of them it refuses.
    limits: tuple[
        Literal[
            "sequence_parallel_beside_tp",  # tp without it
            "sequence_parallel_beside_experts",  # tp of mixtures without it
            "chunks_beside_batch_overlap",  # pipelined expert exchange beside others without chunks
            "three_chunked_stages",  # chunks on two stages where transfers are waited for
            "unbiased_experts",  # tp of experts with biases
            "whole_experts",  # tp of any
            "causal_cp",  # cp of other attention, or with a bias, window or sink
            "shards_beside_tp",  # tp with offload or replicas and no rank to shard states over
        ],
        ...,
    ]
    schedules: tuple[str, ...]  # 1f1b with and (where vpp is) without interleaving, others
    # Layout of experts on the ranks of tp x cp x dp. inside_dp: split as other layers are, ep a
    # divisor of dp. folded: etp x ep x edp, any degrees that divide the ranks. folded_whole: ep
    # takes ranks of tp, cp and dp, and a rank's experts are whole; without ep split as the rest.
    expert_mesh: Literal["inside_dp", "folded", "folded_whole"]
    zero_stages: tuple[int, ...]  # ZeRO stages without pipelining
    frozen_zero_stages: tuple[int, ...]  # ZeRO stages where only adapters are trained
    # Weights it can train: all weights (full), adapters next to frozen ones (lora), or next to
    # weights in 4 bits (qlora).
    train: tuple[str, ...]
    usual_zero_stage: float  # the most that is meant where a layout names no stage
    offload: tuple[str, ...]  # what can live in host memory or on NVMe
    partial_offload_zero_stages: tuple[int, ...]  # where a part of the states can be offloaded
    policies: tuple[str, ...]  # for a layer's activations: none, selective, full, offloaded
    # Layers that share a policy for their saved activations: all together; or else the first N of
    # every (virtual) stage, recomputed in full or offloaded; or each by itself.
    policy_scope: Literal["model", "chunks", "layers"]
    vocab_padding: int  # vocabulary is padded to a multiple of this times tp (1: no padding)
    placements: tuple[str, ...]  # orders of the axes, innermost first; the usual one first
    # Switches that take less memory, cheapest first, as ``--set`` takes them, blanks between.
    memory_switches: tuple[str, ...]
    vendors: tuple[str, ...]  # makers of accelerators it is made for
    precisions: tuple[str, ...]  # precisions it trains in
    tp_families: tuple[str, ...]  # of models it can split; ``any``, or as in models/*.yaml

    def usual_etp(self, tp: Array | int, ep: Array | int) -> Array:
        """Ranks that split an expert where nothing is said: tp, or 1 for whole folded experts."""
        whole = (self.expert_mesh == "folded_whole") & (np.asarray(ep) > 1)
        return np.where(whole, 1, tp)


@dataclass(frozen=True, kw_only=True)
class FrameworkTraits:
    """One framework (or an older profile of it)."""

    name: str
    profile: str
    states: StateTraits
    kernels: KernelTraits
    recompute: RecomputeTraits
    overlap: OverlapTraits
    overheads: OverheadTraits
    offload: OffloadTraits
    support: SupportTraits
    optimizer: OptimizerSpec
    training: Training = FULL
    settings: tuple[Setting, ...] = ()  # traits a user set, in place of the profile's
    memory_uncertainty_fraction: float = 0.0  # error of peaks on published runs, of HBM
    time_ranges: Mapping[RunClass, TimeRange] = field(default_factory=dict)

    @property
    def zero_stages_with_pp(self) -> tuple[int, ...]:
        """ZeRO stages beside pipelining, of those without: what the pipeline's engine has."""
        most = 2 if self.states.pipeline_engine == "torch" else 1
        return tuple(stage for stage in self.support.zero_stages if stage <= most)

    def time_range(self, key: RunClass, accelerator: str) -> TimeRange:
        """Return how far iteration times of plans of a class may be off on an accelerator."""
        return narrowest(self.time_ranges, key).on(accelerator)


def traits_at_precision(traits: FrameworkTraits, precision: Precision) -> FrameworkTraits:
    """Traits in a training precision, which those given already may be under.

    Under fp8 linear layers keep quantised inputs. In 32 bits weights, gradients and kept
    activations take 4 bytes an element where they took 2, and the weights are their own master.
    """
    if precision == "fp16" and traits.states.shards_replica_states:
        return replace(traits, states=replace(traits.states, shards_replica_states=False))
    if precision in ("bf16", "fp16"):
        return traits
    kernels = traits.kernels
    if precision not in FULL_PRECISIONS:
        saved = kernels.saved.with_linear_input_bytes(
            1.0 if kernels.linears == "transformer_engine" else 2.0, is_fp8=precision == "fp8"
        )
        return replace(traits, kernels=replace(kernels, saved=saved))
    states, offload = traits.states, traits.offload
    widened = (
        "weight_bytes",
        "zero3_weight_bytes",
        "zero3_secondary_weight_bytes",
        "gradient_reduce_bytes",
        "zero2_gradient_bytes",
        "accumulated_gradient_bytes",
        "collected_head_gradient_bytes",
        "replica_bucket_bytes",
    )
    wide: dict[str, Any] = {name: traits_at_fp32(getattr(states, name)) for name in widened}
    return replace(
        traits,
        kernels=replace(kernels, saved=kernels.saved.in_32_bits(), widens_stream=False),
        states=replace(
            states,
            **wide,
            master_weight_bytes=0.0,
            shards_replica_states=False,
            gradient_bytes=element_bytes("fp32"),
            sharded_gradient_bytes=states.fp32_shard_bytes,
        ),
        offload=replace(
            offload,
            step_returned_bytes=traits_at_fp32(offload.step_returned_bytes),
        ),
    )


def traits_at_fp32(num_bytes: float) -> float:
    """Bytes an element of what has 16 bits, or 32, where all has 32; 0 where it is not there."""
    return max(num_bytes, element_bytes("fp32")) if num_bytes else 0.0
