"""Size of a search space: legal shapes, strategies and splits, without storing them all."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.cost.policies import offers_activation_offload
from planner.search.space.expressions import DIMENSIONS, RECOMPUTE
from planner.search.space.legality import RULES
from planner.search.space.narrow import Narrowing
from planner.search.space.policies import Policy, policies_of
from planner.search.space.space import (
    Columns,
    Enumeration,
    crossed,
    dimension_values,
    narrowed,
    take,
)

CHUNK_SHAPES = 512


@dataclass(frozen=True, kw_only=True)
class SpaceCount:
    """Search space of one framework, counted."""

    context: Context
    narrowing: Narrowing
    values: dict[str, tuple[int, ...]]
    """Values of at least one legal strategy, by dimension, as codes."""
    num_shapes: int
    num_strategies: int
    policies: tuple[Policy, ...]  # Policies available for the activations of all layers
    num_splits: int
    """Over all strategies: ways to cut the layers into stages under every policy, times the sets
    of modules, numbers of layers, or kinds of every layer that it leaves open; at most, as
    interleaving allows fewer."""
    dropped: dict[str, int]  # Branches cut, by rule or option, most first


def splits_of(num_layers: int, num_stages: int, num_kinds: int) -> int:
    """Ways to give every stage at least one layer, and of its layers a number to each kind.

    ``n`` layers under ``k`` kinds are ``C(n + k - 1, k - 1)`` ways, so the number is the
    coefficient of ``x^L`` in ``((1 - x)^-k - 1)^p``, by inclusion and exclusion of stages.
    """
    return sum(
        (-1) ** (num_stages - filled)
        * math.comb(num_stages, filled)
        * math.comb(num_layers + filled * num_kinds - 1, num_layers)
        for filled in range(1, num_stages + 1)
    )


def splits_under(
    context: Context, policy: Policy, num_stages: int, vpp: int, is_offered: bool
) -> int:
    """Ways to cut layers into stages under a policy, and to decide what it leaves open.

    Where the first N layers of each of v chunks are under a kind, stages hold ``v N`` or more, and
    some one more.
    """
    num_layers = context.model.num_blocks
    kinds = [kind for kind in policy.kinds if is_offered or kind != "offloaded"]
    if policy.part is not None:
        if policy.part not in kinds:
            return 0
        rest = range(num_layers - num_stages * vpp, 0, -num_stages * vpp)
        return sum(math.comb(more + num_stages - 1, num_stages - 1) for more in rest)
    num_sets = max(len(context.module_sets), 1) if "selective" in kinds else 1
    return splits_of(num_layers, num_stages, len(kinds)) * num_sets if kinds else 0


def count_space(context: Context, narrowing: Narrowing) -> SpaceCount:
    """Count everything legal; strategies are listed shape by shape and forgotten."""
    enumeration = Enumeration(context=context, narrowing=narrowing)
    seen: dict[str, set[int]] = {name: set() for name in DIMENSIONS}
    by_stages: Counter[tuple[int, int, bool]] = Counter()
    shapes, num_shapes = enumeration.shapes(), 0
    for start in range(0, len(shapes["tp"]), CHUNK_SHAPES):
        part = take(shapes, slice(start, start + CHUNK_SHAPES))
        strategy, place = enumeration.strategies_of(part)
        num_shapes += len(np.unique(place))  # The others have no legal micro-batch
        for name, values in seen.items():
            values.update(np.unique(getattr(strategy, name)).tolist())
        offers = offers_activation_offload(context, strategy)
        columns = (strategy.pp.tolist(), strategy.vpp.tolist(), offers.tolist())
        by_stages.update(zip(*columns, strict=True))
    policies = policies_of(enumeration.context, narrowing)
    return SpaceCount(
        context=enumeration.context,
        narrowing=narrowing,
        values={name: tuple(sorted(values)) for name, values in seen.items()},
        num_shapes=num_shapes,
        num_strategies=by_stages.total(),
        policies=policies,
        num_splits=sum(
            number * splits_under(context, policy, *key)
            for key, number in by_stages.items()
            for policy in policies
        ),
        dropped=dict(sorted(enumeration.dropped.items(), key=lambda item: -item[1])),
    )


def unsupported_value(context: Context, narrowing: Narrowing) -> tuple[str, str]:
    """The first option whose fixed values a framework does not offer, and why; else empty words.

    A rule about what is offered is asked for all values that its dimensions can take.
    """
    context = narrowed(context, narrowing)
    policies = context.traits.support.policies
    if not set(narrowing.kinds) & set(policies):
        text = next((text for text in narrowing.texts if RECOMPUTE in text), f"--fix {RECOMPUTE}")
        given = f"{context.traits.name} does not offer {' or '.join(narrowing.kinds)} for layers"
        return text, f"{given}: it offers {', '.join(policies)}"
    values = dimension_values(context, narrowing)
    for rule in RULES:
        fixed = [name for name in rule.needs if name in narrowing.values]
        if rule.offered_by is None or not fixed:
            continue
        columns: Columns = {}
        for name in rule.needs:
            columns = crossed(columns, name, values[name])
        if not rule.is_legal(context, columns).any():
            name = fixed[-1]
            shown = [DIMENSIONS[name].shown(value) for value in narrowing.values[name]]
            given = f"{context.traits.name} does not offer {name} {' or '.join(shown)}"
            allowed = f": {rule.allowance(context)}" if rule.allowed else f". {rule.message}"
            return f"--fix {name}={'|'.join(shown)}", given + allowed
    return "", ""
