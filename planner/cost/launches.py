"""Time the host takes to launch a layer's kernels: a floor under the time they take to run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.layers.op import ZERO, Op
from planner.layers.parameters import WITH_EXPERTS
from planner.spec.cluster import NodeSpec
from planner.spec.items import item
from planner.spec.job import Precision
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import FrameworkTraits, KernelTraits
from planner.units import Array

if TYPE_CHECKING:
    from planner.layers.block import LayerGroup

# Of the host's time for a mixture layer: what stands before the router, and the router with what
# prepares the exchange, where it is fused; counted in the modules.
HOST_SHARES = {"attention": 0.2, "router": 0.1}
# Host time to call one expert's product with scales per block, over one without.
#
# Source: Nemotron 3 Super on 64 B300, 64 experts a rank, slower in MXFP8 and NVFP4 than in bf16
# (NVIDIA-NeMo/Megatron-Bridge pull request 6056, docs/performance-summary.md); plausible 1-3.75:
# 8 experts of NVFP4 alone take 33 us each (NVIDIA/TransformerEngine pull request 3134).
SCALED_CALLS: Mapping[Precision, float] = {"fp8_block": 1.6, "mxfp8": 1.6, "fp4": 1.6}
# Hooks per product of an expert in a loop (three linear layers, an activation, itself), over a
# linear layer's. Source: measured, DeepSpeed 0.19.8 on two processors: 11.0 ms an expert, 2.4 one.
LOOPED_HOOKS = 2.3


def slower_host(kernels: KernelTraits, factor: float) -> KernelTraits:
    """The kernels where a host takes so many times as long to launch them."""
    names = ("launch_s", "eager_launch_s", "grouped_launch_s", "gathered_module_s")
    slower: dict[str, Any] = {name: factor * getattr(kernels, name) for name in names}
    forward, backward = kernels.moe_launch_s
    return replace(kernels, **slower, moe_launch_s=(factor * forward, factor * backward))


def on_hosts_of(traits: FrameworkTraits, precision: Precision, node: NodeSpec) -> FrameworkTraits:
    """Traits with the launch times of a job's precision on a node's hosts.

    All times ``launch_factor``, experts' products times SCALED_CALLS. Source: that, and hwdb.
    Excludes quantising, which is launched for all experts at once.
    """
    kernels = slower_host(traits.kernels, node.launch_factor)
    scaled = SCALED_CALLS.get(precision, 1.0) if "experts" in kernels.in_8_bit else 1.0
    called = replace(kernels, grouped_launch_s=scaled * kernels.grouped_launch_s)
    return replace(traits, kernels=called)


def grouped_calls(op: Op) -> Array:
    """Products of a rank's experts that one pass through an op calls one by one; C.

    Experts on the rank times grouped products: general_grouped_gemm of Transformer Engine.
    """
    return ZERO + sum(gemm.count for gemm in op.gemms if op.is_expert)


def launches(
    op: Op, kernels: KernelTraits, strategy: StrategyColumns, *, backward: bool = False
) -> Array:
    """Kernels that the host launches in one op's forward, or its backward; C.

    One for every product, batched and grouped ones included (in backward two, one where its weight
    is frozen), and for fused attention; those that move the op's traffic through HBM, the
    framework's number, none where its own are counted apart; one for every collective.
    Source: counted in the frameworks' modules. Excludes views and allocations, part of a launch.
    """
    products = sum(2.0 if backward and not gemm.is_frozen else 1.0 for gemm in op.gemms)
    moved = op.backward_bytes if backward else op.forward_bytes
    moves = 0.0 if op.has_own_kernels else kernels.memory_bound_kernels
    own = products + op.small_kernels[backward] + op.tiny_kernels[backward]
    collectives = ZERO + sum(
        np.where((getattr(strategy, comm.axis) > 1) & (comm.num_bytes > 0), 1.0, 0.0)
        for comm in op.comms[backward]
    )
    return own + (op.attention is not None) + moves * (moved > 0) + collectives


# Seconds of a layer's forward, its backward and a repeated forward.
Passes = tuple[Array, Array, Array]


def router_launches_s(kernels: KernelTraits) -> tuple[float, float]:
    """Host seconds of an eager router's kernels beyond a fused one's, forward and backward.

    ``max(number - fused, 0) · eager_launch_s``. Source: numbers counted in the framework's modules.
    """
    # A fused router has 10 and 6, as in the runs that the floors of mixtures were fitted on.
    forward, backward = kernels.router_kernels
    more, more_back = max(forward - 10.0, 0.0), max(backward - 6.0, 0.0)
    return more * kernels.eager_launch_s, more_back * kernels.eager_launch_s


def launch_floors_s(
    group: "LayerGroup", kernels: KernelTraits, strategy: StrategyColumns
) -> Passes:
    """Host seconds to launch one layer's forward, its backward and a repeated forward; C each.

    ``launches · launch_s``, for a mixture at least what routing and dispatch were seen to take
    (with :func:`router_launches_s`), and ``calls · grouped_launch_s`` for the products of its
    experts (:func:`grouped_calls`, twice in backward). All less what CUDA graphs replay: graphs of
    a part of the layer leave experts out, whose products only a whole iteration's graph replays.
    """
    launched = 1.0 - kernels.cuda_graph_fraction
    forward, backward = (
        sum((launches(op, kernels, strategy, backward=back) for op in group.ops), ZERO)
        * kernels.launch_s
        for back in (False, True)
    )
    if group.name not in WITH_EXPERTS:
        spared = [launches(op, kernels, strategy) for op in group.ops if op.is_spared]
        repeated = forward - sum(spared) * kernels.launch_s
        return forward * launched, backward * launched, repeated * launched
    calls_s = sum(grouped_calls(op) for op in group.ops) * (
        kernels.grouped_launch_s * (launched > 0)
    )
    more, more_back = router_launches_s(kernels)
    forward = np.maximum(forward, kernels.moe_launch_s[0] + more) * launched
    backward = np.maximum(backward, kernels.moe_launch_s[1] + more_back) * launched
    # A product's backward has two kernels: the gradients of its operands.
    return forward + calls_s, backward + 2.0 * calls_s, forward + calls_s


def segments(names: Sequence[str], waits: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Places of the ops between two waits of the host.

    Those behind a layer's last wait stand with those before its first. Empty without waits.
    """
    ends = [place for place, name in enumerate(names) if name in waits]
    parts = [tuple(range(low + 1, high + 1)) for low, high in pairwise(ends)]
    if not ends:
        return ()
    return (*parts, (*range(ends[-1] + 1, len(names)), *range(ends[0] + 1)))


def op_floors_s(
    ops: Sequence[Op], kernels: KernelTraits, strategy: StrategyColumns, floor_s: Array
) -> list[Array]:
    """Host seconds of each op's forward in a mixture layer; C each, ``floor_s`` in all.

    :func:`router_launches_s` and ``calls · grouped_launch_s`` of router and experts; of the rest
    :data:`HOST_SHARES` to what stands before the router, dealt out evenly, and to the router, and
    what is left behind it by launches. Source: derived; the shares are those of partial CUDA
    graphs. Excludes how they differ from framework to framework.
    """
    before = [op.name for op in ops].index("router")
    eager_s = router_launches_s(kernels)[0] * (1.0 - kernels.cuda_graph_fraction)
    calls_s = [grouped_calls(op) * kernels.grouped_launch_s for op in ops]
    rest_s = np.maximum(floor_s - sum(calls_s) - eager_s, 0.0)
    numbers = [launches(op, kernels, strategy) for op in ops[before + 1 :]]
    behind_s = rest_s * (1.0 - sum(HOST_SHARES.values())) / sum(numbers)
    return [
        *[rest_s * (HOST_SHARES["attention"] / before)] * before,
        rest_s * HOST_SHARES["router"] + eager_s,
        *(
            number * behind_s + call_s
            for number, call_s in zip(numbers, calls_s[before + 1 :], strict=True)
        ),
    ]


def segmented_waits_s(
    parts: Sequence[tuple[int, ...]],
    op_s: Sequence[Array],
    op_floor_s: Sequence[Array],
    backward_s: Array,
    backward_floor_s: Array,
) -> Passes:
    """Return :func:`launch_waits_s` where the host waits for the device in every forward.

    Over the segments of the forward (:func:`segments`), the largest of ``Σ launches up to an op -
    Σ kernels before it``: a host that has waited starts anew, with nothing launched ahead, so that
    the first op waits for its launches and no segment makes up for another. Of the backward as a
    whole ``max(launches - kernels, 0)``. Which ops end one is a trait: counts of tokens are copied
    to the host before an exchange of unequal parts, and ``masked_select`` waits for the size of its
    result. Source: MoEAlltoAllTokenDispatcher and permute in
    megatron/core/transformer/moe/token_dispatcher.py and moe_utils.py. Excludes kernels of an op
    that run while its others are launched, and an exchange beside another micro-batch.
    """
    forward = ZERO
    for part in parts:
        launched = ran = waited = ZERO
        for place in part:
            launched = launched + op_floor_s[place]
            waited = np.maximum(waited, launched - ran)
            ran = ran + op_s[place]
        forward = forward + waited
    return forward, np.maximum(backward_floor_s - backward_s, 0.0), forward


def paired_launch_pace(group: "LayerGroup", traits: FrameworkTraits) -> float:
    """Host time of a layer's launches over what it takes alone: beside another micro-batch's.

    ``paired_launch_multiplier`` for mixtures whose exchanges run beside another micro-batch.
    Source: the trait, from a pair of published runs. Excludes what it costs in 8 bits beyond that.
    """
    is_paired = traits.overlap.expert_all_to_all_overlap == "batches" and group.name in WITH_EXPERTS
    return traits.kernels.paired_launch_multiplier if is_paired else 1.0


def module_hooks_s(group: "LayerGroup", kernels: KernelTraits, strategy: StrategyColumns) -> Array:
    """Host seconds per pass of a layer in hooks around modules whose weights are gathered; C.

    ``modules · gathered_module_s`` at ZeRO stage 3: norms and products with a weight; of experts
    LOOPED_HOOKS each where they are called one by one, else one a product, as of stacked weights or
    a leaf module. Source: fetch_sub_module and release_sub_module around every module, in Python,
    which no graph replays (deepspeed/runtime/zero/parameter_offload.py). Excludes others without
    weights, and counts projections of one product (queries, keys and values; gate and up) as one.
    """
    per_expert = LOOPED_HOOKS * (kernels.grouped_launch_s > 0)
    weights = ZERO + sum(
        np.maximum(per_expert * gemm.count, 1.0) if op.is_expert else ZERO + gemm.count
        for op in group.ops
        for gemm in op.gemms
        if gemm.has_weight
    )
    norms = sum("norm" in op.name for op in group.ops)
    return (weights + norms) * kernels.gathered_module_s * (strategy.zero_stage >= 3)


@item(
    "time.compute.launch",
    title="kernel launches",
    inputs=(
        "node.launch_factor",
        "job.precision",
        "traits.kernels.launch_s",
        "traits.kernels.memory_bound_kernels",
        "traits.kernels.grouped_launch_s",
        "traits.kernels.gathered_module_s",
        "traits.kernels.moe_launch_s",
        "traits.kernels.cuda_graph_fraction",
        "traits.kernels.paired_launch_multiplier",
        "traits.kernels.eager_launch_s",
        "traits.kernels.host_waits",
    ),
    also=(
        segmented_waits_s,
        paired_launch_pace,
        launch_floors_s,
        on_hosts_of,
        module_hooks_s,
        op_floors_s,
        router_launches_s,
        launches,
        grouped_calls,
    ),
)
def launch_waits_s(
    kernels_s: Passes, floors_s: Passes, *, waits_for_kernels: bool = False
) -> Passes:
    """Seconds a layer's kernels wait for the host: in forward, in backward, in a repeated forward.

    Launching is asynchronous, so that the host runs ahead in one pass what it lacks in the other:
    a micro-batch takes ``max(kernels, launches)`` of all its passes together, each the sum over
    passes. What is waited is dealt out to the passes that lack it. A repeated forward waits for
    what the sum with it is longer than without it. A host that waits for every kernel
    (CUDA_LAUNCH_BLOCKING) is never ahead: all launches show. Where it waits in every forward:
    :func:`segmented_waits_s`.
    """
    if waits_for_kernels:
        return floors_s
    forward, backward, again = (
        floor - seconds for floor, seconds in zip(floors_s, kernels_s, strict=True)
    )
    short_forward = np.maximum(forward, 0.0)
    short_backward = np.maximum(backward, 0.0)
    lacking = forward + backward
    waited = np.maximum(lacking, 0.0)
    short = short_forward + short_backward
    share = np.divide(waited, short, out=np.zeros_like(short), where=short > 0)
    repeated = np.maximum(lacking + again, 0.0) - waited
    return short_forward * share, short_backward * share, np.maximum(repeated, 0.0)


def host_waits(group: "LayerGroup", traits: FrameworkTraits) -> tuple[str, ...]:
    """Ops of a layer behind which the host waits for the device and is nowhere ahead of it.

    Not where a graph replays all, or an exchange beside another micro-batch keeps the device busy.
    """
    kernels = traits.kernels
    keeps_busy = traits.overlap.expert_all_to_all_overlap == "batches"
    is_graph = kernels.cuda_graph_fraction >= 1.0
    if group.name not in WITH_EXPERTS or keeps_busy or is_graph or kernels.waits_for_kernels:
        return ()
    return kernels.padded_host_waits if kernels.pads_to_capacity else kernels.host_waits


def layer_waits_s(
    group: "LayerGroup",
    pass_s: Passes,
    op_s: Sequence[Array],
    traits: FrameworkTraits,
    strategy: StrategyColumns,
) -> Passes:
    """Return the time a layer's forward, backward and repeated forward wait for the host; C each.

    ``pass_s``: of these three; ``op_s``: of the forward's ops, of which all hide the same share.
    """
    kernels = traits.kernels
    pace = paired_launch_pace(group, traits)
    forward_s, backward_s, repeated_s = launch_floors_s(group, kernels, strategy)
    hooks_s = module_hooks_s(group, kernels, strategy)
    floors = forward_s * pace + hooks_s, backward_s * pace + hooks_s, repeated_s * pace + hooks_s
    parts = segments([op.name for op in group.ops], host_waits(group, traits))
    if not parts:
        return launch_waits_s(pass_s, floors, waits_for_kernels=kernels.waits_for_kernels)
    shown = pass_s[0] / sum(op_s)
    op_floors = op_floors_s(group.ops, kernels, strategy, floors[0])
    return segmented_waits_s(
        parts, [each * shown for each in op_s], op_floors, pass_s[1], floors[1]
    )
