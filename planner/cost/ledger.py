"""The ledger of one stage: every byte on a rank as a named item with shape, dtype and lifetime."""

from dataclasses import dataclass

import numpy as np

from planner.cost import buffers
from planner.cost.layer import layer_shape
from planner.cost.ledger_item import HELD, OUTSIDE, LedgerItem, Lifetime, flat_item, tensor_item
from planner.cost.priced import Subject
from planner.cost.stage import (
    FULL,
    OTHERS,
    SELECTIVE,
    all_stages,
    in_flight_matrix,
    leading_by_policy,
    stage_held_bytes,
    transient_bytes,
)
from planner.cost.states import keeps_no_copies, kept_whole
from planner.layers.block import (
    LayerGroup,
    block_kinds,
    embedding_op,
    head_op,
    layer_groups,
    mtp_ops,
)
from planner.layers.op import LayerShape
from planner.layers.weights import mean_states
from planner.spec.items import SHAPE, item
from planner.spec.job import WHOLE
from planner.spec.precision import under_precision
from planner.spec.traits import FrameworkTraits
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class StageLedger:
    """All items at the fullest moment of one stage, and when that is."""

    stage: int
    moment: str
    items: tuple[LedgerItem, ...]
    allocated_bytes: float
    """Largest sum of tensors over the moments, without what the allocator or the device hold
    beside them."""

    @property
    def peak_bytes(self) -> float:
        """Sum of the items."""
        return sum(item.num_bytes for item in self.items)

    @property
    def reserved_bytes(self) -> float:
        """What the allocator has taken from the device."""
        return sum(item.num_bytes for item in self.items if item.lifetime != OUTSIDE)


MOMENT_LOSS = "loss of a micro-batch"
MOMENT_BACKWARD = "backward of a layer"


def _traits(subject: Subject) -> FrameworkTraits:
    return under_precision(subject.context.traits, subject.context.job.precision)


def _parameters(subject: Subject, stage: int) -> float:
    costs = subject.parts.costs

    def of(layer: str) -> float:
        memory = getattr(costs, layer)
        return float((costs.at(memory.params) + costs.at(memory.expert_params))[0])

    lead = costs.num_leading * (stage == 0) * (of("lead") - of("body"))
    ends = subject.end_params(stage) + subject.mtp_params(stage)
    return float(subject.layers[0, stage]) * of("body") + lead + float(ends[0])


def _state_lifetime(subject: Subject, name: str) -> Lifetime:
    """Gradients that backward makes shard by shard are not there yet at the peak.

    With one micro-batch; their blocks stay reserved from one iteration to the next.
    """
    traits = subject.context.traits.states
    late = traits.gradients_made_in_backward and subject.strategy.num_micro_batches == 1
    is_apart = subject.strategy.zero_stage != 1 and not bool(kept_whole(subject.columns, traits)[0])
    return HELD if name == "gradients" and late and is_apart else "whole run"


def _state_shares(subject: Subject, name: str) -> dict[str, float]:
    """Parts of a state: the optimizer's are master weights, its own, and copies of gradients."""
    if name != "optimizer":
        return {name: 1.0}
    traits, optimizer = subject.context.traits.states, subject.context.traits.optimizer
    is_sharded = subject.strategy.zero_stage >= 1
    copies = traits.sharded_gradient_bytes if is_sharded else traits.unsharded_gradient_copy_bytes
    if bool(keeps_no_copies(subject.columns, traits)[0]):
        copies = 0.0
    if not is_sharded and subject.strategy.dp > 1:
        copies += traits.replica_bucket_bytes
    master = optimizer.master_bytes
    is_whole = subject.context.job.precision in WHOLE
    parts = {
        "optimizer.master_weights": traits.master_weight_bytes if master is None else master,
        "optimizer.states": mean_states(subject.context.model, optimizer).layer,
        f"optimizer.{'weight' if is_whole else 'gradient'}_copies": copies,
    }
    return {part: size / sum(parts.values()) for part, size in parts.items() if size}


def _state_items(subject: Subject, stage: int) -> list[LedgerItem]:
    """Weights, gradients, optimizer states and dummy weight gradients of one stage."""
    parts = subject.parts
    layers = subject.layers[0, stage]
    num_params = _parameters(subject, stage)
    items = []
    for name in ("weights", "gradients", "optimizer"):
        total = layers * parts.layer_bytes(name, parts.costs.body)
        total = total + (stage == 0) * parts.lead_bytes(name)
        total = total + (stage == 0) * parts.first_params * getattr(parts.first_states, name)
        is_last = stage == subject.strategy.head_stage
        total = total + is_last * parts.last_bytes(name)
        lifetime = _state_lifetime(subject, name)
        for part, share in _state_shares(subject, name).items():
            items.append(flat_item(part, num_params, float(total[0]) * share, lifetime))
    frozen = float(subject.frozen_bytes(stage)[0])
    items.append(LedgerItem(name="frozen_weights", num_bytes=frozen, lifetime="whole run"))
    linear = parts.costs.at(parts.costs.linear_params)
    is_last = stage == subject.strategy.head_stage
    further = parts.costs.vocab_params + parts.costs.mtp.linear_params
    elements = linear + is_last * parts.costs.at(further)
    kept = buffers.dummy_gradient_bytes(subject.context, subject.columns, elements)
    dummy = flat_item("dummy_weight_gradients", float(elements[0]), float(kept[0]), "whole run")
    return [*items, dummy, *_buffer_items(subject, stage)]


def _buffer_items(subject: Subject, stage: int) -> list[LedgerItem]:
    """Workspaces, buckets, other streams' buffers, freed blocks; extra gradients at the ends."""
    context, columns, parts = subject.context, subject.columns, subject.parts
    is_first, is_last = stage == 0, stage == subject.strategy.head_stage

    def item(name: str, num_bytes: Array, lifetime: Lifetime = "whole run") -> LedgerItem:
        return LedgerItem(name=name, num_bytes=float(num_bytes[0]), lifetime=lifetime)

    largest = buffers.largest_gradient_bytes(context, columns, parts)
    embedding = buffers.embedding_gradient_bytes(context, columns, parts)
    logits = buffers.kept_logits_bytes(context, columns, parts)
    return [
        LedgerItem(
            name="workspaces", num_bytes=buffers.workspace_bytes(context), lifetime="whole run"
        ),
        item("buckets", buffers.bucket_bytes(context, columns, parts)),
        item("step_group", buffers.step_group_bytes(context, columns, parts), HELD),
        item("gather_buffers", buffers.gather_pool_bytes(context, columns, parts), HELD),
        item("dead_blocks", buffers.dead_block_bytes(context, columns, parts), HELD),
        item("largest_gradient.copy", largest * (is_first or is_last)),
        item("largest_gradient.embedding", embedding * is_first),
        item("kept_logits", logits * is_last),
    ]


def _layers_by_policy(subject: Subject, stage: int) -> list[tuple[LayerGroup, float, float]]:
    """Per kind of layer: how many of a stage keep everything, and how many recompute selectively.

    Leading layers are those of the first stage; the others are spread evenly over stages.
    """
    shape = layer_shape(subject.columns, subject.context.job)
    groups = layer_groups(subject.context.model, shape, _traits(subject))
    stages = all_stages(subject.strategy.pp)
    none, taken = leading_by_policy(subject.model, subject.layers, subject.counts, stages)
    kept, by_selective = float(none[0, stage]), float(taken[SELECTIVE, 0, stage])
    selective = float(subject.counts[SELECTIVE, 0, stage])
    untouched = float((subject.layers - subject.counts.sum(axis=0))[0, stage])
    behind = sum(group.num_layers - group.num_leading for group in groups)
    counts = []
    for group in groups:
        share = (group.num_layers - group.num_leading) / max(behind, 1)
        is_leading = group.num_leading > 0
        counts.append(
            (
                group,
                (untouched - kept) * share + kept * is_leading,
                (selective - by_selective) * share + by_selective * is_leading,
            )
        )
    return counts


def _activation_items(subject: Subject, stage: int) -> list[LedgerItem]:
    """Tensors kept for backward on one stage, all micro-batches in flight."""
    model = subject.model
    flight = float(in_flight_matrix(model, all_stages(subject.strategy.pp))[0, stage])
    items = [
        tensor_item("activations", tensor, flight * number, "forward to backward")
        for group, untouched, selective in _layers_by_policy(subject, stage)
        for op in group.ops
        for number, tensors in ((untouched, op.saved), (selective, op.kept))
        for tensor in tensors
    ]
    shape = layer_shape(subject.columns, subject.context.job)
    tokens, hidden = float(shape.num_tokens[0]), subject.context.model.hidden_size
    inputs = float(subject.counts[FULL, 0, stage]) * flight
    items.append(
        LedgerItem(
            name="activations.recompute_inputs",
            num_bytes=inputs * float(model.policies.saved_bytes[FULL, 0]),
            lifetime="forward to backward",
            shape=(round(tokens), round(hidden / float(shape.sp[0]))),
            element_bytes=shape.element_bytes,
            copies=inputs,
        )
    )
    if stage == 0:
        embedding = embedding_op(subject.context.model, shape, _traits(subject))
        items += [
            tensor_item("activations", tensor, flight, "forward to backward")
            for tensor in embedding.saved
        ]
    items.append(_receive_buffers(subject, stage, flight))
    if stage < subject.strategy.pp - 1:
        copies = subject.strategy.num_micro_batches if model.keeps_all_sent else flight
        items.append(
            LedgerItem(
                name="activations.sent_on",
                num_bytes=copies * float(model.sent_saved_bytes[0]),
                lifetime="forward to backward",
                copies=copies,
            )
        )
    return items


def _receive_buffers(subject: Subject, stage: int, flight: float) -> LedgerItem:
    """Buffers that activations and gradients of other stages arrive in."""
    num = subject.strategy.num_micro_batches
    copies = (num - flight) * (stage > 0) + num * (stage < subject.strategy.pp - 1)
    size = float(subject.model.receive_buffer_bytes[0])
    return LedgerItem(
        name="receive_buffers", num_bytes=copies * size, lifetime="whole run", copies=copies
    )


def _loss_items(subject: Subject) -> list[LedgerItem]:
    """What lives when the loss of a micro-batch starts its backward."""
    shape = layer_shape(subject.columns, subject.context.job)
    head = head_op(subject.context.model, shape, _traits(subject))
    gathered = buffers.gathered_head_bytes(subject.context, subject.columns, subject.parts)
    return [
        *(tensor_item("transient", tensor, 1.0, "loss") for tensor in head.saved),
        *_mtp_items(subject, shape),
        LedgerItem(name="transient.gathered_head", num_bytes=float(gathered[0]), lifetime="loss"),
    ]


def _mtp_items(subject: Subject, shape: LayerShape) -> list[LedgerItem]:
    """What layers of multi-token prediction keep of the micro-batch whose loss is computed."""
    number, policy = float(subject.model.num_mtp_layers), subject.mtp_policy
    if not number:
        return []
    model, traits = subject.context.model, _traits(subject)
    blocks = block_kinds(layer_groups(model, shape, traits))
    total = sum(group.num_layers for group in blocks)
    kept = [(number, tensor) for op in mtp_ops(model, shape, traits) for tensor in op.saved]
    inputs = number * float(subject.model.policies.saved_bytes[FULL, 0]) * (policy == FULL)
    if policy != FULL:
        kept += [
            (number * group.num_layers / total, tensor)
            for group in blocks
            for op in group.ops
            for tensor in (op.saved if policy is None else op.kept)
        ]
    return [
        LedgerItem(name="transient.mtp.recompute_inputs", num_bytes=inputs, lifetime="loss"),
        *(tensor_item("transient.mtp", tensor, copies, "loss") for copies, tensor in kept),
    ]


def _workspaces(by_policy: Array) -> tuple[float, float]:
    """The larger of rebuilt activations and offload buffers; the other is 0."""
    rebuilt, moved = float(by_policy[[SELECTIVE, FULL]].max()), float(by_policy[OTHERS].max())
    return (rebuilt, 0.0) if rebuilt >= moved else (0.0, moved)


@item(
    "memory.transient",
    inputs=("model.vocab_size", "traits.kernels.loss"),
    also=(transient_bytes, head_op, buffers.transient_layer_bytes),
)
@item(
    "memory.transient.offload_buffers",
    inputs=(*SHAPE, "strategy.offloaded_layers_per_stage"),
    also=(buffers.offload_buffer_bytes, transient_bytes),
)
def _backward_items(subject: Subject, stage: int) -> list[LedgerItem]:
    """What lives beside kept activations while a layer runs backward."""
    model = subject.model
    used = subject.counts[:, 0, stage] > 0
    rebuilt, buffers_bytes = _workspaces(model.policies.workspace_bytes[:, 0] * used)
    gathered = float(
        buffers.transient_layer_bytes(subject.context, subject.columns, subject.parts)[0]
    )
    matrix = float(subject.parts.costs.at(subject.parts.costs.dequantised_bytes)[0])
    parts = {
        "gathered_parameters": gathered,
        "dequantised_matrix": matrix,
        "activation_gradients": float(model.layer_transient_bytes[0]) - gathered - matrix,
        "rebuilt_activations": rebuilt,
        "offload_buffers": buffers_bytes,
    }
    return [
        LedgerItem(name=f"transient.{name}", num_bytes=value, lifetime="backward of a layer")
        for name, value in parts.items()
    ]


def _held(items: list[LedgerItem]) -> float:
    return sum(item.num_bytes for item in items)


def _allocated(items: list[LedgerItem]) -> float:
    return sum(item.num_bytes for item in items if item.lifetime not in (HELD, OUTSIDE))


def _late_gradient_bytes(subject: Subject, stage: int) -> float:
    """Gradient shards there at the fullest moment of backward, of those made during it.

    Each layer frees what it kept and leaves a shard: where shards are larger the first layers
    are the fullest moment, with half of them there, else the last layer, with the head's; the
    last but one, with one layer's activations less, where a layer's reduction is the larger.
    """
    parts, states = subject.parts, subject.context.traits.states
    if _state_lifetime(subject, "gradients") != HELD:
        return 0.0
    layers = int(subject.layers[0, stage])
    shard = float(parts.layer_bytes("gradients", parts.costs.body)[0])
    head = float((parts.last_params * parts.last_states.gradients)[0])
    is_full = subject.counts[FULL, 0, stage] > 0
    full, none = subject.model.policies.saved_bytes[FULL], subject.model.saved_bytes
    kept = float((full if is_full else none)[0])
    if shard > kept:
        return head + layers // 2 * (shard - kept)
    later = float((parts.params - parts.last_params)[0]) * states.gradient_reduce_bytes
    return head - min(kept - shard, max(later, 0.0))


def _step_bytes(subject: Subject, stage: int) -> float:
    """Weights, gradients and states while the optimizer steps, with its temporaries.

    Nothing else is left then: only where temporaries are larger than activations is this the
    fullest moment.
    """
    states = subject.context.traits.states
    shards = subject.parts.num_shards if subject.strategy.zero_stage else 1.0
    temporaries = _parameters(subject, stage) * states.step_temporary_bytes / shards
    kept = sum(item.num_bytes for item in _state_items(subject, stage) if item.shape)
    return kept + float(np.max(temporaries))


def _overhead_items(subject: Subject, stage: int) -> list[LedgerItem]:
    """What the device holds beside tensors."""
    model, context = subject.model, buffers.context_bytes(subject.context)
    allocated = float(stage_held_bytes(model, *subject.split)[0, stage])
    communicators = float(model.overhead_bytes[0]) - context
    return [
        LedgerItem(name="overhead.context", num_bytes=context, lifetime=OUTSIDE),
        LedgerItem(name="overhead.communicators", num_bytes=communicators, lifetime=OUTSIDE),
        LedgerItem(
            name="overhead.fragmentation",
            num_bytes=allocated * model.fragmentation_fraction,
            lifetime=HELD,
        ),
    ]


def stage_ledgers(subject: Subject) -> tuple[StageLedger, ...]:
    """The ledger of every stage, each at its own fullest moment."""
    return tuple(stage_ledger(subject, stage) for stage in range(subject.strategy.pp))


def stage_ledger(subject: Subject, stage: int) -> StageLedger:
    """Every item of a stage at its fullest moment, largest first."""
    lasting = [*_state_items(subject, stage), *_activation_items(subject, stage)]
    loss = _loss_items(subject) if stage == subject.strategy.head_stage else []
    backward = _backward_items(subject, stage)
    at_loss = _held(loss) >= _held(backward)
    items = [*lasting, *(loss if at_loss else backward), *_overhead_items(subject, stage)]
    ordered = sorted(
        (item for item in items if item.num_bytes > 0.0),
        key=lambda item: (-item.num_bytes, item.name),
    )
    in_backward = _allocated(backward) + _late_gradient_bytes(subject, stage)
    in_pass = _allocated(lasting) + max(_allocated(loss), in_backward)
    return StageLedger(
        stage=stage,
        moment=MOMENT_LOSS if at_loss else MOMENT_BACKWARD,
        items=tuple(ordered),
        allocated_bytes=max(in_pass, _step_bytes(subject, stage)),
    )
