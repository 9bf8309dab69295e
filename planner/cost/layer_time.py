"""Seconds of one layer's ops per pass: kernels, collectives and what of them shows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from planner.cost.attention_kernels import flash_attention_backward_s, flash_attention_forward_s
from planner.cost.kernels import (
    CAST_BYTES,
    element_wise_s,
    gemm_backward_s,
    gemm_s,
    permutation_pace,
)
from planner.cost.launches import host_waits, layer_waits_s, on_hosts_of
from planner.cost.network import COLLECTIVE_FORMULAS, collective_s, exchange_start_s
from planner.cost.overlap import (
    exposed_all_to_all_s,
    exposed_beside_s,
    exposed_tensor_parallel_s,
    interference_fraction,
)
from planner.cost.topology import group_of
from planner.layers.attention import core_op, tp_entry_comms, tp_exit_comms
from planner.layers.block import LayerGroup, embedding_comms, head_comms
from planner.layers.mlp import exchange_op, expert_split_comms, sorting_traffic
from planner.layers.op import ZERO, Comm, Gemm, Op
from planner.spec.cluster import AcceleratorSpec, ClusterSpec
from planner.spec.items import FABRIC, SCALE_UP, SHAPE, item
from planner.spec.job import FULL_PRECISIONS, JobSpec, Precision
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import FrameworkTraits, KernelTraits
from planner.units import Array

# Where collectives are counted: those of a split expert beside those of other split layers.
COMM_ITEM = {
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "etp": "tensor_parallel",
}
COMM_ITEMS = ("tensor_parallel", "context_parallel", "expert_parallel")


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds a resource is busy, and seconds by which the iteration grows because of it."""

    busy_s: Array
    exposed_s: Array

    def __add__(self, other: "Duration") -> "Duration":
        return Duration(
            busy_s=self.busy_s + other.busy_s, exposed_s=self.exposed_s + other.exposed_s
        )

    def __mul__(self, factor: Array | float) -> "Duration":
        return Duration(busy_s=self.busy_s * factor, exposed_s=self.exposed_s * factor)


TimeItems = dict[str, Duration]
GemmPrice = Callable[[Gemm, AcceleratorSpec, Precision], Array]


def add_items(*parts: TimeItems) -> TimeItems:
    """Add durations item by item."""
    total: TimeItems = {}
    for part in parts:
        for name, duration in part.items():
            total[name] = total[name] + duration if name in total else duration
    return total


def scale_items(items: TimeItems, factor: Array | float) -> TimeItems:
    """Multiply every duration by a factor."""
    return {name: duration * factor for name, duration in items.items()}


def exposed_s(items: TimeItems) -> Array:
    """Sum of exposed seconds."""
    return ZERO + sum(duration.exposed_s for duration in items.values())


@dataclass(frozen=True, kw_only=True)
class PricingInputs:
    """Inputs of pricing an op besides the op."""

    job: JobSpec
    cluster: ClusterSpec
    traits: FrameworkTraits
    strategy: StrategyColumns
    _known: dict[tuple[object, ...], Array] = field(default_factory=dict)

    def comm_s(self, comm: Comm) -> Array:
        """Seconds of a collective; many ops have equal ones, which are priced once."""
        sizes = (comm.num_bytes.tobytes(), comm.domain_bytes.tobytes())
        key = (comm.collective, comm.axis, comm.copies_per_token, *sizes)
        if key not in self._known:
            group = group_of(comm.axis, self.strategy, self.cluster)
            num_bytes = comm.num_bytes + comm.domain_bytes * (group.local / group.size)
            seconds = collective_s(
                comm.collective, num_bytes, group, self.cluster, comm.copies_per_token
            )
            if comm.axis == "ep" and comm.collective == "all_to_all":
                seconds = seconds + exchange_start_s(comm.num_bytes, group)
            self._known[key] = seconds
        return self._known[key]


@item(
    "time.tensor_parallel",
    title="tensor-parallel communication",
    inputs=(
        "strategy.tp",
        "strategy.etp",
        *SCALE_UP,
        "traits.overlap.tensor_parallel_overlap",
        "traits.overlap.overlaps_input_gradients",
    ),
    also=(
        tp_entry_comms,
        tp_exit_comms,
        embedding_comms,
        head_comms,
        expert_split_comms,
        exposed_tensor_parallel_s,
        exposed_beside_s,
        *COLLECTIVE_FORMULAS,
    ),
)
@item(
    "time.context_parallel",
    title="context-parallel communication",
    inputs=(
        "strategy.cp",
        *SCALE_UP,
        *FABRIC,
    ),
    also=(core_op, *COLLECTIVE_FORMULAS),
)
def _comm_items(
    comms: tuple[Comm, ...],
    inputs: PricingInputs,
    gemm_time: Array,
    chunk_time: Array,
    other_time: Array,
) -> TimeItems:
    """Collectives of an op; those of tensor parallelism beside its products, an equal share each.

    All-reduces wait for the whole product: only gathers and scatters of sequence parallelism are
    cut into chunks. ``chunk_time``: of the products, for 1/tp of their rows. Those of backward that
    one of two products neither makes nor needs run beside it where the framework starts them
    first (``overlaps_input_gradients``), all-reduces too: ``other_time``, of that product.
    """
    overlap = inputs.traits.overlap
    interference = interference_fraction(
        overlap.communication_multiprocessors, inputs.cluster.accelerator
    )
    beside = [
        comm.axis == "tp" and comm.collective != "all_reduce" and not comm.is_waited_for
        for comm in comms
    ]
    items: TimeItems = {}
    for comm, runs_beside in zip(comms, beside, strict=True):
        exposed = seconds = inputs.comm_s(comm)
        is_early = comm.is_independent and overlap.overlaps_input_gradients
        if is_early and not comm.is_waited_for:
            exposed = exposed_beside_s(other_time, seconds, interference)
        elif runs_beside:
            exposed = exposed_tensor_parallel_s(
                gemm_time / sum(beside),
                seconds,
                chunk_time / sum(beside),
                inputs.strategy.tp,
                overlap.tensor_parallel_overlap,
                interference,
                overlap.ring_achieved_fraction,
            )
        items = add_items(
            items, {COMM_ITEM[comm.axis]: Duration(busy_s=seconds, exposed_s=exposed)}
        )
    return items


def comm_items(items: TimeItems) -> TimeItems:
    """Select the items that are collectives."""
    return {name: duration for name, duration in items.items() if name in COMM_ITEMS}


def all_exposed(seconds: Array) -> Duration:
    """Duration of work that nothing runs beside: all of it is exposed."""
    return Duration(busy_s=seconds, exposed_s=seconds)


def op_precisions(
    op: Op, job: JobSpec, kernels: KernelTraits
) -> tuple[tuple[Precision, float], ...]:
    """Precisions of an op's products, each with the share of the layers that take it.

    fp8 only where weights meet activations and the recipe does not keep 16 bits.
    """
    kind = "experts" if op.is_expert else "linears"
    in_16_bit = op.runs_in_16_bit or kind not in kernels.in_8_bit
    in_fp8 = all(gemm.has_weight for gemm in op.gemms) and not in_16_bit
    if not in_fp8 and job.precision not in ("fp16", *FULL_PRECISIONS):
        return (("bf16", 1.0),)
    kept = kernels.layers_in_16_bit_fraction * (job.precision in CAST_BYTES)
    both: tuple[tuple[Precision, float], ...] = ((job.precision, 1.0 - kept), ("bf16", kept))
    return both if kept else both[:1]


def product_gradient_bytes(traits: FrameworkTraits) -> float | None:
    """Traffic per weight-gradient element inside its product.

    The kept gradient is read and written there where accumulation has no traffic of its own; else
    one of an activation's width is written (None).
    """
    if traits.kernels.weight_gradient_bytes:
        return None
    return 2.0 * traits.states.gradient_bytes


@item(
    "time.compute.attention",
    title="attention",
    inputs=(
        "traits.kernels.attention",
        *SHAPE,
        "accelerator.attention",
    ),
    also=(flash_attention_forward_s, flash_attention_backward_s),
)
def op_items(op: Op, inputs: PricingInputs, *, backward: bool = False) -> TimeItems:
    """Matrix products, fused attention, memory-bound traffic and collectives of one pass of an op.

    Products without weights are unfused attention. Weight gradients are accumulated in backward, as
    part of the product where that costs no traffic of its own; chunks are added to none.
    """
    kernels, accelerator = inputs.traits.kernels, inputs.cluster.accelerator
    traffic = op.backward_bytes if backward else op.forward_bytes
    traffic = traffic * kernels.memory_bound_multiplier
    if op.is_permutation:
        traffic = traffic * permutation_pace(kernels.permutation_slowdown, accelerator)
    whole_s: GemmPrice = gemm_s
    chunk_s: GemmPrice = gemm_s
    if backward:
        traffic = traffic + op.params * kernels.weight_gradient_bytes
        inside_bytes = product_gradient_bytes(inputs.traits)
        whole_s = partial(gemm_backward_s, weight_gradient_bytes=inside_bytes)
        chunk_s = gemm_backward_s
    moving_s = element_wise_s(traffic, accelerator, op.tiny_kernels[backward])
    kernel = "gemm" if all(gemm.has_weight for gemm in op.gemms) else "attention"
    parts = op_precisions(op, inputs.job, kernels)

    def products_s(gemms: tuple[Gemm, ...], price: GemmPrice) -> Array:
        return ZERO + sum(
            share * price(gemm, accelerator, each) for gemm in gemms for each, share in parts
        )

    gemm_time = products_s(op.gemms, whole_s)
    if op.is_expert:
        gemm_time = gemm_time / kernels.grouped_rate_fraction
    chunk_time = ZERO
    if inputs.traits.overlap.tensor_parallel_overlap == "ring":
        tp = inputs.strategy.tp
        chunks = tuple(replace(gemm, m=gemm.m / tp) for gemm in op.gemms)
        chunk_time = products_s(chunks, chunk_s)
    items = {kernel: all_exposed(gemm_time), "memory_bound": all_exposed(moving_s)}
    if op.attention:
        attention_s = flash_attention_backward_s if backward else flash_attention_forward_s
        attention = attention_s(op.attention, accelerator, inputs.job.precision)
        items = add_items(items, {"attention": all_exposed(attention)})
    is_trained = not any(gemm.is_frozen for gemm in op.gemms)
    other_time = gemm_time * (0.5 * is_trained)
    comms = _comm_items(op.comms[backward], inputs, gemm_time, chunk_time, other_time)
    return add_items(items, comms)


@item(
    "time.expert_parallel",
    title="expert all-to-all",
    inputs=(
        "strategy.ep",
        *SCALE_UP,
        *FABRIC,
        "traits.overlap.expert_all_to_all_overlap",
        "traits.kernels.dispatcher",
    ),
    also=(
        exchange_op,
        sorting_traffic,
        permutation_pace,
        exchange_start_s,
        exposed_all_to_all_s,
        *COLLECTIVE_FORMULAS,
    ),
)
def _with_expert_overlap(
    group: LayerGroup, forward: TimeItems, backward: TimeItems, inputs: PricingInputs
) -> tuple[TimeItems, TimeItems]:
    """Hide expert dispatch and combine behind the shared expert or another micro-batch's pass."""
    overlap = inputs.traits.overlap
    mode, item = overlap.expert_all_to_all_overlap, "expert_parallel"
    if mode == "none" or item not in forward:
        return forward, backward
    interference = interference_fraction(
        overlap.communication_multiprocessors, inputs.cluster.accelerator
    )
    computing = [exposed_s(items) - items[item].exposed_s for items in (backward, forward)]
    hidden = []
    for is_backward, (items, other_s) in enumerate(
        zip((forward, backward), computing, strict=True)
    ):
        busy = items[item].busy_s
        shared_s = ZERO
        if mode == "shared_expert":
            shared = [op for op in group.ops if op.name.startswith("shared_expert")]
            own = [op_items(op, inputs, backward=bool(is_backward)) for op in shared]
            shared_s = exposed_s(add_items(*own))
        shown = exposed_all_to_all_s(busy, shared_s, other_s, mode, interference)
        hidden.append(items | {item: Duration(busy_s=busy, exposed_s=shown)})
    return hidden[0], hidden[1]


@dataclass(frozen=True, kw_only=True)
class LayerPasses:
    """A layer's forward, its backward, and what recomputation repeats."""

    forward: TimeItems
    backward: TimeItems
    repeated: TimeItems  # the forward as full recomputation repeats it
    selective: TimeItems  # the part of the forward that selective recomputation repeats


def layer_passes(kinds: tuple[LayerGroup, ...], inputs: PricingInputs) -> LayerPasses:
    """Price the passes of every kind of layer, averaged over the layers.

    Each overlapped, then held up by its launches.
    """
    found = dict[str, TimeItems]()
    total = sum(kind.num_layers for kind in kinds)
    on_host = on_hosts_of(inputs.traits, inputs.job.precision, inputs.cluster.node)
    for kind in kinds:
        priced = [(op, op_items(op, inputs)) for op in kind.ops]
        forward = add_items(*(items for _, items in priced))
        backward = add_items(*(op_items(op, inputs, backward=True) for op in kind.ops))
        forward, backward = _with_expert_overlap(kind, forward, backward, inputs)
        spared = [scale_items(items, -1.0) for op, items in priced if op.is_spared]
        bare = (forward, backward, add_items(forward, *spared))
        # Forward seconds of the ops, before anything hides, where the host waits for them.
        waits = host_waits(kind, inputs.traits)
        op_s = [exposed_s(items) for _, items in priced] if waits else []
        pass_s = (exposed_s(bare[0]), exposed_s(bare[1]), exposed_s(bare[2]))
        waits_s = layer_waits_s(kind, pass_s, op_s, on_host, inputs.strategy)
        forward, backward, repeated = (
            add_items(items, {"launch": all_exposed(wait)})
            for items, wait in zip(bare, waits_s, strict=True)
        )
        selected = [
            scale_items(
                op_items(op.selective_op, inputs) if op.selective_op else items,
                op.selective_fraction,
            )
            for op, items in priced
            if np.any(op.selective_fraction)
        ]
        own = {"forward": forward, "backward": backward, "repeated": repeated}
        own["selective"] = add_items(*selected)
        for name, items in own.items():
            share = scale_items(items, kind.num_layers / total)
            found[name] = add_items(found.get(name, {}), share)
    return LayerPasses(**found)
