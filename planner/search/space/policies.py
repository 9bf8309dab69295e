"""Policies for the activations of all layers together, as far as a framework can express them.

A policy is a row's own decision. Where every layer is under one kind, its costs become the
layer's; where a number of layers of every chunk is under a kind, that becomes part of what every
stage holds. Either way the stage problem that is left deals out layers only. Mixed policies leave
it to the stage problem which layers of a stage are under which kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.cost.policies import with_recomputed_mtp
from planner.cost.stage import PolicyCosts, StageModel
from planner.search.space.expressions import MIXED_LAYERS
from planner.search.space.narrow import Narrowing
from planner.spec.strategy import LAYER_POLICIES, LAYER_POLICY_NAMES, POLICIES
from planner.units import Array, Index


def base_policy(kinds: Sequence[str]) -> int | None:
    """The policy a layer is under at least, where every layer has to be under one."""
    if "none" in kinds:
        return None
    return next(k for k, name in enumerate(POLICIES) if name in kinds)


def of_kinds(model: StageModel, kinds: Sequence[str]) -> StageModel:
    """The model without the policies that are not among ``kinds``.

    Where ``none`` is not, the costs of a layer are those under the first policy allowed, and the
    others' are what they differ by; :func:`filled_counts` turns counts back.
    """
    base, policies = base_policy(kinds), model.policies
    if base is not None:
        # What is offloaded is offered without pipelining: one micro-batch is in flight.
        added, workspace = policies.added_s[base], policies.workspace_bytes[base]
        model = with_recomputed_mtp(model, base)
        model = model.but(
            layer_s=model.layer_s + added,
            link_s=model.link_s + policies.fill_s[base],
            saved_bytes=policies.saved_bytes[base],
            lead_saved_bytes=policies.lead_saved_bytes[base],
            layer_transient_bytes=model.layer_transient_bytes + workspace,
            layer_host_bytes=model.layer_host_bytes + policies.host_bytes[base],
        )
        policies = policies.but(
            added_s=policies.added_s - added,
            workspace_bytes=np.maximum(policies.workspace_bytes - workspace, 0.0),
        )
    allowed = np.array([name in kinds and k != base for k, name in enumerate(POLICIES)])[:, None]
    if allowed.all():
        return model
    # Policies that are not allowed keep what no policy keeps, and cost nothing.
    policies = PolicyCosts(
        added_s=policies.added_s * allowed,
        fill_s=policies.fill_s * allowed,
        saved_bytes=np.where(allowed, policies.saved_bytes, model.saved_bytes),
        lead_saved_bytes=np.where(allowed, policies.lead_saved_bytes, model.lead_saved_bytes),
        workspace_bytes=policies.workspace_bytes * allowed,
        host_bytes=policies.host_bytes * allowed,
    )
    return model.but(policies=policies)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One thing that may be said about the activations of all layers."""

    kinds: tuple[str, ...]  # every layer is under one of these
    part: str | None = None
    """The kind that the first layers of every chunk are under, the same number in each."""

    @property
    def is_mixed(self) -> bool:
        """The stage problem decides layer by layer."""
        return self.part is None and len(self.kinds) > 1

    @property
    def in_words(self) -> str:
        """Kinds, and the layers that are under them."""
        if self.is_mixed:
            return f"{', '.join(self.kinds[:-1])} or {self.kinds[-1]} for any layer"
        if self.part is not None:
            return f"{self.part} for the first N layers of every chunk"
        return f"{self.kinds[0]} for all layers"


def policies_of(context: Context, narrowing: Narrowing) -> tuple[Policy, ...]:
    """The policies that the framework can say, of the kinds that the user leaves."""
    support = context.traits.support
    kinds = tuple(kind for kind in narrowing.kinds if kind in support.policies)
    scope = support.policy_scope
    if scope == "layers" or MIXED_LAYERS in narrowing.allowed:
        return (Policy(kinds=kinds),) if kinds else ()
    # What the first layers of every chunk may be under while the others are under nothing.
    by_chunk = [name for name, policy in LAYER_POLICIES.items() if policy.by_chunk]
    parts = by_chunk if scope == "chunks" and "none" in kinds else ()
    alone = [kind for kind in kinds if not (scope == "chunks" and kind == "offloaded")]
    return (
        *(Policy(kinds=(kind,)) for kind in alone),
        *(Policy(kinds=("none", kind), part=kind) for kind in parts if kind in kinds),
    )


def least_memory_policy(policies: Sequence[Policy]) -> Policy:
    """Any kind of any policy for any layer: no costlier than each of them."""
    kinds = {kind for policy in policies for kind in policy.kinds}
    return Policy(kinds=tuple(kind for kind in LAYER_POLICY_NAMES if kind in kinds))


def offered(model: StageModel, policy: Policy) -> Index:
    """Rows in which layers can be offloaded, where the policy needs it; else all."""
    if policy.is_mixed or "offloaded" not in policy.kinds:
        return np.arange(len(model))
    kept = model.policies.saved_bytes[POLICIES.index("offloaded")]
    return np.flatnonzero(kept < model.saved_bytes)


def part_numbers(model: StageModel) -> tuple[Index, Array]:
    """Rows and numbers N: every chunk holds at least N layers, and one holds more."""
    chunks = model.strategy.pp * model.strategy.vpp
    most = ((model.num_layers - 1) // chunks).astype(int)
    rows = np.repeat(np.arange(len(model)), most)
    first = np.repeat(np.cumsum(most) - most, most)
    return rows, np.arange(len(rows)) - first + 1.0


def with_part(model: StageModel, kind: str, number: Array) -> StageModel:
    """The model in which the first ``number`` layers of every chunk are under a kind; C.

    A stage of v chunks has ``v N`` such layers, whatever its others: it takes ``v N a + b`` longer
    per micro-batch, and keeps ``v N (saved - kept)`` bytes less of each in flight. Every chunk
    holds at least N layers. Leading layers come first.
    """
    k, policies = POLICIES.index(kind), model.policies
    under = number * model.strategy.vpp
    leading = np.minimum(under, model.num_leading)
    less = model.lead_saved_bytes - policies.lead_saved_bytes[k]
    baked = model.but(
        link_s=model.link_s + under * policies.added_s[k] + policies.fill_s[k],
        part_saved_bytes=-under * (model.saved_bytes - policies.saved_bytes[k]),
        first_saved_bytes=model.first_saved_bytes - leading * less,
        layer_transient_bytes=model.layer_transient_bytes + policies.workspace_bytes[k],
        first_host_bytes=model.first_host_bytes + under * policies.host_bytes[k],
        least_chunk_layers=number,
    )
    return of_kinds(baked, ("none",))


def filled_counts(
    policy: Policy, layers: Array, counts: Array, vpp: int = 1, number: float = 0.0
) -> Array:
    """Counts of a split found under a policy, with the layers that the policy itself decides."""
    base = base_policy(policy.kinds)
    filled = counts.copy() if policy.part is None else np.zeros_like(counts)
    if policy.part is not None:
        filled[POLICIES.index(policy.part)] = np.where(layers > 0, number * vpp, 0.0)
    elif base is not None:
        filled[base] = layers - counts.sum(axis=0)
    return filled
