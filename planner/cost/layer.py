"""Costs of layers, of their ends and of multi-token prediction on distinct layer shapes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.context import Context, unique_rows
from planner.cost.layer_time import (
    Duration,
    LayerPasses,
    PricingInputs,
    TimeItems,
    add_items,
    exposed_s,
    layer_passes,
    op_items,
    scale_items,
)
from planner.layers.block import (
    LayerGroup,
    block_kinds,
    embedding_op,
    head_op,
    layer_groups,
    mtp_blocks,
    mtp_ops,
    padded_vocab_size,
)
from planner.layers.op import AXES, ZERO, LayerShape, Op, total_bytes
from planner.layers.parameters import mtp_params
from planner.layers.saved import local_kv_size
from planner.spec.job import JobSpec, element_bytes
from planner.spec.model import ModelSpec
from planner.spec.strategy import STRATEGY_FIELDS, StrategyColumns
from planner.spec.traits import FrameworkTraits, KernelTraits
from planner.units import Array, Index, Rows


@dataclass(frozen=True, kw_only=True)
class MtpCosts:
    """All layers of multi-token prediction together, on distinct layer shapes."""

    time: TimeItems  # Forward and backward of a micro-batch
    params: Array
    expert_params: Array
    linear_params: Array  # Parameters of the projection, whose shape no other linear layer has
    saved_bytes: Array
    """Kept for backward from one micro-batch, which is over before the next one starts."""


def mtp_costs(
    model: ModelSpec, shape: LayerShape, kinds: tuple[LayerGroup, ...], inputs: PricingInputs
) -> MtpCosts:
    """``n · (block + embedding + projection + head and loss)`` of n layers.

    The block is as the model's layers behind its leading ones (arXiv 2412.19437, section 2.2);
    embedding and head are the model's, run once more. Excludes the copy that joins hidden states.
    """
    number = inputs.job.mtp_layers
    if not number:
        return MtpCosts(
            time={}, params=ZERO, expert_params=ZERO, linear_params=ZERO, saved_bytes=ZERO
        )
    ops = mtp_ops(model, shape, inputs.traits)
    num_blocks, blocks = mtp_blocks(model, kinds)
    passes = layer_passes(blocks, inputs)
    block = scale_items(add_items(passes.forward, passes.backward), float(num_blocks))
    around = [op_items(op, inputs, backward=back) for op in ops for back in (False, True)]
    num_layers = sum(kind.num_layers for kind in blocks)
    shared = [(kind.num_layers * num_blocks / num_layers, kind.ops) for kind in blocks]
    everything: list[tuple[float, tuple[Op, ...]]] = [(1.0, ops), *shared]

    def of(figure: str, *, expert: bool | None = None) -> Array:
        return ZERO + sum(
            number * share * _total(group, figure, expert=expert) for share, group in everything
        )

    return MtpCosts(
        time=scale_items(add_items(block, *around), float(number)),
        params=of("params", expert=False),
        expert_params=of("params", expert=True),
        linear_params=mtp_params(model, shape.tp)["mtp_projection"].total,
        saved_bytes=of("saved_bytes"),
    )


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """Parameters and kept activations of one layer, on distinct layer shapes."""

    params: Array
    expert_params: Array
    saved_bytes: Array
    selective_saved_bytes: Array
    frozen_bytes: Array  # Weights not trained, as stored; no leading layer differs in it


@dataclass(frozen=True, kw_only=True)
class EndCosts:
    """Embedding or head, on distinct layer shapes."""

    forward: TimeItems
    backward: TimeItems
    params: Array
    frozen_bytes: Array
    saved_bytes: Array

    @property
    def both(self) -> TimeItems:
        """Forward and backward together."""
        return add_items(self.forward, self.backward)


@dataclass(frozen=True, kw_only=True)
class LayerCosts(LayerPasses):
    """Costs on distinct layer shapes; ``index`` maps every strategy to its shape.

    Times of layers of several kinds (dense and mixture) are averaged, weighted by their number;
    their memory is too, except that leading dense layers are kept apart.
    """

    index: Index
    num_shapes: int
    params: Array
    expert_params: Array
    body: LayerMemory  # Mean of all layers but the leading ones
    lead: LayerMemory  # a leading layer; like the body where there is none
    num_leading: int
    largest_saved_bytes: Array  # Saved bytes of the kind of layer that saves most
    largest_selective_saved_bytes: Array
    freed_bytes: Array  # Blocks a layer's forward leaves behind, of the largest kind
    largest_logits_bytes: Array  # Bytes of the loss's tensors, one micro-batch
    logits_bytes: Array  # 16-bit logits of one micro-batch
    dequantised_bytes: Array  # Bytes of the largest matrix that backward makes in 16 bits
    backward_bytes: Array  # Gradients alive together in a layer's backward, of the largest kind
    first: EndCosts  # Embedding
    last: EndCosts  # Final norm, vocabulary projection and loss
    mtp: MtpCosts
    largest_weight_params: Array  # of the MLP's down projection, whose gradient comes first
    linear_params: Array  # one weight of every distinct linear layer, the vocabulary head excluded
    vocab_params: Array  # One vocabulary matrix if trained; tied models copy it to the last stage
    boundary_bytes: Array  # Activation handed to the next stage by one rank
    cache_bytes: Array  # Keys and values that a layer recomputed in full keeps beside its input

    def take(self, index: Rows) -> "LayerCosts":
        """Return the strategies at ``index``; their shapes stay."""
        return replace(self, index=self.index[index])

    def at(self, values: Array) -> Array:
        """Spread values of the distinct shapes over all strategies."""
        if values.shape == (self.num_shapes,):
            return np.asarray(values[self.index])
        return np.broadcast_to(values, self.index.shape)

    def items_at(self, items: TimeItems) -> TimeItems:
        """Spread ``items`` of the distinct shapes over all strategies."""
        return {
            name: Duration(busy_s=self.at(item.busy_s), exposed_s=self.at(item.exposed_s))
            for name, item in items.items()
        }

    def exposed_at(self, items: TimeItems) -> Array:
        """Exposed seconds of ``items`` for every strategy."""
        return self.at(exposed_s(items))


def _mean(kinds: tuple[LayerGroup, ...], figure: str, *, expert: bool | None = None) -> Array:
    """Return a figure of the ops of a layer, the mean over all layers of the kinds."""
    number = sum(kind.num_layers for kind in kinds)
    return ZERO + sum(
        _total(kind.ops, figure, expert=expert) * (kind.num_layers / number) for kind in kinds
    )


def _total(ops: Iterable[Op], figure: str, *, expert: bool | None = None) -> Array:
    """Sum of a figure over ops; of experts alone, or of others, where that is said."""
    counted = [op for op in ops if expert is None or op.is_expert == expert]
    return np.asarray(ZERO + sum(getattr(op, figure) for op in counted))


_SHAPE = tuple(each.name for each in fields(LayerShape) if each.name in STRATEGY_FIELDS)


def shape_columns(kernels: KernelTraits) -> tuple[str, ...]:
    """Return the columns a layer's costs depend on: ZeRO stage too with gathered-module hooks."""
    return (*_SHAPE, "zero_stage") if kernels.gathered_module_s else _SHAPE


def distinct_shapes(
    strategy: StrategyColumns, kernels: KernelTraits
) -> tuple[StrategyColumns, Index]:
    """Rows with distinct layer shapes, and the map from every row to its shape."""
    first, index = unique_rows(strategy, shape_columns(kernels))
    return strategy.take(first), index


def layer_shape(strategy: StrategyColumns, job: JobSpec) -> LayerShape:
    """The columns a layer depends on."""
    return LayerShape(
        micro_batch=strategy.micro_batch.astype(float),
        seq_len=job.seq_len,
        sequence_parallel=strategy.sequence_parallel,
        imbalance_fraction=job.imbalance_fraction,
        element_bytes=element_bytes(job.precision),
        document_tokens=job.attended_tokens if job.documents else math.inf,
        **{axis: getattr(strategy, axis).astype(float) for axis in AXES},
    )


def timed_shape(shape: LayerShape, job: JobSpec) -> LayerShape:
    """The shape that time is of: where documents are padded, of a micro-batch of mean length."""
    if job.documents is None or job.documents.batching == "packed":
        return shape
    is_grouped = job.documents.batching == "grouped"
    count = np.ones_like(shape.micro_batch) if is_grouped else shape.micro_batch
    padded = job.documents.padded_tokens(count)
    return replace(
        shape,
        seq_len=padded,
        document_tokens=job.attended_tokens if is_grouped else math.inf,
    )


def layer_costs(context: Context, strategy: StrategyColumns) -> LayerCosts:
    """Cost of layers, embedding and head for every distinct layer shape of the columns."""
    model, job, traits = context.model, context.job, context.traits
    kernels = traits.kernels
    rows, index = distinct_shapes(strategy, kernels)
    shape = layer_shape(rows, job)
    kinds = layer_groups(model, shape, traits)
    inputs = PricingInputs(job=job, cluster=context.cluster, traits=traits, strategy=rows)

    def end_costs(op: Op, timed_op: Op) -> EndCosts:
        return EndCosts(
            forward=op_items(timed_op, inputs),
            backward=op_items(timed_op, inputs, backward=True),
            params=ZERO + op.params,
            frozen_bytes=ZERO + op.frozen_bytes,
            saved_bytes=ZERO + op.saved_bytes,
        )

    timed = timed_shape(shape, job)
    passes = layer_passes(kinds if timed is shape else layer_groups(model, timed, traits), inputs)
    per_width = shape.num_tokens * shape.element_bytes
    last = head_op(model, shape, traits)
    behind = block_kinds(kinds)
    leading = tuple(kind for kind in kinds if kind.num_leading)
    ops = [op for kind in kinds for op in kind.ops]
    trained = {
        (op.name, index): gemm.n * gemm.k
        for op in ops
        for index, gemm in enumerate(op.gemms)
        if not gemm.is_frozen and gemm.has_weight
    }
    downs = [size for (name, _), size in trained.items() if name.endswith("_down")]
    return LayerCosts(
        index=index,
        num_shapes=len(rows),
        **vars(passes),
        body=_memory(behind),
        lead=_memory(leading or behind),
        num_leading=sum(kind.num_leading for kind in kinds),
        largest_saved_bytes=_largest([_total(kind.ops, "saved_bytes") for kind in kinds]),
        largest_selective_saved_bytes=_largest([_total(kind.ops, "kept_bytes") for kind in kinds]),
        freed_bytes=_largest([total_bytes(kind.freed) for kind in kinds]),
        largest_logits_bytes=_largest(
            [ZERO, *(one.num_bytes for one in last.saved if one.name.startswith("loss."))]
        ),
        logits_bytes=shape.num_tokens * _vocab_rows(model, shape, traits) * shape.element_bytes,
        dequantised_bytes=_largest([kind.dequantised_bytes for kind in kinds]),
        backward_bytes=_largest([total_bytes(kind.backward) for kind in kinds]),
        params=_mean(kinds, "params", expert=False),
        expert_params=_mean(kinds, "params", expert=True),
        first=end_costs(embedding_op(model, shape, traits), embedding_op(model, timed, traits)),
        last=end_costs(last, head_op(model, timed, traits)),
        mtp=mtp_costs(model, shape, kinds, inputs),
        largest_weight_params=_largest([ZERO, *downs]),
        linear_params=ZERO + sum(trained.values()),
        vocab_params=_vocab_rows(model, shape, traits)
        * (0 if traits.training.is_frozen else model.hidden_size),
        boundary_bytes=per_width * model.stream_size * (1 + kernels.widens_stream) / shape.sp,
        cache_bytes=per_width * 2 * local_kv_size(model, shape.tp) * kernels.returns_cache,
    )


def _vocab_rows(model: ModelSpec, shape: LayerShape, traits: FrameworkTraits) -> Array:
    return padded_vocab_size(model, shape.tp, traits.support.vocab_padding) / shape.tp


def _largest(values: list[Array]) -> Array:
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*values)))


def _memory(kinds: tuple[LayerGroup, ...]) -> LayerMemory:
    return LayerMemory(
        params=_mean(kinds, "params", expert=False),
        expert_params=_mean(kinds, "params", expert=True),
        saved_bytes=_mean(kinds, "saved_bytes"),
        selective_saved_bytes=_mean(kinds, "kept_bytes"),
        frozen_bytes=_mean(kinds, "frozen_bytes"),
    )
