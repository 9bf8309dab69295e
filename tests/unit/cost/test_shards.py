"""Shard arithmetic: by hand, against a count element by element, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.models import load_model
from planner.cost.shards import (
    fsdp_bytes,
    fsdp_own_elements,
    fsdp_shard_elements,
    zero3_bytes,
    zero3_partition_elements,
    zero3_sub_groups,
    zero_bytes,
    zero_partition_elements,
    zero_touched_elements,
)
from planner.layers.weights import Weight, model_weights

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=12)
SHARDS = st.integers(1, 20)
SHAPES = st.lists(st.integers(1, 30), min_size=1, max_size=3)


def vectors(*sizes: int) -> list[Weight]:
    return [Weight(str(index), (size,)) for index, size in enumerate(sizes)]


def test_rows_are_dealt_in_chunks() -> None:
    # 5 rows over 4 ranks: chunks of 2 rows, so 2, 2, 1, 0
    assert fsdp_shard_elements((5, 7), 4) == 14
    assert fsdp_own_elements((5, 7), 4, np.arange(4)).tolist() == [14, 14, 7, 0]


def test_stacked_experts_along_either_dimension() -> None:
    shape, shards = (8, 28672, 4096), np.array([8, 64])
    assert (fsdp_shard_elements(shape, shards) / (28672 * 4096)).tolist() == [1, 1]
    dim = np.where(shards > 8, 1, 0)
    assert (fsdp_shard_elements(shape, shards, dim) / (28672 * 4096)).tolist() == [1, 1 / 8]


@given(shape=SHAPES, num_shards=SHARDS)
def test_own_elements_of_all_ranks_are_the_tensor(shape: list[int], num_shards: int) -> None:
    own = fsdp_own_elements(shape, num_shards, np.arange(num_shards))
    assert own.sum() == np.prod(shape)
    assert own.max() == own[0] == fsdp_shard_elements(shape, num_shards)


def test_fsdp_by_hand() -> None:
    held = fsdp_bytes([Weight("w", (5, 7)), Weight("e", (3,), is_expert=True, count=2)], 4, 3)
    # padded: 2 · 7 + 2 · 1 = 16; rank 3 owns nothing of w, nothing of e
    assert (held.parameters, held.gradients, held.optimizer) == (64, 64, 0)


def test_zero_partitions_start_on_even_elements() -> None:
    assert zero_partition_elements(np.array([16, 17]), 4).tolist() == [4, 6]
    assert zero_partition_elements(1, np.array([1, 2, 1024])).tolist() == [2, 2, 2]


@given(sizes=SIZES, num_shards=SHARDS)
def test_touched_tensors_counted_one_element_at_a_time(sizes: list[int], num_shards: int) -> None:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    size = int(zero_partition_elements(len(owner), num_shards))
    expected = [
        sum(sizes[index] for index in set(owner[rank * size : (rank + 1) * size]))
        for rank in range(num_shards)
    ]
    assert zero_touched_elements(sizes, num_shards).tolist() == expected


def test_zero_by_hand() -> None:
    # 10 elements over 4 ranks: padded to 16, partitions of 4, the last rank has only padding
    groups = [vectors(3, 7)]
    two = zero_bytes(groups, 4, 2)
    assert two.parameters.tolist() == [32] * 4
    assert two.optimizer.tolist() == [48] * 4
    assert two.accumulated.tolist() == [20, 14, 14, 0]
    assert two.gradients.tolist() == [20, 14, 18, 8]
    one = zero_bytes(groups, 4, 1)
    assert one.accumulated.tolist() == [20] * 4
    assert one.gradients.tolist() == two.gradients.tolist()
    assert zero_bytes(groups, 4, 2, fp32_accumulation=True).gradients.tolist() == [16] * 4
    assert zero_bytes(groups, 4, 2, fp32_accumulation=True).accumulated.tolist() == [16, 16, 16, 0]
    assert zero_bytes(groups, 4, 1, fp32_accumulation=True).gradients.tolist() == [64 + 20] * 4


def test_zero3_by_hand() -> None:
    # partitions of ceil(3 / 2) + ceil(8 / 2) = 6; the vector of 3 stays gathered as 4
    held = zero3_bytes(vectors(3, 8), 2, persistence_threshold=3)
    assert (held.parameters, held.gradients, held.optimizer) == (12 + 8, 12, 72)
    assert zero3_bytes(vectors(3, 8), 2, fp32_accumulation=True).gradients == 24


def test_sub_groups_close_with_the_tensor_that_fills_them() -> None:
    assert zero3_sub_groups([10, 10, 10], 2, 10) == [10, 5]
    assert zero3_sub_groups([10, 10, 10], 2, 11) == [15]
    assert zero3_sub_groups([30, 1], 2, 10) == [15, 1]


@given(sizes=SIZES, num_shards=SHARDS)
def test_every_scheme_holds_at_least_its_share(sizes: list[int], num_shards: int) -> None:
    weights, elements = vectors(*sizes), sum(sizes)
    for held, weight_share in (
        (fsdp_bytes(weights, num_shards), 4 / num_shards),
        (zero_bytes([weights], num_shards, 2), 2.0),
        (zero3_bytes(weights, num_shards, persistence_threshold=0), 2 / num_shards),
    ):
        assert np.all(held.parameters >= elements * weight_share)
        assert np.max(held.gradients) >= 2 * elements / num_shards
        assert np.max(held.optimizer) >= 8 * elements / num_shards


def test_columns_of_shards_equal_one_at_a_time() -> None:
    weights, column = model_weights(load_model("gpt2-small"), "gpt2"), np.array([1, 8, 1000])
    for rule in (fsdp_bytes, zero3_bytes):
        together = rule(weights, column)
        for state in ("parameters", "accumulated", "gradients", "optimizer"):
            alone = [float(getattr(rule(weights, int(n)), state)) for n in column]
            assert getattr(together, state).tolist() == alone


@pytest.mark.parametrize("num_shards", [0, -1])
def test_no_shards_are_refused(num_shards: int) -> None:
    for rule in (
        lambda: fsdp_shard_elements((4,), num_shards),
        lambda: fsdp_bytes(vectors(4), num_shards),
        lambda: zero_partition_elements(4, num_shards),
        lambda: zero_bytes([vectors(4)], num_shards, 1),
        lambda: zero3_partition_elements(4, num_shards),
        lambda: zero3_bytes(vectors(4), num_shards),
    ):
        with pytest.raises(ValueError, match="at least 1"):
            rule()


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="without dimensions"):
        fsdp_shard_elements((), 2)
    with pytest.raises(ValueError, match="not divisible"):
        fsdp_shard_elements((8, 5), 2, dim=1)
    with pytest.raises(ValueError, match="not among"):
        fsdp_own_elements((8, 5), 2, rank=2)
    with pytest.raises(ValueError, match="at least one element"):
        zero_touched_elements([], 2)
    with pytest.raises(ValueError, match="at least one element"):
        zero3_sub_groups([3, 0], 2)
