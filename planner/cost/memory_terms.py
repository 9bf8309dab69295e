"""Memory of a rank that is no activation, as a table: the stage model sums it, the ledger lists it.

A term is so many bytes per stage, per layer, or once on the stage of an end of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np

from planner.cost import buffers
from planner.cost.stage_parts import Per, StageParameters
from planner.spec.traits import FrameworkTraits
from planner.units import Array

Lifetime = Literal[
    "whole run",
    "forward to backward",
    "loss",
    "backward of a layer",
    "optimizer step",
    "outside the allocator",
    "held by the allocator",
]
RESERVED: Lifetime = "held by the allocator"
NON_ALLOCATOR: Lifetime = "outside the allocator"
Place = Literal["device", "host"]


@dataclass(frozen=True, kw_only=True)
class MemoryTerm:
    """Bytes on the device that are no model state."""

    name: str  # Name of the ledger's item
    per: Per
    of: Callable[[StageParameters], Array | float]
    lifetime: Lifetime = "whole run"
    elements: Callable[[StageParameters], Array] | None = None
    """Number of elements, if it is one tensor."""
    when: Callable[[FrameworkTraits], object] = bool
    """Function of the traits, false where the term is absent; ``bool`` is true of all traits."""


@dataclass(frozen=True, kw_only=True)
class StateTerm:
    """Bytes of weights, gradients and optimizer states, of which a part may be in host memory."""

    per: Per
    of: Callable[[StageParameters, str], Array]
    """Bytes of one state (a field of StateBytes), or of all in one Place."""
    elements: Callable[[StageParameters], Array] | None = None
    """Parameters; None: frozen weights, which have no states."""


def _dummy(elements: Callable[[StageParameters], Array], per: Per) -> MemoryTerm:
    return MemoryTerm(
        name="dummy_weight_gradients",
        per=per,
        of=lambda parts: buffers.dummy_gradient_bytes(
            parts.context, parts.strategy, elements(parts)
        ),
        elements=elements,
    )


def _once(of: Callable[[StageParameters], Array]) -> Callable[[StageParameters], Array]:
    """Count a term of the head only on another stage than the embedding's, which counts it too."""
    return lambda parts: of(parts) * (parts.strategy.head_stage > 0)


def _leading_params(parts: StageParameters) -> Array:
    costs = parts.costs
    lead, body = costs.lead, costs.body
    further = lead.params + lead.expert_params - body.params - body.expert_params
    return costs.num_leading * costs.at(further)


# The order is the order of addition: another one differs in the last bits, which decide ties
# between strategies.
TERMS: tuple[MemoryTerm | StateTerm, ...] = (
    _dummy(lambda parts: parts.costs.at(parts.costs.linear_params), "stage"),
    MemoryTerm(
        name="gathered_weights.layers",
        per="stage",
        of=buffers.gathered_layer_bytes,
        when=attrgetter("states.cuts_weights"),
    ),
    MemoryTerm(
        name="workspaces", per="stage", of=lambda parts: buffers.workspace_bytes(parts.context)
    ),
    MemoryTerm(
        name="buckets",
        per="stage",
        of=buffers.bucket_bytes,
        when=lambda traits: traits.overheads.num_buckets,
    ),
    MemoryTerm(
        name="step_group",
        per="stage",
        of=buffers.step_group_bytes,
        lifetime=RESERVED,
        when=lambda traits: traits.states.sharded_by == "zero",
    ),
    MemoryTerm(
        name="gather_buffers",
        per="stage",
        of=buffers.gather_pool_bytes,
        lifetime=RESERVED,
        when=attrgetter("states.gathers_into_pools"),
    ),
    MemoryTerm(
        name="dead_blocks",
        per="stage",
        of=buffers.dead_block_bytes,
        lifetime=RESERVED,
        when=lambda traits: traits.kernels.saved.entries("freed"),
    ),
    StateTerm(
        per="layer",
        of=lambda parts, state: parts.layer_bytes(state, parts.costs.body),
        elements=lambda parts: parts.costs.at(
            parts.costs.body.params + parts.costs.body.expert_params
        ),
    ),
    StateTerm(per="layer", of=lambda parts, place: parts.frozen_bytes("layer", place)),
    StateTerm(
        per="first",
        of=lambda parts, state: parts.first_params * getattr(parts.first_states, state),
        elements=lambda parts: parts.first_params,
    ),
    StateTerm(per="first", of=lambda parts, place: parts.frozen_bytes("first", place)),
    StateTerm(per="first", of=StageParameters.lead_bytes, elements=_leading_params),
    MemoryTerm(name="largest_gradient.copy", per="first", of=buffers.largest_gradient_bytes),
    MemoryTerm(
        name="largest_gradient.embedding",
        per="first",
        of=buffers.embedding_gradient_bytes,
        when=lambda traits: traits.states.embedding_gradient_is_whole,
    ),
    StateTerm(
        per="last",
        of=StageParameters.last_bytes,
        elements=lambda parts: parts.last_params + parts.all_mtp_params,
    ),
    StateTerm(per="last", of=lambda parts, place: parts.frozen_bytes("last", place)),
    MemoryTerm(name="largest_gradient.copy", per="last", of=_once(buffers.largest_gradient_bytes)),
    MemoryTerm(
        name="gathered_weights.vocabulary",
        per="first",
        of=buffers.gathered_vocabulary_bytes,
        when=attrgetter("states.cuts_weights"),
    ),
    MemoryTerm(
        name="gathered_weights.vocabulary",
        per="last",
        of=_once(buffers.gathered_vocabulary_bytes),
        when=attrgetter("states.cuts_weights"),
    ),
    MemoryTerm(name="kept_logits", per="last", of=buffers.kept_logits_bytes),
    _dummy(
        lambda parts: parts.costs.at(parts.costs.vocab_params + parts.costs.mtp.linear_params),
        "last",
    ),
    MemoryTerm(
        name="receive_buffers",
        per="received",
        of=buffers.receive_buffer_bytes,
        when=lambda traits: traits.states.pipeline_engine == "torch",
    ),
    MemoryTerm(
        name="activations.sent_on",
        per="sent",
        of=buffers.sent_bytes,
        lifetime="forward to backward",
        when=lambda traits: traits.states.pipeline_engine != "megatron",
    ),
    MemoryTerm(
        name="transient.activation_gradients",
        per="backward",
        of=lambda parts: parts.costs.at(parts.costs.backward_bytes),
        lifetime="backward of a layer",
    ),
    MemoryTerm(
        name="transient.dequantised_matrix",
        per="backward",
        of=lambda parts: parts.costs.at(parts.costs.dequantised_bytes),
        lifetime="backward of a layer",
    ),
    MemoryTerm(
        name="transient.gathered_parameters",
        per="backward",
        of=buffers.transient_layer_bytes,
        lifetime="backward of a layer",
        when=lambda traits: max(traits.support.zero_stages) >= 2,
    ),
    MemoryTerm(
        name="transient.gathered_head",
        per="loss",
        of=buffers.gathered_head_bytes,
        lifetime="loss",
        when=lambda traits: 3 in traits.support.zero_stages,
    ),
    MemoryTerm(
        name="overhead.context",
        per="device",
        of=lambda parts: buffers.context_bytes(parts.context),
        lifetime=NON_ALLOCATOR,
    ),
    MemoryTerm(
        name="overhead.communicators",
        per="device",
        of=lambda parts: buffers.communicator_bytes(parts.context, parts.strategy),
        lifetime=NON_ALLOCATOR,
    ),
)
STATES = tuple(term for term in TERMS if isinstance(term, StateTerm) and term.elements)
STATIC: tuple[Per, ...] = ("stage", "layer", "first", "last")


def bytes_per(per: Per, parts: StageParameters, place: Place = "device") -> Array:
    """Sum of the terms that are counted per ``per``; C."""
    total = np.zeros(len(parts.strategy))
    for term in TERMS:
        if term.per != per:
            continue
        if isinstance(term, StateTerm):
            total = total + term.of(parts, place)
        elif place == "device" and term.when(parts.context.traits):
            total = total + term.of(parts)
    return total
