"""Sizes of a search space."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.search.space import count
from planner.search.space.count import count_space, splits_of, splits_under
from planner.search.space.narrow import read_narrowing
from planner.search.space.policies import Policy
from planner.search.space.space import EVERYTHING


def by_listing(num_layers: int, num_stages: int, num_kinds: int) -> int:
    number = 0
    for layers in product(range(1, num_layers + 1), repeat=num_stages):
        if sum(layers) == num_layers:
            ways = [
                sum(1 for c in product(range(n + 1), repeat=num_kinds) if sum(c) == n)
                for n in layers
            ]
            number += int(np.prod(ways))
    return number


@pytest.mark.parametrize("num_layers", [1, 3, 5])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("num_kinds", [1, 2, 4])
def test_splits_by_listing(num_layers: int, num_stages: int, num_kinds: int) -> None:
    assert splits_of(num_layers, num_stages, num_kinds) == by_listing(
        num_layers, num_stages, num_kinds
    )


def test_counts_equal_the_whole_listing_whatever_the_chunks(
    context_of: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(cluster="1xdgx-h100")
    for narrowing in (EVERYTHING, read_narrowing(fix=["tp=2"], limit=["pp<=2"])):
        space = enumerate_space(context, narrowing)
        for rows in (7, 10**6):
            monkeypatch.setattr(count, "CHUNK_SHAPES", rows)
            counted = count_space(context, narrowing)
            assert counted.num_strategies == len(space.strategy)
            assert counted.dropped == dict(sorted(space.dropped.items(), key=lambda i: -i[1]))
            for name, values in counted.values.items():
                assert values == tuple(np.unique(getattr(space.strategy, name)).tolist())


@pytest.mark.parametrize(("num_stages", "vpp"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_parts_by_listing(context_of: Callable[..., Context], num_stages: int, vpp: int) -> None:
    context, policy = context_of(), Policy(kinds=("none", "full"), part="full")
    num_layers, number = context.model.num_blocks, 0
    for layers in product(range(1, num_layers + 1), repeat=num_stages):
        if sum(layers) == num_layers:
            numbers = [n for n in range(1, num_layers) if min(layers) >= n * vpp]
            number += sum(n * vpp * num_stages < num_layers for n in numbers)
    assert splits_under(context, policy, num_stages, vpp, is_offered=True) == number


def test_policies_are_counted_where_they_are_offered(context_of: Callable[..., Context]) -> None:
    context = context_of(cluster="1xdgx-h100")
    both = count_space(context, read_narrowing(fix=["pp=1", "tp=1", "recompute=none"]))
    none = count_space(
        context, read_narrowing(fix=["pp=1", "tp=1", "recompute=none"], forbid=["offload"])
    )
    assert [policy.in_words for policy in both.policies] == [
        "none for all layers",
        "offloaded for the first N layers of every chunk",
    ]
    assert both.num_splits == context.model.num_blocks * both.num_strategies
    assert none.num_splits == none.num_strategies
