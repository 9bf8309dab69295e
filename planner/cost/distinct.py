"""Rows of a column of strategies that differ in what a price depends on."""

from collections.abc import Sequence

import numpy as np

from planner.spec.strategy import COLUMNS, StrategyColumns
from planner.units import Index

LARGEST_KEY = 2**62
"""Above it a key of 64 bits may hold two rows."""


def columns_but(*kinds: str) -> tuple[str, ...]:
    """Fields that layouts may differ in, but those of the kinds that a price does not depend on."""
    return tuple(name for name, each in COLUMNS.items() if each.kind and each.kind not in kinds)


def first_rows(strategy: StrategyColumns, names: Sequence[str]) -> tuple[Index, Index]:
    """Positions of the first rows that differ in ``names``, and the map from every row to its own.

    The fields are digits of one number; where it would not fit, it is replaced by its rank.
    """
    key, below = np.zeros(len(strategy), dtype=np.int64), 1
    if len(key) == 1:
        return key, key
    for name in names:
        column = getattr(strategy, name)
        base = int(column.max(initial=0)) + 1
        if base == 1:
            continue
        if below * base > LARGEST_KEY:
            known, key = np.unique(key, return_inverse=True)
            below = len(known)
        key = key * base + column
        below *= base
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return first, index
