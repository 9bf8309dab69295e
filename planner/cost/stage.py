"""StageModel: time and memory of every pipeline stage, affine in its layer counts.

The search bounds it, the solver optimises it and the estimate reports it: one model for all.
Rows are strategies (C); matrices are strategies by stages. ``layers``, ``selective`` and ``full``
hold one column per stage 0 to P - 1, or, where ``stages`` is given (1 x K or C x K stage
numbers), one column for each of those.
"""

from dataclasses import dataclass, fields

import numpy as np

from planner.cost.pipeline import in_flight, makespan_s
from planner.spec.strategy import StrategyColumns
from planner.units import Array, Mask, Rows


@dataclass(frozen=True, kw_only=True)
class StageModel:
    """Coefficients per strategy. Times per micro-batch unless said, bytes per rank."""

    strategy: StrategyColumns
    layer_s: Array
    """Forward and backward of one layer, exposed communication included."""
    selective_s: Array
    """Added by selective recomputation of one layer."""
    full_s: Array
    """Added by full recomputation of one layer."""
    first_s: Array
    last_s: Array
    link_s: Array
    """Per stage, whatever its layers: exposed transfers between stages, unhidden prefetch."""
    bubble_filled_s: Array
    """Of the bubble, before vpp divides it: what the schedule fills with weight gradients."""
    tail_layer_s: Array
    """Shape (2, C). Per iteration: gradient reduction and optimizer step of a stage are the
    larger of two affine functions of its layers (the last bucket, or overlap window exhausted)."""
    tail_first_s: Array
    tail_last_s: Array
    constant_s: Array
    """Per iteration, whatever the split."""
    stage_static_bytes: Array
    """On every stage, whatever its layers."""
    layer_static_bytes: Array
    first_static_bytes: Array
    last_static_bytes: Array
    saved_bytes: Array
    """Per layer and micro-batch in flight, without recomputation."""
    selective_saved_bytes: Array
    full_saved_bytes: Array
    num_leading: int
    """Leading layers, all on the first stage; full recomputation takes them first, then
    selective recomputation."""
    lead_saved_bytes: Array
    """By which a leading layer keeps more than another one, without recomputation."""
    lead_selective_saved_bytes: Array
    first_saved_bytes: Array
    receive_buffer_bytes: Array
    """Per micro-batch of the iteration and direction, where the pipeline keeps such buffers.
    Micro-batches in flight have theirs counted as the input that is kept."""
    sent_saved_bytes: Array
    """On every stage but the last, per micro-batch in flight: what was sent on."""
    keeps_all_sent: bool
    """Per micro-batch of the iteration instead."""
    layer_transient_bytes: Array
    """Largest short-lived tensors while a layer runs backward."""
    last_transient_bytes: Array
    """Logits and loss, alive when backward starts on the last stage."""
    full_workspace_bytes: Array
    """One layer's activations, rebuilt while it is recomputed in full."""
    selective_workspace_bytes: Array
    """The part of them that selective recomputation rebuilds."""
    overhead_bytes: Array
    """Context, workspaces, communicators."""
    fragmentation_fraction: float
    layer_host_bytes: Array
    first_host_bytes: Array
    last_host_bytes: Array
    usable_bytes: float
    """HBM the driver offers, less the margin."""
    host_limit_bytes: Array
    """Host memory or NVMe per accelerator; infinite where nothing is offloaded."""

    def take(self, index: Rows) -> "StageModel":
        """Return the rows at ``index``."""
        values = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, StrategyColumns):
                value = value.take(index)
            elif isinstance(value, np.ndarray):
                value = value[..., index]
            values[field.name] = value
        return StageModel(**values)

    def __len__(self) -> int:
        return len(self.strategy)

    @property
    def held_limit_bytes(self) -> Array:
        """Bytes tensors may take: usable less overheads, less what fragmentation wastes."""
        budget = self.usable_bytes - self.overhead_bytes
        return budget / (1.0 + self.fragmentation_fraction)


def all_stages(num_stages: int) -> Array:
    """Stage numbers 0 to P - 1 as a row."""
    return np.arange(float(num_stages))[None, :]


def ends(model: StageModel, stages: Array) -> tuple[Array, Array]:
    """1.0 where a stage holds the embedding, and where it holds the head of its strategy."""
    return (stages == 0) * 1.0, (stages == model.strategy.head_stage[:, None]) * 1.0


def in_flight_matrix(model: StageModel, stages: Array) -> Array:
    """Micro-batches in flight on the given stages."""
    strategy = model.strategy
    return in_flight(
        stages,
        strategy.pp[:, None],
        strategy.num_micro_batches[:, None],
        strategy.vpp[:, None],
        strategy.schedule[:, None],
    )


def fixed_time_s(model: StageModel, stages: Array) -> Array:
    """Per stage and micro-batch, without its layers: embedding, head, links."""
    first, last = ends(model, stages)
    return model.first_s[:, None] * first + model.last_s[:, None] * last + model.link_s[:, None]


def sent_copies(model: StageModel, flight: Array) -> Array:
    """Micro-batches whose output a stage keeps."""
    num = model.strategy.num_micro_batches[:, None]
    return np.broadcast_to(num, flight.shape) * 1.0 if model.keeps_all_sent else flight


def fixed_bytes(model: StageModel, stages: Array) -> Array:
    """Allocated bytes per stage without its layers and transients."""
    first, last = ends(model, stages)
    flight = in_flight_matrix(model, stages)
    at_first = model.first_static_bytes[:, None] + flight * model.first_saved_bytes[:, None]
    at_last = model.last_static_bytes[:, None]
    total: Array = model.stage_static_bytes[:, None] + at_first * first + at_last * last
    if not (model.sent_saved_bytes.any() or model.receive_buffer_bytes.any()):
        return total
    sends_on = (stages < model.strategy.pp[:, None] - 1) * 1.0
    if model.sent_saved_bytes.any():
        sent = sent_copies(model, flight) * model.sent_saved_bytes[:, None]
        total = total + sent * sends_on
    if model.receive_buffer_bytes.any():
        num = model.strategy.num_micro_batches[:, None]
        received = (num - flight) * (1.0 - first) + num * sends_on
        total = total + received * model.receive_buffer_bytes[:, None]
    return total


def fixed_host_bytes(model: StageModel, stages: Array) -> Array:
    """Offloaded bytes per stage without its layers."""
    first, last = ends(model, stages)
    return model.first_host_bytes[:, None] * first + model.last_host_bytes[:, None] * last


def transient_bytes(
    model: StageModel, stages: Array, *, selective: Mask | bool, full: Mask | bool
) -> Array:
    """Short-lived bytes per stage: a layer's backward (and its rebuilt activations), or the loss.

    ``selective`` and ``full``: where the stage recomputes at least one layer that way.
    """
    _, last = ends(model, stages)
    rebuilt = np.maximum(
        np.where(selective, model.selective_workspace_bytes[:, None], 0.0),
        np.where(full, model.full_workspace_bytes[:, None], 0.0),
    )
    layer = model.layer_transient_bytes[:, None] + rebuilt
    return np.maximum(layer, model.last_transient_bytes[:, None] * last)


def _stages_of(layers: Array, stages: Array | None) -> Array:
    return all_stages(layers.shape[1]) if stages is None else stages


def stage_time_s(
    model: StageModel,
    layers: Array,
    selective: Array,
    full: Array,
    stages: Array | None = None,
) -> Array:
    """Seconds per micro-batch of every stage (or of the given ones).

    ``n t + c t_selective + f t_full + fixed``: n layers, of which c repeat their selective ops'
    forward and f their whole forward; fixed is embedding, head and links. Excludes pipeline
    waiting.
    """
    return (
        layers * model.layer_s[:, None]
        + selective * model.selective_s[:, None]
        + full * model.full_s[:, None]
        + fixed_time_s(model, _stages_of(layers, stages))
    )


def leading_by_policy(
    model: StageModel, selective: Array, full: Array, stages: Array
) -> tuple[Array, Array]:
    """Leading layers per stage that are not recomputed, and that are selectively.

    All leading layers are on the first stage. Full recomputation takes the first layers of a
    stage (Megatron-LM's ``block`` method), selective recomputation the next ones.
    """
    leading = model.num_leading * (stages == 0)
    by_full = np.minimum(full, leading)
    by_selective = np.minimum(selective, leading - by_full)
    return leading - by_full - by_selective, by_selective


def stage_held_bytes(
    model: StageModel,
    layers: Array,
    selective: Array,
    full: Array,
    stages: Array | None = None,
) -> Array:
    """Peak bytes the allocator holds on every stage (or on the given ones).

    Tensors, and blocks that were freed but only another stream may use again. ``n`` layers hold
    ``n · static + in flight · (kept by policy)``; fixed bytes and the largest transient are
    added.
    """
    stages = _stages_of(layers, stages)
    activations = in_flight_matrix(model, stages) * (
        (layers - selective - full) * model.saved_bytes[:, None]
        + selective * model.selective_saved_bytes[:, None]
        + full * model.full_saved_bytes[:, None]
    )
    if model.num_leading:
        kept, by_selective = leading_by_policy(model, selective, full, stages)
        activations = activations + in_flight_matrix(model, stages) * (
            kept * model.lead_saved_bytes[:, None]
            + by_selective * model.lead_selective_saved_bytes[:, None]
        )
    return (
        layers * model.layer_static_bytes[:, None]
        + fixed_bytes(model, stages)
        + activations
        + transient_bytes(
            model, stages, selective=np.asarray(selective > 0), full=np.asarray(full > 0)
        )
    )


def stage_peak_bytes(
    model: StageModel,
    layers: Array,
    selective: Array,
    full: Array,
    stages: Array | None = None,
) -> Array:
    """Peak bytes of every stage as the device sees them: fragmentation and overheads added.

    ``held · (1 + fragmentation_fraction) + overhead``. Source: framework traits.
    """
    allocated = stage_held_bytes(model, layers, selective, full, stages)
    return allocated * (1.0 + model.fragmentation_fraction) + model.overhead_bytes[:, None]


def stage_host_bytes(model: StageModel, layers: Array, stages: Array | None = None) -> Array:
    """Offloaded bytes per rank of every stage (or of the given ones)."""
    fixed = fixed_host_bytes(model, _stages_of(layers, stages))
    return layers * model.layer_host_bytes[:, None] + fixed


def stage_tail_s(model: StageModel, layers: Array, stages: Array | None = None) -> Array:
    """Seconds per iteration after the last micro-batch: gradient reduction and optimizer."""
    first, last = ends(model, _stages_of(layers, stages))
    pieces = (
        layers[None] * model.tail_layer_s[:, :, None]
        + model.tail_first_s[:, :, None] * first
        + model.tail_last_s[:, :, None] * last
    )
    tail: Array = pieces.max(axis=0)
    return tail


def iteration_s(model: StageModel, layers: Array, selective: Array, full: Array) -> Array:
    """Seconds per iteration: the pipeline's makespan, the slowest tail, the constant. C."""
    seconds = stage_time_s(model, layers, selective, full)
    strategy = model.strategy
    makespan = makespan_s(
        seconds.max(axis=1),
        seconds.sum(axis=1),
        strategy.num_micro_batches,
        strategy.vpp,
        model.bubble_filled_s,
    )
    tail: Array = stage_tail_s(model, layers).max(axis=1)
    total: Array = makespan + tail + model.constant_s
    return total


def fits(model: StageModel, layers: Array, selective: Array, full: Array) -> Mask:
    """True where every stage is within HBM and host limits. C."""
    allocated = stage_held_bytes(model, layers, selective, full)
    device = allocated <= model.held_limit_bytes[:, None]
    host = stage_host_bytes(model, layers) <= model.host_limit_bytes[:, None]
    return np.asarray((device & host).all(axis=1))
