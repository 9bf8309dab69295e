"""How large a search space is: legal shapes, strategies and splits, without holding them all."""

import math
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing
from planner.search.space.space import SHAPE, STATES, Enumeration, take
from planner.search.space.vocabulary import DIMENSIONS

CHUNK_SHAPES = 4096


@dataclass(frozen=True, kw_only=True)
class SpaceCount:
    """What a search of one framework may look at."""

    context: Context
    narrowing: Narrowing
    values: dict[str, tuple[int, ...]]
    """By dimension, those of at least one legal strategy, as codes."""
    num_shapes: int
    num_strategies: int
    num_splits: int
    """Over all strategies: ways to cut the layers into stages and to put every layer of a stage
    under a kind of policy, times the sets of modules; at most, as interleaving allows fewer."""
    dropped: dict[str, int]
    """Branches cut, by rule or option, most first."""


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


def count_space(context: Context, narrowing: Narrowing) -> SpaceCount:
    """Count everything legal; strategies are listed shape by shape and forgotten."""
    enumeration = Enumeration(context=context, narrowing=narrowing)
    shapes = enumeration.shapes()
    num_shapes = len(shapes["tp"])
    seen: dict[str, set[int]] = {name: set() for name in (*SHAPE, *STATES)}
    by_stages: dict[int, int] = {}
    for start in range(0, num_shapes, CHUNK_SHAPES):
        chunk = np.arange(start, min(start + CHUNK_SHAPES, num_shapes))
        strategy = enumeration.strategies(take(shapes, chunk))
        for name, values in seen.items():
            values.update(np.unique(getattr(strategy, name)).tolist())
        for stages, number in zip(*np.unique(strategy.pp, return_counts=True), strict=True):
            by_stages[int(stages)] = by_stages.get(int(stages), 0) + int(number)
    selects = {"none", "selective"} <= set(narrowing.kinds)
    num_sets = max(len(context.module_sets), 1) if selects else 1
    num_layers, num_kinds = context.model.num_blocks, len(narrowing.kinds)
    splits = {n: splits_of(num_layers, n, num_kinds) * num_sets for n in by_stages}
    return SpaceCount(
        context=enumeration.context,
        narrowing=narrowing,
        values={name: tuple(sorted(seen[name])) for name in DIMENSIONS},
        num_shapes=num_shapes,
        num_strategies=sum(by_stages.values()),
        num_splits=sum(number * splits[n] for n, number in by_stages.items()),
        dropped=dict(sorted(enumeration.dropped.items(), key=lambda item: -item[1])),
    )
