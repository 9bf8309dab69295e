"""The stage model of a search in which layers may take only some kinds of policy."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.cost.policies import with_recomputed_mtp
from planner.cost.stage import PolicyCosts, StageModel
from planner.spec.strategy import POLICIES
from planner.units import Array


def base_policy(kinds: Sequence[str]) -> int | None:
    """The policy a layer is under at least, where every layer has to be under one."""
    if "none" in kinds:
        return None
    return next(k for k, name in enumerate(POLICIES) if name in kinds)


def of_kinds(model: StageModel, kinds: Sequence[str]) -> StageModel:
    """The model without the policies that are not among ``kinds``.

    Where ``none`` is not, the costs of a layer are those under the first policy allowed, and the
    others' are what they differ by; :func:`all_counts` turns counts back.
    """
    base = base_policy(kinds)
    allowed = [name in kinds and k != base for k, name in enumerate(POLICIES)]
    if base is not None:
        model = _rebased(with_recomputed_mtp(model, base), base)
    return model if all(allowed) else replace(model, policies=_without(model, allowed))


def _rebased(model: StageModel, base: int) -> StageModel:
    """The base policy of every layer taken into the layer's own costs.

    What is offloaded is offered without pipelining: one micro-batch is in flight.
    """
    policies = model.policies
    added, workspace = policies.added_s[base], policies.workspace_bytes[base]
    return replace(
        model,
        layer_s=model.layer_s + added,
        link_s=model.link_s + policies.fill_s[base],
        saved_bytes=policies.saved_bytes[base],
        lead_saved_bytes=policies.lead_saved_bytes[base],
        layer_transient_bytes=model.layer_transient_bytes + workspace,
        layer_host_bytes=model.layer_host_bytes + policies.host_bytes[base],
        policies=replace(
            policies,
            added_s=policies.added_s - added,
            workspace_bytes=np.maximum(policies.workspace_bytes - workspace, 0.0),
        ),
    )


def _without(model: StageModel, allowed: list[bool]) -> PolicyCosts:
    """Policies that are not allowed keep what no policy keeps, and cost nothing."""
    is_allowed = np.array(allowed)[:, None]
    policies = model.policies
    return PolicyCosts(
        added_s=policies.added_s * is_allowed,
        fill_s=policies.fill_s * is_allowed,
        saved_bytes=np.where(is_allowed, policies.saved_bytes, model.saved_bytes),
        lead_saved_bytes=np.where(is_allowed, policies.lead_saved_bytes, model.lead_saved_bytes),
        workspace_bytes=policies.workspace_bytes * is_allowed,
        host_bytes=policies.host_bytes * is_allowed,
    )


def all_counts(layers: Array, counts: Array, kinds: Sequence[str]) -> Array:
    """Counts of a split found under :func:`of_kinds`, the base policy's filled in."""
    base = base_policy(kinds)
    if base is None:
        return counts
    filled = counts.copy()
    filled[base] = layers - counts.sum(axis=0)
    return filled
