"""Peak memory of the fullest stage by item."""

from dataclasses import dataclass

import numpy as np

from planner.cost.layer import layer_shape
from planner.cost.stage import (
    all_stages,
    fits,
    in_flight_matrix,
    stage_host_bytes,
    stage_peak_bytes,
    transient_bytes,
)
from planner.cost.subject import Subject
from planner.layers.block import layer_groups
from planner.spec.traits import kernels_under

MOMENT_LOSS = "loss of the first micro-batch"
MOMENT_BACKWARD = "backward of the first micro-batch"


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of the fullest stage, item by item, and the peak of every stage."""

    peak_bytes: float
    allocated_bytes: float
    usable_bytes: float
    peak_stage: int
    moment: str
    items: dict[str, float]
    """Bytes by dotted name; their sum is peak_bytes."""
    stage_peak_bytes: tuple[float, ...]
    stage_allocated_bytes: tuple[float, ...]
    host_bytes: float
    """Offloaded bytes per rank."""
    fits: bool


def _state_items(subject: Subject, stage: int) -> dict[str, float]:
    """Weights, gradients, optimizer states and dummy weight gradients of one stage."""
    parts = subject.parts
    layers, ends = subject.layers[0, stage], subject.end_params(stage)

    def states(name: str) -> float:
        return float((layers * parts.layer_bytes(name) + ends * getattr(parts.states, name))[0])

    items = {name: states(name) for name in ("weights", "gradients", "optimizer")}
    linear = parts.costs.at(parts.costs.linear_params)
    is_last = stage == subject.strategy.pp - 1
    linear = linear + is_last * parts.costs.at(parts.costs.vocab_params)
    per_element = subject.context.traits.kernels.dummy_weight_gradient_bytes
    items["dummy_weight_gradients"] = float(linear[0]) * per_element
    return items


def _activation_items(subject: Subject, stage: int) -> dict[str, float]:
    """Bytes kept for backward on one stage, by op, all micro-batches in flight."""
    model = subject.model
    flight = float(in_flight_matrix(model, all_stages(subject.strategy.pp))[0, stage])
    shape = layer_shape(subject.columns, subject.context.job)
    context = subject.context
    kernels = kernels_under(context.traits.kernels, context.job.precision)
    groups = layer_groups(context.model, shape, kernels)
    total = sum(group.num_layers for group in groups)
    selective = subject.selective[0, stage]
    untouched = subject.layers[0, stage] - subject.full[0, stage] - selective
    items: dict[str, float] = {}
    for group in groups:
        share = group.num_layers / total * flight
        for op in group.ops:
            saved = untouched * op.saved_bytes + selective * op.kept_bytes
            name = f"activations.{op.name}"
            items[name] = items.get(name, 0.0) + share * float(np.max(saved))
    inputs = subject.full[0, stage] * flight * model.full_saved_bytes[0]
    items["activations.recompute_inputs"] = float(inputs)
    if stage == 0:
        items["activations.embedding"] = flight * float(model.first_saved_bytes[0])
    return items


def _transient(subject: Subject, stage: int) -> tuple[float, bool]:
    """Short-lived bytes of a stage, and whether the loss sets them."""
    model, pp = subject.model, subject.strategy.pp
    transients = transient_bytes(
        model,
        all_stages(pp),
        selective=np.asarray(subject.selective > 0),
        full=np.asarray(subject.full > 0),
    )
    transient = float(transients[0, stage])
    is_loss = stage == pp - 1 and transient == float(model.last_transient_bytes[0])
    return transient, is_loss


def _overhead_items(subject: Subject, allocated_bytes: float) -> dict[str, float]:
    overheads = subject.context.traits.overheads
    fixed = overheads.context_bytes + overheads.workspace_bytes
    return {
        "overhead.context": overheads.context_bytes,
        "overhead.workspaces": overheads.workspace_bytes,
        "overhead.communicators": float(subject.model.overhead_bytes[0]) - fixed,
        "overhead.fragmentation": allocated_bytes * subject.model.fragmentation_fraction,
    }


def memory_estimate(subject: Subject) -> MemoryEstimate:
    """Peak over stages, with the items of the fullest one."""
    model = subject.model
    peaks = stage_peak_bytes(model, *subject.split)[0]
    overhead = float(model.overhead_bytes[0])
    allocated = (peaks - overhead) / (1.0 + model.fragmentation_fraction)
    stage = int(peaks.argmax())
    transient, is_loss = _transient(subject, stage)
    items = _state_items(subject, stage) | _activation_items(subject, stage)
    items["transient.logits_and_loss" if is_loss else "transient.layer_backward"] = transient
    items |= _overhead_items(subject, float(allocated[stage]))
    return MemoryEstimate(
        peak_bytes=float(peaks[stage]),
        allocated_bytes=float(allocated[stage]),
        usable_bytes=model.usable_bytes,
        peak_stage=stage,
        moment=MOMENT_LOSS if is_loss else MOMENT_BACKWARD,
        items={name: value for name, value in items.items() if value > 0.0},
        stage_peak_bytes=tuple(peaks.tolist()),
        stage_allocated_bytes=tuple(allocated.tolist()),
        host_bytes=float(stage_host_bytes(model, subject.layers).max()),
        fits=bool(fits(model, *subject.split)[0]),
    )
