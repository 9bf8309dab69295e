"""The space of legal strategies: complete, counted, and nothing twice."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from enumerated import enumerate_space

from planner.cost.context import Context
from planner.errors import InputError
from planner.search.space import space as listing
from planner.search.space.legality import RULES
from planner.search.space.narrow import Narrowing
from planner.search.space.space import Enumeration, dimension_values, divisors
from planner.spec.model import ModelSpec
from planner.spec.strategy import SEARCHED_FIELDS, SHAPE, StrategyColumns

Contexts = Callable[..., Context]
SITUATIONS = (
    {},
    {"framework": "deepspeed", "global_batch": 6},
    {"framework": "torchtitan", "seq_len": 16384, "global_batch": 8},
    {"model": "mixtral-8x7b", "global_batch": 16, "cluster": "2xdgx-h100"},
    {"framework": "accelerate", "cluster": "4xh100-sxm"},
    {"framework": "torchtitan", "profile": "eager", "cluster": "4xh100-sxm"},
)


def as_rows(strategy: StrategyColumns) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(strategy, name).tolist() for name in SEARCHED_FIELDS), strict=True))


@pytest.mark.parametrize("number", [1, 2, 12, 36, 97, 1536])
def test_divisors_are_all_of_them_ascending(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize("situation", SITUATIONS)
def test_branches_are_dropped_by_rules_and_some_strategies_are_left(
    situation: dict[str, object], context_of: Contexts
) -> None:
    space = enumerate_space(context_of(**situation))
    assert set(space.dropped) <= {rule.name for rule in RULES}
    assert all(count > 0 for count in space.dropped.values())
    assert len(space.strategy)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_dropping_branches_early_loses_no_legal_strategy(
    situation: dict[str, object], context_of: Contexts
) -> None:
    """The whole product of all values, every rule asked at the end."""
    context = context_of(**situation)
    context = replace(context, schedules=context.traits.support.schedules)
    values = dimension_values(context)
    assert tuple(values) == SEARCHED_FIELDS
    # Dimensions that multiply the product without adding a combination are thinned out.
    fixed = {
        "micro_batch": tuple(values["micro_batch"][:2]),
        "pp": tuple(values["pp"][:4]),
        "vpp": tuple(values["vpp"][:2]),
        "offload_percent": tuple(values["offload_percent"][-2:]),
    }
    values |= fixed
    whole = np.array(list(product(*values.values()))).T
    columns = dict(zip(values, whole, strict=True))
    legal = np.ones(whole.shape[1], dtype=bool)
    for rule in RULES:
        allowed = np.ones(whole.shape[1], dtype=bool)
        allowed[legal] = rule.is_legal(context, {k: v[legal] for k, v in columns.items()})
        legal &= allowed
    # Of etp only tp and 1 are tried.
    legal &= np.isin(columns["etp"], 1) | (columns["etp"] == columns["tp"])
    expected = {tuple(row) for row in whole.T[legal].tolist()}
    found = as_rows(enumerate_space(context, Narrowing(values=fixed)).strategy)
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("situation", SITUATIONS)
def test_shapes_listed_in_parts_are_those_listed_at_once(
    situation: dict[str, object], context_of: Contexts
) -> None:
    whole = Enumeration(context=context_of(**situation))
    in_parts = Enumeration(context=whole.context, part_rows=20)
    assert len(list(in_parts.decided({}, SHAPE))) > 1
    in_parts.dropped.clear()
    listed = [each.shapes() for each in (in_parts, whole)]
    of_parts, at_once = ({name: list(each) for name, each in one.items()} for one in listed)
    assert of_parts == at_once
    assert (in_parts.dropped, in_parts.is_cut) == (whole.dropped, False)


def test_listing_ends_with_its_time_and_says_so(context_of: Contexts) -> None:
    enumeration = Enumeration(context=context_of())
    nothing = enumeration.shapes(time.monotonic() - 1.0)
    assert enumeration.is_cut
    assert set(nothing) == set(SHAPE)
    assert all(len(column) == 0 for column in nothing.values())


def test_more_shapes_than_memory_holds_are_refused(
    context_of: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_SHAPES", 10)
    with pytest.raises(InputError, match=r"more than 10 shapes.*leaves fewer"):
        Enumeration(context=context_of()).shapes()


def test_whole_experts_are_tried_beside_split_ones(context_of: Contexts) -> None:
    found = enumerate_space(context_of(model="mixtral-8x7b")).strategy
    pairs = set(zip(found.tp.tolist(), found.etp.tolist(), strict=True))
    assert pairs == {(1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 8)}
    dense = enumerate_space(context_of()).strategy
    assert (dense.etp == dense.tp).all()


def test_any_degree_of_expert_tensor_parallelism_can_be_fixed(context_of: Contexts) -> None:
    fixed = Narrowing(values={"etp": (2,), "tp": (4, 1)})
    found = enumerate_space(context_of(model="mixtral-8x7b"), fixed).strategy
    assert set(found.tp.tolist()) == {1, 4}
    assert set(found.etp.tolist()) == {2}


def test_a_space_can_be_empty(context_of: Contexts) -> None:
    # 16 heads: tp 7 divides nothing.
    space = enumerate_space(context_of(), Narrowing(values={"tp": (7,)}))
    assert len(space.strategy) == 0
    assert space.dropped == {"tp_divides_heads": 1}


def test_small_space_by_hand(context_of: Contexts, small_model: Callable[..., ModelSpec]) -> None:
    # 2 GPUs of one node, 2 layers, 2 heads, batch 2, Megatron without offload:
    #   1 GPU:  micro-batch 1 or 2, ZeRO 0                                  -> 2
    #   tp 2:   micro-batch 1 or 2, ZeRO 0, with sequence parallelism or not -> 4
    #   dp 2:   micro-batch 1, ZeRO 0, 1, 2 or 3                            -> 4
    #   pp 2:   micro-batch 1 or 2, ZeRO 0                                  -> 2
    #           vpp 2 needs a stage with a layer in each chunk: 3 layers    -> 0
    context = context_of(
        model=small_model(num_layers=2, num_heads=2, num_kv_heads=2, head_dim=512),
        cluster="2xh100-sxm",
        global_batch=2,
    )
    strategy = enumerate_space(context, Narrowing(values={"offload": (0,)})).strategy
    #   cp 2:   micro-batch 1 or 2, ZeRO 0, 1, 2 or 3                       -> 8
    expected = {(1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)}
    degrees = (strategy.tp, strategy.pp, strategy.dp, strategy.cp)
    assert set(zip(*(column.tolist() for column in degrees), strict=True)) == expected
    assert len(strategy) == 20


def test_only_the_usual_placement_is_searched_unless_others_are_asked_for(
    context_of: Contexts,
) -> None:
    context = context_of(cluster="4xdgx-h100")
    usual = enumerate_space(context).strategy
    assert set(usual.placement.tolist()) == {0}
    asked = replace(context, placements=context.traits.support.placements)
    both = enumerate_space(asked).strategy
    assert set(both.placement.tolist()) == {0, 1}
    assert as_rows(both.take(both.placement == 0)) == as_rows(usual)
    assert len(usual) < len(both) < 2 * len(usual)
    other = enumerate_space(replace(context, placements=asked.placements[1:])).strategy
    assert set(other.dp.tolist()) == set(usual.dp.tolist())
