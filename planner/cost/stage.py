"""StageModel: time and memory of every pipeline stage, affine in its layer counts.

The search bounds it, the solver optimises it and the estimate reports it: one model for all.
Rows are strategies (C); matrices are strategies by stages. ``layers`` has one
column per stage 0 to P - 1, or, where ``stages`` is given (1 x K or C x K stage numbers), one
column for each of those; ``counts`` has such a matrix for each of POLICIES; None: under none.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.context import Rowed
from planner.cost.pipeline import IN_FLIGHT, in_flight, makespan_s
from planner.spec.items import item
from planner.spec.strategy import IN_STAGE, POLICIES, StrategyColumns
from planner.units import Array, Mask

SELECTIVE, FULL, OFFLOADED = (POLICIES.index(name) for name in ("selective", "full", "offloaded"))
# Policies that recompute nothing: the exact rules for whole layers do not hold for them.
OTHERS = [policy for policy in range(len(POLICIES)) if policy not in (SELECTIVE, FULL)]


@dataclass(frozen=True, kw_only=True)
class PolicyCosts(Rowed):
    """Costs of a layer under each of POLICIES; every field is K x C.

    A policy that is not offered keeps what no policy keeps.
    """

    added_s: Array  # Per layer and micro-batch
    fill_s: Array  # Per stage and micro-batch, where at least one layer is under the policy
    saved_bytes: Array  # Per layer and micro-batch in flight
    lead_saved_bytes: Array  # Bytes that a leading layer keeps in excess of another layer
    workspace_bytes: Array
    """Alive in a layer's backward, where at least one layer is under the policy."""
    host_bytes: Array  # Per layer and micro-batch in flight, in host memory


@dataclass(frozen=True, kw_only=True)
class StageModel(Rowed):
    """Coefficients per strategy. Times per micro-batch unless said, bytes per rank."""

    strategy: StrategyColumns
    num_layers: int  # Of the whole model
    layer_s: Array  # Forward and backward of one layer, exposed communication included
    policies: PolicyCosts
    first_s: Array
    last_s: Array
    link_s: Array
    """Per stage, whatever its layers: exposed transfers between stages, unhidden prefetch."""
    bubble_filled_s: Array
    """Seconds of the bubble, before vpp divides it, that the schedule fills with weight
    gradients."""
    tail_layer_s: Array
    """Shape (2, C). Per iteration: gradient reduction and optimizer step of a stage are the
    larger of two affine functions of its layers (the last bucket, or overlap window exhausted)."""
    tail_first_s: Array
    tail_last_s: Array
    constant_s: Array  # Per iteration, whatever the split
    stage_static_bytes: Array  # Bytes of every stage, whatever its layers
    layer_static_bytes: Array
    first_static_bytes: Array
    last_static_bytes: Array
    step_bytes: Array  # (4, C), in the optimizer's step: per stage, layer, first, last
    saved_bytes: Array  # Per layer and micro-batch in flight, under no policy
    num_mtp_layers: int
    """Multi-token prediction layers on the stage of the head; their costs are the head's."""
    num_leading: int
    """Leading layers, all on the first stage; full recomputation takes them first, then
    selective recomputation, then offloading."""
    lead_saved_bytes: Array
    """Bytes that a leading layer keeps in excess of another layer, under no policy."""
    first_saved_bytes: Array
    part_saved_bytes: Array
    """Bytes of every stage per micro-batch in flight, whatever its layers: the reduction by the
    first layers of every chunk, where a policy takes the same number of each; never positive."""
    least_chunk_layers: Array  # Least layers of every chunk: the number that the policy takes
    receive_buffer_bytes: Array
    """Per micro-batch of the iteration and direction, where the pipeline keeps such buffers.
    Micro-batches in flight have theirs counted as the input that is kept."""
    sent_saved_bytes: Array
    """Bytes of activations sent on, per micro-batch in flight, on every stage but the last."""
    keeps_all_sent: bool  # Per micro-batch of the iteration instead
    layer_transient_bytes: Array  # Largest short-lived tensors while a layer runs backward
    last_transient_bytes: Array  # Logits and loss, alive when backward starts on the last stage
    overhead_bytes: Array  # Context, workspaces, communicators
    fragmentation_fraction: float
    layer_host_bytes: Array
    first_host_bytes: Array
    last_host_bytes: Array
    usable_bytes: float  # HBM the driver offers, less the margin
    host_limit_bytes: Array  # Host memory or NVMe per accelerator

    def __len__(self) -> int:
        return len(self.strategy)

    @property
    def held_limit_bytes(self) -> Array:
        """Bytes tensors may take: usable less overheads, less what fragmentation wastes."""
        budget = self.usable_bytes - self.overhead_bytes
        return budget / (1.0 + self.fragmentation_fraction)

    def weighed(self, weight: Array) -> "StageModel":
        """The model with every time multiplied by a weight of the strategy's, C."""

        def weighed(part: StageModel | PolicyCosts) -> dict[str, Array]:
            values = vars(part).items()
            return {name: value * weight for name, value in values if name.endswith("_s")}

        policies = self.policies.but(**weighed(self.policies))
        return self.but(policies=policies, **weighed(self))

    def ends(self, stages: Array) -> tuple[Array, Array]:
        """1.0 where a stage holds the embedding, and where it holds the head of its strategy."""
        return (stages == 0) * 1.0, (stages == self.strategy.head_stage[:, None]) * 1.0

    def in_flight(self, stages: Array) -> Array:
        """Micro-batches in flight on the given stages."""
        strategy = self.strategy
        return in_flight(
            stages,
            strategy.pp[:, None],
            strategy.num_micro_batches[:, None],
            strategy.vpp[:, None],
            strategy.schedule[:, None],
        )

    def fixed_time_s(self, stages: Array) -> Array:
        """Per stage and micro-batch, without its layers: embedding, head, links."""
        first, last = self.ends(stages)
        return self.first_s[:, None] * first + self.last_s[:, None] * last + self.link_s[:, None]

    def fixed_bytes(self, stages: Array, flight: Array | None = None) -> Array:
        """Allocated bytes per stage without its layers and transients.

        ``flight``: micro-batches in flight, where they are at hand.
        """
        first, last = self.ends(stages)
        flight = self.in_flight(stages) if flight is None else flight
        at_first = self.first_static_bytes[:, None] + flight * self.first_saved_bytes[:, None]
        at_last = self.last_static_bytes[:, None]
        anywhere = self.stage_static_bytes[:, None] + flight * self.part_saved_bytes[:, None]
        total = anywhere + at_first * first + at_last * last
        if not (self.sent_saved_bytes.any() or self.receive_buffer_bytes.any()):
            return total
        received, sent = self.buffers_held(stages, flight)
        total = total + sent * self.sent_saved_bytes[:, None]
        return total + received * self.receive_buffer_bytes[:, None]

    def buffers_held(self, stages: Array, flight: Array) -> tuple[Array, Array]:
        """Receive buffers of every stage, and micro-batches whose outputs it keeps."""
        sends_on = (stages < self.strategy.pp[:, None] - 1) * 1.0
        num = self.strategy.num_micro_batches[:, None] * 1.0
        received = (num - flight) * (stages > 0) + num * sends_on
        return received, (num if self.keeps_all_sent else flight) * sends_on

    def fixed_host_bytes(self, stages: Array) -> Array:
        """Offloaded bytes per stage without its layers."""
        first, last = self.ends(stages)
        return self.first_host_bytes[:, None] * first + self.last_host_bytes[:, None] * last

    def saves(self, *, leading: bool) -> Mask:
        """Policies under which some layer keeps less; ``leading``: maybe only a leading one."""
        kept, none = self.policies.saved_bytes, self.saved_bytes
        saves = kept < none
        if leading:
            saves |= kept + self.policies.lead_saved_bytes < none + self.lead_saved_bytes
        return np.asarray(saves)

    def workspace_bytes(self, counts: Array | None) -> Array | float:
        """Per stage the largest workspace of a policy that a layer of the stage is under."""
        if counts is None:
            return 0.0
        workspaces = self.policies.workspace_bytes[:, :, None]
        return np.asarray(np.where(counts > 0, workspaces, 0.0).max(axis=0))

    def transient_bytes(self, stages: Array, workspace: Array | float) -> Array:
        """Short-lived bytes per stage: a layer's backward with its workspace, or the loss."""
        _, last = self.ends(stages)
        layer = self.layer_transient_bytes[:, None] + workspace
        return np.maximum(layer, self.last_transient_bytes[:, None] * last)

    def time_s(
        self, layers: Array, counts: Array | None = None, stages: Array | None = None
    ) -> Array:
        """Seconds per micro-batch of every stage (or of the given ones).

        ``n t + Σ_k (c_k a_k + [c_k > 0] b_k) + fixed``: n layers, of which c_k are under policy k,
        which adds a_k to a layer, b_k to a stage; fixed: embedding, head, links. Excludes waiting.
        """
        fixed = self.fixed_time_s(_stages_of(layers, stages))
        seconds = layers * self.layer_s[:, None] + fixed
        if counts is not None:
            seconds = seconds + _by_policy(counts, self.policies.added_s)
        if counts is not None and self.policies.fill_s.any():
            used = np.where(counts > 0, 1.0, 0.0)
            seconds = seconds + _by_policy(used, self.policies.fill_s)
        return seconds

    def first_k_dense(self, layers: Array, stages: Array) -> Array:
        """Leading layers per stage: all on the first one, as far as it holds so many layers."""
        return np.asarray(np.minimum(self.num_leading, layers) * (stages == 0))

    def leading_by_policy(self, layers: Array, counts: Array, stages: Array) -> tuple[Array, Array]:
        """Leading layers per stage under no policy, and under each.

        Full recomputation takes the first layers of a stage (Megatron-LM's ``block`` method), then
        the others in the order of IN_STAGE.
        """
        left = self.first_k_dense(layers, stages)
        taken = np.zeros_like(counts)
        for policy in map(POLICIES.index, IN_STAGE):
            taken[policy] = np.minimum(counts[policy], left)
            left = left - taken[policy]
        return left, taken

    def kept_bytes(self, layers: Array, counts: Array | None, stages: Array) -> Array:
        """Bytes a stage's layers keep for backward, per micro-batch in flight."""
        saved = self.saved_bytes[:, None]
        if counts is None:
            leading = self.first_k_dense(layers, stages) * self.lead_saved_bytes[:, None]
            return np.asarray(layers * saved + leading)
        kept: Array = (layers - counts.sum(axis=0)) * saved + _by_policy(
            counts, self.policies.saved_bytes
        )
        if self.num_leading:
            none, taken = self.leading_by_policy(layers, counts, stages)
            kept = kept + none * self.lead_saved_bytes[:, None]
            kept = kept + _by_policy(taken, self.policies.lead_saved_bytes)
        return kept

    @item(
        "memory.activations",
        inputs=(
            "strategy.schedule",
            "strategy.pp",
            "strategy.vpp",
            "strategy.layers_per_stage",
        ),
        also=IN_FLIGHT,
    )
    def held_bytes(
        self, layers: Array, counts: Array | None = None, stages: Array | None = None
    ) -> Array:
        """Peak bytes the allocator holds on every stage (or on the given ones).

        Tensors, and blocks that were freed but only another stream may use again. ``n`` layers hold
        ``n · static + in flight · (kept by policy) + fixed + transient``, or what the step holds.
        """
        stages = _stages_of(layers, stages)
        flight = self.in_flight(stages)
        activations = flight * self.kept_bytes(layers, counts, stages)
        in_pass = (
            layers * self.layer_static_bytes[:, None]
            + self.fixed_bytes(stages, flight)
            + activations
            + self.transient_bytes(stages, self.workspace_bytes(counts))
        )
        if not self.step_bytes.any():
            return in_pass
        return np.maximum(in_pass, self.step_held_bytes(layers, stages))

    def step_held_bytes(self, layers: Array | float, stages: Array) -> Array:
        """Bytes while the optimizer steps: those of the whole run, and what it makes."""
        first, last = self.ends(stages)
        per_stage, per_layer, at_first, at_last = self.step_bytes[:, :, None]
        return np.asarray(per_stage + layers * per_layer + at_first * first + at_last * last)

    @item("memory.overhead.fragmentation", inputs=("traits.overheads.fragmentation_fraction",))
    def peak_bytes(
        self, layers: Array, counts: Array | None = None, stages: Array | None = None
    ) -> Array:
        """Peak bytes of every stage as the device sees them: fragmentation and overheads added.

        ``held · (1 + fragmentation_fraction) + overhead``. Source: framework traits.
        """
        allocated = self.held_bytes(layers, counts, stages)
        return allocated * (1.0 + self.fragmentation_fraction) + self.overhead_bytes[:, None]

    def host_bytes(
        self, layers: Array, counts: Array | None = None, stages: Array | None = None
    ) -> Array:
        """Offloaded bytes per rank of every stage, or of the given ones: states, activations."""
        stages = _stages_of(layers, stages)
        held = layers * self.layer_host_bytes[:, None] + self.fixed_host_bytes(stages)
        if counts is None or not self.policies.host_bytes.any():
            return held
        flight = self.in_flight(stages)
        return held + flight * _by_policy(counts, self.policies.host_bytes)

    def step_end_s(self, layers: Array, stages: Array | None = None) -> Array:
        """Seconds per iteration after the last micro-batch: gradient reduction and optimizer."""
        first, last = self.ends(_stages_of(layers, stages))
        pieces = (
            layers[None] * self.tail_layer_s[:, :, None]
            + self.tail_first_s[:, :, None] * first
            + self.tail_last_s[:, :, None] * last
        )
        return np.asarray(pieces.max(axis=0))

    def iteration_s(self, layers: Array, counts: Array | None = None) -> Array:
        """Seconds per iteration: the pipeline's makespan, the slowest tail, the constant. C.

        Rows may have fewer stages than ``layers`` has columns.
        """
        strategy = self.strategy
        is_stage = all_stages(layers.shape[1]) < strategy.pp[:, None]
        seconds = np.where(is_stage, self.time_s(layers, counts), 0.0)
        slowest_s = seconds.max(axis=1)
        sum_s = seconds.sum(axis=1)
        makespan = makespan_s(strategy, slowest_s, sum_s, self.bubble_filled_s)
        tail = self.step_end_s(layers).max(axis=1)
        return np.asarray(makespan + tail + self.constant_s)

    def fits(self, layers: Array, counts: Array | None = None) -> Mask:
        """True where every stage is within HBM and host limits. C."""
        allocated = self.held_bytes(layers, counts)
        device = allocated <= self.held_limit_bytes[:, None]
        host = self.host_bytes(layers, counts) <= self.host_limit_bytes[:, None]
        beyond = all_stages(layers.shape[1]) >= self.strategy.pp[:, None]
        return np.asarray((device & host | beyond).all(axis=1))


def all_stages(num_stages: int) -> Array:
    """Stage numbers 0 to P - 1 as a row."""
    return np.arange(float(num_stages))[None, :]


def _stages_of(layers: Array, stages: Array | None) -> Array:
    return all_stages(layers.shape[1]) if stages is None else stages


def _by_policy(counts: Array, per_layer: Array) -> Array:
    """Sum over policies of layers times a figure per layer (K x C)."""
    return np.asarray((counts * per_layer[:, :, None]).sum(axis=0))
