"""What one layer, the embedding and the head cost per micro-batch, on distinct layer shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.collectives import collective_s
from planner.cost.kernels import (
    element_wise_s,
    flash_attention_backward_s,
    flash_attention_forward_s,
    gemm_backward_s,
    gemm_s,
)
from planner.cost.topology import group_of
from planner.layers.block import (
    LayerGroup,
    embedding_op,
    head_op,
    layer_groups,
    padded_vocab_size,
)
from planner.layers.op import (
    ELEMENT_BYTES,
    ZERO,
    Comm,
    FlashAttention,
    Gemm,
    LayerShape,
    Op,
    total_bytes,
)
from planner.spec.cluster import AcceleratorSpec, ClusterSpec
from planner.spec.job import JobSpec, Precision
from planner.spec.model import ModelSpec
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import FrameworkTraits, under_precision
from planner.units import Array, Index

COMM_ITEM = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel"}
COMM_ITEMS = ("tensor_parallel", "context_parallel", "expert_parallel")


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds a resource is busy, and seconds by which the iteration grows because of it."""

    busy_s: Array
    exposed_s: Array

    def scaled(self, factor: Array | float) -> "Duration":
        """Return both parts times ``factor``."""
        return Duration(busy_s=self.busy_s * factor, exposed_s=self.exposed_s * factor)


TimeItems = dict[str, Duration]


def add_items(*parts: TimeItems) -> TimeItems:
    """Add durations item by item."""
    total: TimeItems = {}
    for part in parts:
        for name, duration in part.items():
            old = total.get(name)
            total[name] = (
                duration
                if old is None
                else Duration(
                    busy_s=old.busy_s + duration.busy_s,
                    exposed_s=old.exposed_s + duration.exposed_s,
                )
            )
    return total


def scale_items(items: TimeItems, factor: Array | float) -> TimeItems:
    """Multiply every duration."""
    return {name: duration.scaled(factor) for name, duration in items.items()}


def exposed_s(items: TimeItems) -> Array:
    """Sum of exposed seconds."""
    return ZERO + sum(duration.exposed_s for duration in items.values())


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """Parameters and kept activations of one layer, on distinct layer shapes."""

    params: Array
    expert_params: Array
    saved_bytes: Array
    selective_saved_bytes: Array


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """Costs on distinct layer shapes; ``index`` maps every strategy to its shape.

    Times of layers of several kinds (dense and mixture) are averaged, weighted by their number;
    their memory is too, except that leading dense layers are kept apart.
    """

    index: Index
    num_shapes: int
    forward: TimeItems
    backward: TimeItems
    selective: TimeItems
    """The part of the forward that selective recomputation repeats."""
    params: Array
    expert_params: Array
    body: LayerMemory
    """Mean of all layers but the leading ones."""
    lead: LayerMemory
    """A leading layer; like the body where there is none."""
    num_leading: int
    largest_saved_bytes: Array
    """Of the kind of layer that keeps most."""
    largest_selective_saved_bytes: Array
    freed_bytes: Array
    """Blocks a layer's forward leaves behind, of the largest kind."""
    largest_logits_bytes: Array
    """Of the loss's tensors, one micro-batch."""
    logits_bytes: Array
    """16-bit logits of one micro-batch."""
    backward_bytes: Array
    """Gradients alive together in a layer's backward, of the largest kind."""
    first: TimeItems
    """Embedding, forward and backward."""
    first_params: Array
    first_saved_bytes: Array
    last: TimeItems
    """Final norm, vocabulary projection and loss, forward and backward."""
    last_params: Array
    last_saved_bytes: Array
    largest_weight_params: Array
    """Elements of the MLP's down projection, whose gradient comes first."""
    linear_params: Array
    """One weight of every distinct linear layer, the vocabulary head excluded."""
    vocab_params: Array
    """One vocabulary matrix; tied models copy it to the last stage."""
    boundary_bytes: Array
    """Activation handed to the next stage by one rank."""

    def at(self, values: Array) -> Array:
        """Spread values of the distinct shapes over all strategies."""
        spread: Array = np.broadcast_to(values, (self.num_shapes,))[self.index]
        return spread

    def exposed_at(self, items: TimeItems) -> Array:
        """Exposed seconds of ``items`` for every strategy."""
        return self.at(exposed_s(items))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What pricing an op needs beside the op."""

    job: JobSpec
    cluster: ClusterSpec
    traits: FrameworkTraits
    strategy: StrategyColumns


def _comm_items(comms: tuple[Comm, ...], setting: Setting) -> TimeItems:
    hidden = {"tp": setting.traits.overlap.tensor_parallel_hidden_fraction}
    cluster = setting.cluster
    items: TimeItems = {}
    for comm in comms:
        group = group_of(comm.axis, setting.strategy, cluster)
        seconds = collective_s(
            comm.collective, comm.num_bytes, group, cluster, comm.copies_per_token
        )
        exposed = seconds * (1.0 - hidden.get(comm.axis, 0.0))
        items = add_items(
            items, {COMM_ITEM[comm.axis]: Duration(busy_s=seconds, exposed_s=exposed)}
        )
    return items


def _compute(name: str, seconds: Array) -> TimeItems:
    return {name: Duration(busy_s=seconds, exposed_s=seconds)}


def _precision(op: Op, job: JobSpec) -> Precision:
    """fp8 only where weights meet activations and the recipe does not keep 16 bits."""
    in_fp8 = all(gemm.has_weight for gemm in op.gemms) and not op.runs_in_16_bit
    return job.precision if in_fp8 else "bf16"


def op_forward(op: Op, setting: Setting) -> TimeItems:
    """Forward seconds of one op by item."""
    traffic = op.forward_bytes * setting.traits.kernels.memory_bound_multiplier
    return _op_items(op, setting, gemm_s, flash_attention_forward_s, traffic, op.forward_comms)


def op_backward(op: Op, setting: Setting) -> TimeItems:
    """Backward seconds of one op by item, weight-gradient accumulation included.

    It is part of the product where it costs no traffic of its own.
    """
    kernels = setting.traits.kernels
    traffic = op.backward_bytes * kernels.memory_bound_multiplier
    traffic = traffic + op.params * kernels.weight_gradient_bytes
    accumulated = 2.0 * setting.traits.states.gradient_bytes
    gemms_s = partial(
        gemm_backward_s,
        weight_gradient_bytes=ELEMENT_BYTES if kernels.weight_gradient_bytes else accumulated,
    )
    return _op_items(op, setting, gemms_s, flash_attention_backward_s, traffic, op.backward_comms)


def _op_items(
    op: Op,
    setting: Setting,
    gemm_seconds: Callable[[Gemm, AcceleratorSpec, Precision], Array],
    attention_seconds: Callable[[FlashAttention, AcceleratorSpec], Array],
    traffic_bytes: Array,
    comms: tuple[Comm, ...],
) -> TimeItems:
    """Matrix products, fused attention, memory-bound traffic and collectives of one pass.

    Products without weights are unfused attention.
    """
    accelerator = setting.cluster.accelerator
    kernel = "gemm" if all(gemm.has_weight for gemm in op.gemms) else "attention"
    precision = _precision(op, setting.job)
    gemm_time = ZERO + sum(gemm_seconds(gemm, accelerator, precision) for gemm in op.gemms)
    traffic = _compute("memory_bound", element_wise_s(traffic_bytes, accelerator))
    items = add_items(_compute(kernel, gemm_time), traffic)
    if op.attention:
        attention = attention_seconds(op.attention, accelerator)
        items = add_items(items, _compute("attention", attention))
    return add_items(items, _comm_items(comms, setting))


def _with_launch_floor(group: LayerGroup, items: TimeItems, floor_s: float) -> TimeItems:
    """Add the time by which launching a mixture's kernels from the CPU exceeds running them."""
    if group.name != "moe":
        return items
    missing = np.maximum(floor_s - exposed_s(items), 0.0)
    return add_items(items, _compute("launch", missing))


def _mean(kinds: tuple[LayerGroup, ...], values: list[Array]) -> Array:
    total = sum(kind.num_layers for kind in kinds)
    return ZERO + sum(
        value * (kind.num_layers / total) for kind, value in zip(kinds, values, strict=True)
    )


def _mean_items(kinds: tuple[LayerGroup, ...], items: list[TimeItems]) -> TimeItems:
    total = sum(kind.num_layers for kind in kinds)
    return add_items(
        *(
            scale_items(item, kind.num_layers / total)
            for kind, item in zip(kinds, items, strict=True)
        )
    )


def _distinct(strategy: StrategyColumns) -> tuple[StrategyColumns, Index]:
    """Rows with distinct layer shapes, and the map from every row to its shape."""
    key = np.zeros(len(strategy), dtype=np.int64)
    for name in ("micro_batch", "tp", "cp", "ep", "sequence_parallel"):
        column = getattr(strategy, name)
        key = key * (int(column.max()) + 1) + column
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return strategy.take(first), index


def layer_shape(strategy: StrategyColumns, job: JobSpec) -> LayerShape:
    """The columns a layer depends on."""
    return LayerShape(
        micro_batch=strategy.micro_batch.astype(float),
        seq_len=job.seq_len,
        tp=strategy.tp.astype(float),
        cp=strategy.cp.astype(float),
        ep=strategy.ep.astype(float),
        sequence_parallel=strategy.sequence_parallel,
    )


def layer_costs(
    model: ModelSpec,
    job: JobSpec,
    cluster: ClusterSpec,
    traits: FrameworkTraits,
    strategy: StrategyColumns,
) -> LayerCosts:
    """Cost of layers, embedding and head for every distinct layer shape of the columns."""
    rows, index = _distinct(strategy)
    shape = layer_shape(rows, job)
    traits = under_precision(traits, job.precision)
    kernels = traits.kernels
    kinds = layer_groups(model, shape, traits)
    setting = Setting(job=job, cluster=cluster, traits=traits, strategy=rows)

    def forward(ops: tuple[Op, ...]) -> TimeItems:
        return add_items(*(op_forward(op, setting) for op in ops))

    def backward(ops: tuple[Op, ...]) -> TimeItems:
        return add_items(*(op_backward(op, setting) for op in ops))

    def repeated(ops: tuple[Op, ...]) -> TimeItems:
        return add_items(
            *(
                scale_items(op_forward(op, setting), op.selective_fraction)
                for op in ops
                if np.any(op.selective_fraction)
            )
        )

    boundary = shape.num_tokens * model.hidden_size * ELEMENT_BYTES / shape.sp
    first = embedding_op(model, shape, traits)
    last = head_op(model, shape, traits)
    return LayerCosts(
        index=index,
        num_shapes=len(rows),
        forward=_mean_items(
            kinds,
            [_with_launch_floor(k, forward(k.ops), kernels.moe_launch_forward_s) for k in kinds],
        ),
        backward=_mean_items(
            kinds,
            [_with_launch_floor(k, backward(k.ops), kernels.moe_launch_backward_s) for k in kinds],
        ),
        selective=_mean_items(kinds, [repeated(kind.ops) for kind in kinds]),
        body=_body_memory(kinds),
        lead=_lead_memory(kinds),
        num_leading=sum(kind.num_leading for kind in kinds),
        largest_saved_bytes=_largest([_saved(kind.ops) for kind in kinds]),
        largest_selective_saved_bytes=_largest([_kept(kind.ops) for kind in kinds]),
        freed_bytes=_largest([total_bytes(kind.freed) for kind in kinds]),
        largest_logits_bytes=_largest(
            [ZERO, *(one.num_bytes for one in last.saved if one.name.startswith("loss."))]
        ),
        logits_bytes=shape.num_tokens * _vocab_rows(model, shape, traits) * ELEMENT_BYTES,
        backward_bytes=_largest([total_bytes(kind.backward) for kind in kinds]),
        params=_mean(kinds, [_params(kind.ops, expert=False) for kind in kinds]),
        expert_params=_mean(kinds, [_params(kind.ops, expert=True) for kind in kinds]),
        first=add_items(forward((first,)), backward((first,))),
        first_params=ZERO + first.params,
        first_saved_bytes=ZERO + first.saved_bytes,
        last=add_items(forward((last,)), backward((last,))),
        last_params=ZERO + last.params,
        last_saved_bytes=ZERO + last.saved_bytes,
        largest_weight_params=_largest([_down_params(kind.ops) for kind in kinds]),
        linear_params=_distinct_linear_params(kinds),
        vocab_params=_vocab_rows(model, shape, traits) * model.hidden_size,
        boundary_bytes=boundary,
    )


def _down_params(ops: tuple[Op, ...]) -> Array:
    """Elements of one down projection, the layer's last weight."""
    sizes = [gemm.n * gemm.k for op in ops if op.name.endswith("_down") for gemm in op.gemms]
    return _largest([ZERO, *sizes])


def _vocab_rows(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> Array:
    return padded_vocab_size(model, shape.tp, traits.support.vocab_padding) / shape.tp


def _saved(ops: tuple[Op, ...]) -> Array:
    return ZERO + sum(op.saved_bytes for op in ops)


def _kept(ops: tuple[Op, ...]) -> Array:
    return ZERO + sum(op.kept_bytes for op in ops)


def _largest(values: list[Array]) -> Array:
    largest: Array = np.maximum.reduce(np.broadcast_arrays(*values))
    return largest


def _memory(kinds: tuple[LayerGroup, ...]) -> LayerMemory:
    return LayerMemory(
        params=_mean(kinds, [_params(kind.ops, expert=False) for kind in kinds]),
        expert_params=_mean(kinds, [_params(kind.ops, expert=True) for kind in kinds]),
        saved_bytes=_mean(kinds, [_saved(kind.ops) for kind in kinds]),
        selective_saved_bytes=_mean(kinds, [_kept(kind.ops) for kind in kinds]),
    )


def _body_memory(kinds: tuple[LayerGroup, ...]) -> LayerMemory:
    """Mean memory of the layers behind the leading ones."""
    behind = tuple(
        replace(kind, num_layers=kind.num_layers - kind.num_leading, num_leading=0)
        for kind in kinds
    )
    return _memory(tuple(kind for kind in behind if kind.num_layers) or kinds)


def _lead_memory(kinds: tuple[LayerGroup, ...]) -> LayerMemory:
    """Memory of a leading layer; of the body where there is none."""
    leading = tuple(kind for kind in kinds if kind.num_leading)
    return _memory(leading) if leading else _body_memory(kinds)


def _distinct_linear_params(groups: tuple[LayerGroup, ...]) -> Array:
    """Elements of one weight per differently named linear layer, one expert of each kind."""
    by_name = {
        (op.name, index): gemm.n * gemm.k
        for group in groups
        for op in group.ops
        for index, gemm in enumerate(op.gemms)
        if gemm.has_weight
    }
    return ZERO + sum(by_name.values())


def _params(ops: tuple[Op, ...], *, expert: bool) -> Array:
    return ZERO + sum(op.params for op in ops if op.is_expert == expert)
