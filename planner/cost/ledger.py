"""The ledger of one stage: every byte on a rank as a named item with shape, dtype and lifetime."""

from dataclasses import dataclass

import numpy as np

from planner.cost.buffers import offload_buffer_bytes, transient_layer_bytes
from planner.cost.layer import layer_shape
from planner.cost.memory_terms import (
    NON_ALLOCATOR,
    RESERVED,
    STATES,
    TERMS,
    Lifetime,
    StateTerm,
)
from planner.cost.stage import FULL, OTHERS, SELECTIVE, StageModel, all_stages
from planner.cost.stage_model import PricedStrategy
from planner.cost.stage_parts import Per
from planner.cost.states import unsharded_until_step
from planner.layers.block import (
    LayerGroup,
    embedding_op,
    head_op,
    layer_groups,
    mtp_blocks,
    mtp_ops,
)
from planner.layers.op import SavedTensor
from planner.spec.items import SHAPE, item

STEP = "transient.optimizer_step"
OPTIMIZER = ("optimizer.master_weights", "optimizer.states", "optimizer.copies")


@dataclass(frozen=True, kw_only=True)
class LedgerItem:
    """``copies`` arrays of ``shape`` with ``element_bytes`` each; num_bytes is their product."""

    name: str  # Dotted: group, owner, tensor
    num_bytes: float
    lifetime: Lifetime
    shape: tuple[int, ...] = ()  # Empty for bytes that are no tensor
    element_bytes: float = 1.0
    copies: float = 1.0


@dataclass(frozen=True, kw_only=True)
class StageLedger:
    """All items at the fullest moment of one stage, and when that is."""

    stage: int
    moment: str
    items: tuple[LedgerItem, ...]
    allocated_bytes: float
    """Largest sum of tensors over the moments, without what the allocator or the device hold
    beside them."""
    released_bytes: float
    """Cached blocks at the peak, which the allocator gives back before it fails:
    release_cached_blocks in c10/cuda/CUDACachingAllocator.cpp. Excludes blocks that were split."""

    @property
    def peak_bytes(self) -> float:
        """Sum of the items."""
        return sum(item.num_bytes for item in self.items)

    @property
    def reserved_bytes(self) -> float:
        """Bytes the allocator has taken from the device."""
        return sum(item.num_bytes for item in self.items if item.lifetime != NON_ALLOCATOR)


def _tensor_item(group: str, tensor: SavedTensor, copies: float, lifetime: Lifetime) -> LedgerItem:
    """Bytes, shape and lifetime of a kept tensor."""
    if tensor.is_freed:
        lifetime = RESERVED
    copies *= float(np.max(tensor.count))
    rows = float(np.max(tensor.rows))
    width = float(np.max(tensor.width))
    is_whole = rows.is_integer() and width.is_integer()
    return LedgerItem(
        name=f"{group}.{tensor.name}",
        num_bytes=rows * width * tensor.element_bytes * copies,
        lifetime=lifetime,
        shape=(round(rows), round(width)) if is_whole else (round(rows * width),),
        element_bytes=tensor.element_bytes,
        copies=copies,
    )


def _flat_item(name: str, elements: float, num_bytes: float, lifetime: Lifetime) -> LedgerItem:
    """Bytes of elements without further shape, or of no tensor where there are none."""
    return LedgerItem(
        name=name,
        num_bytes=num_bytes,
        lifetime=lifetime,
        shape=(round(elements),) if elements else (),
        element_bytes=num_bytes / elements if elements else 1.0,
    )


def _parameters(subject: PricedStrategy, stage: int) -> float:
    numbers = subject.numbers(stage)
    return sum(
        numbers[term.per] * float(term.elements(subject.parts)[0])
        for term in STATES
        if term.elements
    )


def _state_lifetime(subject: PricedStrategy, name: str) -> Lifetime:
    """Gradients that backward makes shard by shard are not there yet at the peak.

    With one micro-batch; their blocks stay reserved from one iteration to the next.
    """
    traits = subject.context.traits.states
    late = traits.gradients_made_in_backward and subject.strategy.num_micro_batches == 1
    is_apart = subject.strategy.zero_stage != 1 and not bool(
        unsharded_until_step(subject.columns, traits)[0]
    )
    if name == STEP:
        return "optimizer step"
    return RESERVED if name == "gradients" and late and is_apart else "whole run"


def _state_items(subject: PricedStrategy, stage: int) -> list[LedgerItem]:
    """What the step makes, weights, gradients and optimizer states, and frozen weights."""
    num_params, items, numbers = _parameters(subject, stage), [], subject.numbers(stage)
    for name in (STEP, "weights", "gradients", *OPTIMIZER):
        state = name.rpartition(".")[2]  # a field of StateBytes
        total = sum(numbers[term.per] * float(term.of(subject.parts, state)[0]) for term in STATES)
        items.append(_flat_item(name, num_params, total, _state_lifetime(subject, name)))
    frozen = sum(
        numbers[term.per] * float(term.of(subject.parts, "device")[0])
        for term in TERMS
        if isinstance(term, StateTerm) and not term.elements
    )
    return [*items, LedgerItem(name="frozen_weights", num_bytes=frozen, lifetime="whole run")]


def _term_items(subject: PricedStrategy, stage: int, *per: Per) -> list[LedgerItem]:
    """Items of the terms that are counted so; terms of one name are one item."""
    items: dict[str, LedgerItem] = {}
    numbers = subject.numbers(stage)
    for term in TERMS:
        number = numbers[term.per]
        if isinstance(term, StateTerm) or term.per not in per:
            continue
        if not (number and term.when(subject.context.traits)):
            continue
        found = np.broadcast_to(term.of(subject.parts), (1,))
        num_bytes = number * float(found[0])
        elements = number * float(term.elements(subject.parts)[0]) if term.elements else 0.0
        old = items.get(term.name)
        if old is not None:
            num_bytes, elements = num_bytes + old.num_bytes, elements + sum(old.shape)
        items[term.name] = _flat_item(term.name, elements, num_bytes, term.lifetime)
    return [*items.values()]


def _layers_by_policy(subject: PricedStrategy, stage: int) -> list[tuple[LayerGroup, float, float]]:
    """Per kind of layer: how many of a stage keep everything, and how many recompute selectively.

    Leading layers are those of the first stage; the others are spread evenly over stages.
    """
    shape = layer_shape(subject.columns, subject.context.job)
    groups = layer_groups(subject.context.model, shape, subject.context.traits)
    stages = all_stages(subject.strategy.pp)
    none, taken = subject.model.leading_by_policy(subject.layers, subject.counts, stages)
    kept = float(none[0, stage])
    by_selective = float(taken[SELECTIVE, 0, stage])
    selective = float(subject.counts[SELECTIVE, 0, stage])
    untouched = float((subject.layers - subject.counts.sum(axis=0))[0, stage])
    leading = sum(group.num_leading for group in groups)
    behind = sum(group.num_layers - group.num_leading for group in groups)
    found = []
    for group in groups:
        share = (group.num_layers - group.num_leading) / max(behind, 1)
        first = group.num_leading / max(leading, 1)
        whole = (untouched - kept) * share + kept * first
        partly = (selective - by_selective) * share + by_selective * first
        found.append((group, whole, partly))
    return found


def _activation_items(subject: PricedStrategy, stage: int) -> list[LedgerItem]:
    """Tensors kept for backward on one stage, all micro-batches in flight."""
    model = subject.model
    flight = float(model.in_flight(all_stages(subject.strategy.pp))[0, stage])
    items = [
        _tensor_item("activations", tensor, flight * number, "forward to backward")
        for group, untouched, selective in _layers_by_policy(subject, stage)
        for op in group.ops
        for number, tensors in ((untouched, op.saved), (selective, op.kept))
        for tensor in tensors
    ]
    context, costs = subject.context, subject.parts.costs
    shape = layer_shape(subject.columns, context.job)
    inputs = float(subject.counts[FULL, 0, stage]) * flight
    cache = inputs * float(costs.at(costs.cache_bytes)[0])
    items += [
        LedgerItem(
            name="activations.recompute_inputs",
            num_bytes=inputs * float(model.policies.saved_bytes[FULL, 0]) - cache,
            lifetime="forward to backward",
            shape=(
                round(float(shape.num_tokens[0])),
                round(context.model.stream_size / float(shape.sp[0])),
            ),
            element_bytes=shape.element_bytes * (1.0 + context.traits.kernels.widens_stream),
            copies=inputs,
        ),
        _flat_item("activations.returned_cache", 0.0, cache, "forward to backward"),
    ]
    if stage == 0:
        items += [
            _tensor_item("activations", tensor, flight, "forward to backward")
            for tensor in embedding_op(context.model, shape, context.traits).saved
        ]
    return [*items, *_term_items(subject, stage, "received", "sent")]


def _loss_items(subject: PricedStrategy) -> list[LedgerItem]:
    """Items alive when the loss of a micro-batch starts its backward, those of MTP layers too."""
    shape = layer_shape(subject.columns, subject.context.job)
    model, traits = subject.context.model, subject.context.traits
    head = head_op(model, shape, traits)
    items = [_tensor_item("transient", tensor, 1.0, "loss") for tensor in head.saved]
    number, policy = float(subject.model.num_mtp_layers), subject.mtp_policy
    if number:
        num_blocks, blocks = mtp_blocks(model, layer_groups(model, shape, traits))
        total = sum(group.num_layers for group in blocks)
        kept = [(number, tensor) for op in mtp_ops(model, shape, traits) for tensor in op.saved]
        inputs = number * float(subject.model.policies.saved_bytes[FULL, 0]) * (policy == FULL)
        kept += [
            (number * num_blocks * group.num_layers / total, tensor)
            for group in blocks
            for op in group.ops
            for tensor in (op.saved if policy is None else op.kept)
            if policy != FULL
        ]
        items.append(_flat_item("transient.mtp.recompute_inputs", 0.0, inputs, "loss"))
        items += [_tensor_item("transient.mtp", tensor, copies, "loss") for copies, tensor in kept]
    return [*items, *_term_items(subject, subject.strategy.head_stage, "loss")]


@item(
    "memory.transient",
    inputs=(
        "model.vocab_size",
        "traits.kernels.loss",
    ),
    also=(StageModel.transient_bytes, head_op, transient_layer_bytes),
)
@item(
    "memory.transient.offload_buffers",
    inputs=(
        *SHAPE,
        "strategy.offloaded_layers_per_stage",
    ),
    also=(offload_buffer_bytes, StageModel.transient_bytes),
)
def _backward_items(subject: PricedStrategy, stage: int) -> list[LedgerItem]:
    """Return the items alive besides saved activations while a layer runs backward.

    Of rebuilt activations and offload buffers only the larger one counts.
    """
    used = subject.counts[:, 0, stage] > 0
    by_policy = subject.model.policies.workspace_bytes[:, 0] * used
    rebuilt = float(by_policy[[SELECTIVE, FULL]].max())
    moved = float(by_policy[OTHERS].max())
    name = "rebuilt_activations" if rebuilt >= moved else "offload_buffers"
    workspace = _flat_item(f"transient.{name}", 0.0, max(rebuilt, moved), "backward of a layer")
    return [*_term_items(subject, stage, "backward"), workspace]


def _allocated(items: list[LedgerItem]) -> float:
    return sum(item.num_bytes for item in items if item.lifetime not in (RESERVED, NON_ALLOCATOR))


def _late_gradient_bytes(subject: PricedStrategy, stage: int) -> float:
    """Gradient shards there at the fullest moment of backward, of those made during it.

    Each layer frees what it kept and leaves a shard: where shards are larger the first layers
    are the fullest moment, with half of them there, else the last layer, with the head's; the
    last but one, with one layer's activations less, where a layer's reduction is the larger.
    """
    parts, states = subject.parts, subject.context.traits.states
    if _state_lifetime(subject, "gradients") != RESERVED:
        return 0.0
    layers = int(subject.layers[0, stage])
    shard = float(parts.layer_bytes("gradients", parts.costs.body)[0])
    head = float((parts.last_params * parts.last_states.gradients)[0])
    full, none = subject.model.policies.saved_bytes[FULL], subject.model.saved_bytes
    kept = float((full if subject.counts[FULL, 0, stage] > 0 else none)[0])
    if shard > kept:
        return head + layers // 2 * (shard - kept)
    later = float((parts.params - parts.last_params)[0]) * states.gradient_reduce_bytes
    return head - min(kept - shard, max(later, 0.0))


def stage_ledgers(subject: PricedStrategy) -> tuple[StageLedger, ...]:
    """The ledger of every stage, each at its own fullest moment."""
    return tuple(stage_ledger(subject, stage) for stage in range(subject.strategy.pp))


def stage_ledger(subject: PricedStrategy, stage: int) -> StageLedger:
    """Every item of a stage at its fullest moment, largest first."""
    step, *states = _state_items(subject, stage)
    static = [*states, *_term_items(subject, stage, "stage", "first", "last")]
    lasting = [*static, *_activation_items(subject, stage)]
    loss = _loss_items(subject) if stage == subject.strategy.head_stage else []
    backward = _backward_items(subject, stage)
    at_loss = sum(each.num_bytes for each in loss) >= sum(each.num_bytes for each in backward)
    moment = "loss of a micro-batch" if at_loss else "backward of a layer"
    items = [*lasting, *(loss if at_loss else backward)]
    held = float(subject.model.held_bytes(*subject.split)[0, stage])
    if sum(each.num_bytes for each in [*static, step]) > sum(each.num_bytes for each in items):
        moment, items = step.lifetime, [*static, step]
    items += _term_items(subject, stage, "device")
    split = held * subject.model.fragmentation_fraction
    items.append(_flat_item("overhead.fragmentation", 0.0, split, RESERVED))
    ordered = sorted(
        (item for item in items if item.num_bytes > 0.0),
        key=lambda item: (-item.num_bytes, item.name),
    )
    in_backward = _allocated(backward) + _late_gradient_bytes(subject, stage)
    in_pass = _allocated(lasting) + max(_allocated(loss), in_backward)
    # All gradients are there while the optimizer steps.
    left = [each for each in static if each.lifetime != RESERVED or each.name == "gradients"]
    allocated = max(in_pass, sum(each.num_bytes for each in [*left, step]))
    return StageLedger(
        stage=stage,
        moment=moment,
        items=tuple(ordered),
        allocated_bytes=allocated,
        released_bytes=max(held - allocated, 0.0),
    )
