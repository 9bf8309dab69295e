"""FrameworkTraits: what a training framework does that costs bytes or seconds.

The values live in ``planner/frameworks/traits/NAME.yaml`` and, where all frameworks share them, in
``planner/frameworks/traits/common.yaml``, each with its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from planner.spec.items import RunClass, TimeRange, narrowest
from planner.spec.saved import SavedTables
from planner.spec.training import FULL, Dequantisation, OptimizerSpec, Training
from planner.units import Array

ExpertOverlap = Literal["none", "shared_expert", "batches"]
UnitCopies = Literal["none", "flat", "split"]
# In ``tp_families``: every model's.
ANY_FAMILY = "any"
TraitValue = bool | float | str | tuple[float, ...] | tuple[str, ...]
# Dotted path of a trait, such as ``overlap.ring_achieved_fraction``, and its value.
Setting = tuple[str, TraitValue]


@dataclass(frozen=True, kw_only=True)
class StateTraits:
    """Bytes per parameter of weights, gradients and optimizer, and when they are sharded."""

    weight_bytes: float
    """Weights that the kernels read."""
    gradient_bytes: float
    """Gradients kept between micro-batches."""
    master_weight_bytes: float
    """fp32 weights that the optimizer updates; sharded from ZeRO stage 1, as its states are."""
    fp32_shard_bytes: float
    """Bytes of weights in fp32 training in addition to those that kernels read, from stage 1 on."""
    unsharded_gradient_copy_bytes: float
    """Further gradient copies that exist only without any sharding (stage 0)."""
    replica_bucket_bytes: float
    """Buckets that whole replicas reduce beside their gradients (stage 0, more than one rank)."""
    sharded_gradient_bytes: float
    """A further copy that exists only sharded (DeepSpeed's fp32 gradient partition)."""
    sharded_copies: Literal["gradients", "weights"]
    """Tensors that ``sharded_gradient_bytes`` copies."""
    zero3_weight_bytes: float
    """Weights kept sharded between uses under stage 3 (0 where the master shard serves)."""
    whole_tensor_gradient_bytes: float
    """Stage 2 keeps, per element, the whole gradient of every tensor its part touches."""
    splits_experts_by_number: bool
    """Stage 3 gives a rank whole experts: beyond their number they are not split further."""
    host_staging_bytes: float
    """Per owned parameter, pinned on the host beside offloaded optimizer states."""
    offload_staging_bytes: float
    """Per element of the largest tensor, on the device beside them below stage 3."""
    host_load_bytes: float
    """Per parameter of the whole model, in host memory of every rank while it loads, below stage
    3."""
    zero3_secondary_weight_bytes: float
    """A second copy of the weights, sharded inside the scale-up domain, for backward's gathers."""
    gradient_reduce_bytes: float
    """Bytes per gradient element on the wire."""
    zero2_gradient_bytes: float
    """Gradients kept, and on the wire, from stage 2 on; 0: as below it."""
    scatters_gradients: bool
    """False: stages 1 and 2 all-reduce whole gradients all the same."""
    broadcasts_weights: bool
    """Updated weights come from one rank after the other; otherwise they are gathered."""
    fp8_gathered_weight_bytes: float
    """Per element of a weight gathered under stage 3 in fp8 training; 2 otherwise."""
    sharded_over_cp: bool
    """The sharding group is dp x cp rather than dp."""
    gradients_made_in_backward: bool
    """Gradients do not exist before the first backward of an iteration."""
    step_temporary_bytes: float
    """Per owned parameter while the optimizer steps: temporaries of kernels over many tensors."""
    optimizer_state_fraction: float
    """Fraction of the optimizer's usual states: half where they have the type of 16-bit weights."""
    gathers_embedding_with_head: bool
    """Stage 3 keeps embedding and head gathered together, as one unit, and the last layer."""
    loss_inside_model: bool
    """The loss is part of the unit whose weights are gathered for it."""
    embedding_gradient_is_whole: bool
    """Every tp rank accumulates the whole embedding's gradient."""
    collected_head_gradient_bytes: float
    """Per element of the head: the gradient a chunked loss collects."""
    accumulated_gradient_bytes: float
    """Whole gradients kept between micro-batches from stage 2 on."""
    gathers_in_own_stream: bool
    """Gathered weights arrive in buffers of another stream, which nothing else may use."""
    reduces_every_micro_batch: bool
    """Gradients are reduced in every micro-batch from stage 2 on."""
    zero3_reshards_under_pp: bool
    """False: under pipelining the gathered weights and full gradients stay."""
    keeps_stage_outputs: Literal["no", "in flight", "all"]
    """Time that the pipeline keeps what a stage sent on: until its backward, or until the end of
    the iteration (the last stage then keeps all logits, and once more when they are joined)."""
    receives_into_own_buffers: bool
    """The pipeline keeps a receive buffer for every micro-batch of the iteration, both ways."""
    largest_gradient_copy_bytes: float
    """Per element of the largest gradient, copied in fp32 before it is reduced and kept."""
    zero3_gathered_layers: float
    """Layers whose gathered weights coexist at the peak (current and prefetched)."""
    shards_frozen_below_stage_3: bool
    """Stage 2 keeps a rank's shard of frozen weights beside the gathered ones."""
    frozen_shard_width: float
    """Width of a shard of frozen weights over that of the gathered ones: 2 where shards are
    fp32."""
    zero3_live_elements: float
    """Most gathered elements at a time."""
    zero3_step_elements: float
    """Under stage 3, most elements of a shard whose gradients are copied at a time for the step; 0:
    all of them."""
    zero3_keeps_ends_gathered: bool
    """Under stage 3 embedding and head, which are no units, are gathered once an iteration and
    kept; their gradients are sharded as those of layers."""
    whole_gradient_units: float
    """Units whose whole gradients coexist from stage 2 on: being made, and being reduced."""
    whole_gradient_elements: float
    """Whole gradients that may wait for their reduction under stage 2, where that is more."""


@dataclass(frozen=True, kw_only=True)
class KernelTraits:
    """Tensors that layer kernels save for backward, and their traffic through HBM."""

    attention: Literal["fused", "flash2", "flash_attn", "unfused"]
    """``fused``: the vendor library's kernel; ``flash2``: torch's choice, FlashAttention-2 before
    Blackwell; ``flash_attn``: the package of FlashAttention-2 on any device."""
    attention_rate_fraction: float
    """Fraction of the kernel's rate in hwdb; below 1 for older generations of the kernel, and for
    the batched GEMMs of unfused attention against large GEMMs."""
    ring_attention_overhead_fraction: float
    """Attention grows by this · (1 - 1/cp): merging partial results, small blocks."""
    exchanges_context: bool
    """Context parallelism exchanges heads (all-to-all) instead of passing keys round a ring."""
    attention_in_8_bit: bool
    """The fused kernel computes in the job's 8 bits, where hwdb has its rate; else in 16."""
    head_in_8_bit: bool
    """The vocabulary projection is in the job's 8 bits; else in 16."""
    dropout: bool
    saved: SavedTables
    """Tensors the kernels keep for backward, those of the loss included."""
    loss: str
    """Name of the vocabulary loss; its tensors are section ``loss`` of ``saved``."""
    fp8_linear_input_bytes: float
    """Bytes that linear layers save of their input under fp8 and fp4, instead of 2 bytes."""
    block_forward_bytes: float
    """Memory-bound traffic of norms, residuals and dropouts per token and hidden element."""
    block_backward_bytes: float
    scaled_rotary_forward_bytes: float
    """Traffic per element of queries and keys to turn and scale them where that is not fused; as
    that of clamps."""
    scaled_rotary_backward_bytes: float
    """The same in backward."""
    mlp_forward_bytes_plain: float
    mlp_forward_bytes_gated: float
    mlp_backward_bytes_plain: float
    mlp_backward_bytes_gated: float
    clamp_forward_bytes: float
    """Traffic per element of an expert's width to clamp gates, beside the activation's own: what
    the framework's usual kernels would move meanwhile, where these are slower."""
    clamp_backward_bytes: float
    """The same in backward."""
    expert_bias_forward_bytes: float
    """Traffic per pair and hidden element to add an expert's second bias, weighted by the router's
    probability; as that of clamps."""
    expert_bias_backward_bytes: float
    """The same in backward, with the bias's own gradient."""
    expert_bias_forward_kernels: float
    """Kernels per expert of a rank that add it: each takes its start beside its traffic."""
    expert_bias_backward_kernels: float
    """The same in backward."""
    stashes_experts: bool
    """True if what experts save is copied out of buffers of fixed size in forward, and back in
    backward."""
    fused_experts: bool
    """One kernel computes an expert's products with biases, clamps and activation."""
    memory_bound_multiplier: float
    loss_traffic_bytes: float
    """Per logit, moved through HBM by the loss, forward and backward together."""
    weight_gradient_bytes: float
    """Traffic per parameter and micro-batch to accumulate the weight gradient."""
    unit_copies: UnitCopies
    """Copies of weights and gradients through HBM by sharding units: none, FSDP1's flat parameters,
    FSDP2's separate ones."""
    deduplicated_dispatch: bool
    """Expert dispatch sends a token once to each remote domain (DeepEP, HybridEP)."""
    permutation_slowdown: float
    """Time per byte of the kernels that sort tokens by expert, over the framework's others."""
    sorting_forward_bytes: float
    """Traffic per pair and hidden element to sort a rank's tokens by expert, to weigh what experts
    return and to put it back."""
    sorting_backward_bytes: float
    """The same in backward."""
    chunk_sorting_forward_bytes: float
    """Traffic per pair and hidden element to sort beside the experts what came, and back."""
    chunk_sorting_backward_bytes: float
    """The same in backward."""
    dispatch_permutes: bool
    """The dispatcher sorts tokens in kernels of its own, at the pace of others (HybridEP)."""
    router_forward_kernels: float
    """Kernels that choose a mixture layer's experts, count and index their tokens, and take the
    router's losses: each as long as it takes to start."""
    router_backward_kernels: float
    """The same in backward."""
    grouped_rate_fraction: float
    """Rate of grouped products of experts over that of dense ones of an expert's tokens."""
    products_in_16_bit: Literal["none", "experts", "linears"]
    """GEMMs of a job in 8 or 4 bits that stay in 16: routed experts', or all others."""
    gathers_expert_pairs: bool
    """Ranks that split an expert gather token-expert pairs after the exchange; else tokens, once
    for all experts, before routing."""
    dummy_weight_gradient_bytes: float
    """Per element of one weight per distinct linear shape, kept for ever beside fused
    weight-gradient accumulation (Transformer Engine), which stages from 2 on do without."""
    adapters: Literal["peft", "16-bit", "compiled", "megatron"]
    """Implementation of low-rank adapters, as :mod:`planner.layers.adapters` describes them."""
    adapter_dropout: bool
    """Their inputs go through dropout."""
    widens_stream: bool
    """Beside a 4-bit base, embedding, head and norms are fp32, and with them what flows between
    layers."""
    dequantisation: Dequantisation
    """Method by which matrices of a 4-bit base are rebuilt."""
    launch_s: float
    """Host seconds to launch one kernel, the framework's way to it included: with the number of
    kernels a floor under the time of a layer's pass."""
    eager_launch_s: float
    """The same for a kernel of torch itself, where the framework's other launches take longer."""
    waits_for_kernels: bool
    """The host waits for every kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1)."""
    stops_recomputation: bool
    """A block that is recomputed in full is repeated up to the last tensor that backward needs:
    without its last product."""
    memory_bound_kernels: float
    """Kernels of an op that moves data through HBM: one where norms, activations and the like are
    fused."""
    gathered_module_s: float
    """Host seconds per pass in hooks of a module whose weights are gathered; 0: it has none."""
    grouped_launch_s: float
    """Host seconds per expert and grouped product, where it is launched expert by expert."""
    moe_launch_forward_s: float
    """Least host seconds to launch one mixture layer's forward, routing and dispatch included,
    grouped products not."""
    moe_launch_backward_s: float
    """The same for its backward."""
    cuda_graph_fraction: float
    """Share of those launches that CUDA graphs replay."""
    paired_launch_multiplier: float
    """Host time of a mixture layer that runs beside another micro-batch's, over what it takes
    alone."""
    host_waits: tuple[str, ...]
    """Ops of a mixture layer behind which the host waits for the device in forward."""
    padded_host_waits: tuple[str, ...]
    """The same where experts are padded to their capacity."""
    expert_capacity_factor: float
    """Most tokens that an expert takes from a rank, over the mean; 0: all that are sent to it."""
    pads_to_capacity: bool
    """Every expert gets that many, padding among them."""

    @property
    def flash_kernel(self) -> Literal["fused", "flash2", "flash_attn"]:
        """Kernel of what is never computed unfused: mixers' scans and sparse attention."""
        return "flash2" if self.attention == "unfused" else self.attention

    @property
    def joins_adapters(self) -> bool:
        """One adapter stands beside a product, whatever it holds, and is split over tp as it is.

        Else one beside each projection.
        """
        return self.adapters == "megatron"


@dataclass(frozen=True, kw_only=True)
class RecomputeModule:
    """Something selective recomputation can repeat in backward instead of keeping it."""

    name: str
    drops: tuple[str, ...] = ()
    """Patterns of tensor names (``op.tensor``, with * and ?) that are not kept."""
    repeats: Mapping[str, float] = field(default_factory=dict)
    """Share of the forward repeated, by op."""
    only_beside: Mapping[str, str] = field(default_factory=dict)
    """Ops it touches only in layers that also hold another op."""


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

    tensor_parallel_overlap: Literal["none", "bulk", "ring"]
    """Gathers and scatters of sequence parallelism run beside a product that does not need them,
    or beside the chunks of the one that does."""
    overlaps_input_gradients: bool
    """True if, in backward, layers split by column overlap the exchange of their input's gradient
    with the GEMM of the weight's, and the gather of their input with the other."""
    ring_achieved_fraction: float
    """Fraction achieved of what the chunks could hide."""
    expert_all_to_all_overlap: ExpertOverlap
    """Expert dispatch and combine run beside the shared expert, or beside the other pass of
    another micro-batch."""
    overlaps_gradient_reduction: bool
    """Buckets of gradients are reduced while backward makes the next ones."""
    overlaps_parameter_gather: bool
    """Updated weights are gathered bucket by bucket during the next forward."""
    gradient_bucket_elements: float
    """Gradients reduced in one message; 0: those of one layer."""
    gradient_bucket_elements_per_rank: float
    """Times the data-parallel ranks, where that is more."""
    weight_gather_elements: float
    """Weights gathered in one message under stage 3, but no less than one tensor; 0: a layer's."""
    pipeline_p2p_overlap: Literal["none", "interleaved", "all"]
    """Schedules whose transfers between stages run beside computation."""
    communication_multiprocessors: float
    """Multiprocessors a collective's kernel holds while it runs."""
    optimizer_waits_for_all_stages: bool
    """False: a stage's optimizer step starts when its own backwards are done."""


@dataclass(frozen=True, kw_only=True)
class OverheadTraits:
    """Memory and time that belong to no tensor."""

    context_bytes: float
    """Bytes of the device context, where hwdb has no figure for the accelerator."""
    bucket_elements: float
    """Elements of one gradient or weight bucket, in 16 bits."""
    num_buckets: float
    """Number of such buckets that stay allocated; none is larger than the rank's parameters."""
    workspace_bytes: float
    """Matrix libraries' workspaces and fixed buffers, inside the allocator."""
    grouped_gemm_workspace_bytes: float
    """Further workspace of grouped GEMMs, for mixtures."""
    communicator_bytes: float
    """Per process group with more than one rank."""
    fragmentation_fraction: float
    """Reserved over allocated, minus one."""
    held_gradient_pass_bytes: float
    """Per iteration and gradient a rank holds: zeroing, scaling by the number of replicas."""
    owned_gradient_pass_bytes: float
    """Per iteration and gradient a rank updates: casts, overflow check, norm, clipping, and the
    copy of new weights; the optimizer's own kernel apart."""
    speed_variation_fraction: float
    """Standard deviation of the speed of equal accelerators, over its mean."""
    step_overhead_s: float
    """Seconds of the rest: logging, host synchronisation, the data path."""
    node_step_overhead_s: float
    """Further seconds of a step on several nodes."""


@dataclass(frozen=True, kw_only=True)
class OffloadTraits:
    """Traffic of offloaded states over the host link and in host memory, and what waits for it."""

    host_step_bytes: float
    """Through host memory per parameter a rank owns, in all passes of the optimizer's step."""
    host_threads: Literal["one", "share"]
    """Threads of a rank in that step: one, or its share of the node's cores."""
    host_bandwidth_fraction: float
    """Fraction of the datasheet's rate of host memory that those threads of all ranks reach
    together."""
    host_optimizer_slowest_factor: float
    """The slowest published rate over the modelled one."""
    host_optimizer_fastest_factor: float
    """The fastest."""
    host_step_beside: Literal["nothing", "transfers", "backward"]
    """Work that overlaps the host's step: nothing; its own transfers; those and backward."""
    step_gradient_bytes: float
    """Per owned gradient over the host link for the step, there and back; below stage 3."""
    zero3_step_gradient_bytes: float
    """The same under stage 3."""
    waited_gradient_zero_stages: tuple[int, ...]
    """ZeRO stages whose backward does not hide those gradients."""
    gradient_passes_per_micro_batch: float
    """Times sharded gradients cross the host link in every micro-batch but the last, from stage 2
    on: there, and back where they are added up on the device."""
    step_returned_bytes: float
    """Per owned parameter over the host link after the step, where weights live on the device."""
    pageable_weight_zero_stages: tuple[int, ...]
    """ZeRO stages whose updated weights come from memory that is not pinned."""
    fetched_weight_bytes: float
    """Per offloaded parameter over the host link and pass; device copies may be smaller."""
    is_pinned: bool
    """Offloaded states live in pinned memory; else transfers are slower and hide nowhere."""
    pageable_rate_fraction: float
    """Fraction of the host link's rate that memory reaches if it is not pinned."""
    nvme_step_bytes: float
    """Per owned parameter read from NVMe in a step, and as many written, by states there."""
    nvme_pipelined: bool
    """True if those reads and writes overlap the host's step."""


@dataclass(frozen=True, kw_only=True)
class SupportTraits:
    """Features that the framework can run at all."""

    tp: bool
    pp: bool
    vpp: bool
    schedules: tuple[str, ...]
    """Pipeline schedules it can run, 1f1b with and (where vpp is) without interleaving."""
    cp: bool
    ep: bool
    expert_mesh: Literal["inside_dp", "folded", "folded_whole"]
    """Layout of experts on the ranks of tp x cp x dp. inside_dp: split as other layers are, ep a
    divisor of dp. folded: etp x ep x edp, any degrees that divide the ranks. folded_whole: ep takes
    ranks of tp, cp and dp, and a rank's experts are whole; without ep split as the rest."""
    sequence_parallel: bool
    zero_stages: tuple[int, ...]
    zero_stages_with_pp: tuple[int, ...]
    frozen_zero_stages: tuple[int, ...]
    """ZeRO stages in place of those where only adapters are trained."""
    frozen_precisions: tuple[str, ...]
    """Precisions available where only adapters are trained."""
    joined_families: tuple[str, ...]
    """Families of models whose code joins projections of a layer: what adapters they then have is
    not known here."""
    train: tuple[str, ...]
    """Weights it can train: all weights (full), adapters next to frozen ones (lora), or next to
    weights in 4 bits (qlora)."""
    usual_zero_stage: float
    """The most that is meant where a layout names no stage."""
    hybrid_sharding: bool
    """States can be sharded inside groups that are replicated over the rest of dp."""
    offload: tuple[str, ...]
    offload_percents: tuple[int, ...]
    """Percentages of the optimizer's states that can be offloaded; those a search tries."""
    partial_offload_zero_stages: tuple[int, ...]
    """ZeRO stages under which only a part of them can be."""
    activation_offload: Literal["no", "without pipelining", "yes"]
    """Saved activations of chosen layers can live in host memory until their backward."""
    policies: tuple[str, ...]
    """Policies for a layer's saved activations: none, selective, full, offloaded."""
    policy_scope: Literal["model", "chunks", "layers"]
    """Layers that share a policy for their saved activations: all together; or else the first N of
    every (virtual) stage, recomputed in full or offloaded; or each by itself."""
    sequence_parallel_required: bool
    """Tensor parallelism always splits norms and residuals too."""
    uneven_stages: bool
    vocab_padding: int
    """Vocabulary is padded to a multiple of this times tp (1: no padding)."""
    placements: tuple[str, ...]
    """Orders in which it places the axes on the ranks, innermost first; the usual one first."""
    memory_switches: tuple[str, ...]
    """Switches that take less memory, cheapest first: each a ``profile=NAME`` of the framework, or
    the traits that say it, ``SECTION.KEY=VALUE`` with blanks between."""
    vendors: tuple[str, ...]
    """Makers of accelerators it is made for."""
    precisions: tuple[str, ...]
    """Precisions it trains in."""
    tp_families: tuple[str, ...]
    """Families of models whose layers it can split; ``any``, or names as in models/*.yaml."""
    tp_alone: Literal["yes", "without offload", "no"]
    """Tensor parallelism runs where no rank is left to shard states over."""
    replicates_kv_heads: bool
    """Key and value heads can be fewer than the ranks they are split over."""
    mixtures_need_sequence_parallel: bool
    """A mixture is split by tensor parallelism only together with sequence parallelism."""
    expert_capacity: bool
    """Experts can have a capacity, with tokens beyond it dropped or all padded to it."""
    splits_experts: Literal["any", "unbiased", "no"]
    """Experts that tensor parallelism can split over ranks."""
    cp_attention: Literal["any", "causal"]
    """``causal``: context parallelism runs plain causal attention only, with no biases, windows
    or sinks."""
    pipelines_tied_embeddings: bool
    """Embedding and head can be one matrix although they lie on different stages."""
    fills_pipeline: bool
    """A pipeline without chunks needs as many micro-batches as stages."""
    fewest_waiting_chunked_stages: int
    """Stages that chunks need at least where transfers between stages are waited for."""
    batch_overlap_needs_chunks: bool
    """Expert exchange beside another micro-batch is offered under pipelining with chunks only."""
    paired_graph_zero_stages: tuple[int, ...]
    """ZeRO stages under which it runs with CUDA graphs of parts of a layer."""
    trains_mtp: bool
    """Layers behind the last one can be trained to predict further tokens."""
    nvme_zero_stages: tuple[int, ...]
    """ZeRO stages under which what is offloaded can go to NVMe."""

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
    settings: tuple[Setting, ...] = ()
    """Traits a user set, in place of the profile's."""
    memory_uncertainty_fraction: float = 0.0
    """Error of modelled peaks on published runs of the framework, as a fraction of HBM."""
    time_ranges: Mapping[RunClass, TimeRange] = field(default_factory=dict)

    def time_range(self, key: RunClass, accelerator: str) -> TimeRange:
        """Return how far iteration times of plans of a class may be off on an accelerator."""
        return narrowest(self.time_ranges, key).on(accelerator)
