"""Which splits interleaved stages allow, against every way to lay out their chunks."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from planner.schedules.closed_form import chunk_layers
from planner.search.space.interleaving import (
    default_layers,
    fits_chunks,
    has_legal_split,
    range_at,
    regular_layers,
)
from planner.spec.strategy import SCHEDULES, StrategyColumns


def can_be_laid_out(layers: tuple[int, ...], vpp: int) -> bool:
    """Whether chunks exist: none larger than equal ones need to be, a stage with all of them full,
    a layer in each but the first and the last of all, and only these two smaller on the ends.
    """
    full = -(-sum(layers) // (len(layers) * vpp))
    if full * vpp not in layers:
        return False
    for stage, number in enumerate(layers):
        is_first, is_last = stage == 0, stage == len(layers) - 1
        choices = []
        for chunk in range(vpp):
            gives_up = (is_first and chunk == 0) or (is_last and chunk == vpp - 1)
            fixed = (is_first or is_last) and not gives_up
            choices.append([full] if fixed else range(0 if gives_up else 1, full + 1))
        if not any(sum(chosen) == number for chosen in product(*choices)):
            return False
    return True


CASES = [(p, v) for p in (2, 3, 4) for v in (2, 3)]


@pytest.mark.parametrize(("pp", "vpp"), CASES)
def test_a_split_fits_exactly_where_its_chunks_can_be_laid_out(pp: int, vpp: int) -> None:
    splits = list(product(range(1, 8 if pp < 4 else 6), repeat=pp))
    allowed = fits_chunks(np.array(splits, dtype=float), np.full(len(splits), vpp))
    assert allowed.tolist() == [can_be_laid_out(split, vpp) for split in splits]


@pytest.mark.parametrize(("pp", "vpp"), CASES)
def test_chunks_hold_the_layers_of_their_stages(pp: int, vpp: int) -> None:
    splits = np.array(list(product(range(1, 8 if pp < 4 else 6), repeat=pp)))
    for split in splits[fits_chunks(splits.astype(float), np.full(len(splits), vpp))].tolist():
        chunks = np.array(chunk_layers(tuple(split), vpp)).reshape(vpp, pp)
        assert chunks.sum(axis=0).tolist() == split
        assert (chunks.ravel()[1:-1] >= 1).all()
        assert (chunks >= 0).all()
        largest = chunks[:, int(np.argmax(split))]
        assert (chunks <= largest[:, None]).all()


@pytest.mark.parametrize(("pp", "vpp"), CASES)
def test_a_number_of_layers_fits_chunks_exactly_where_some_split_does(pp: int, vpp: int) -> None:
    for num_layers in range(1, 13):
        splits = [s for s in product(range(1, num_layers + 1), repeat=pp) if sum(s) == num_layers]
        some = any(can_be_laid_out(split, vpp) for split in splits)
        assert bool(has_legal_split(num_layers, np.array(pp), np.array(vpp), uneven=True)) == some
        same = num_layers % (pp * vpp) == 0
        assert bool(has_legal_split(num_layers, np.array(pp), np.array(vpp), uneven=False)) == same


def test_the_ends_of_llama_405b_give_up_one_layer_each() -> None:
    # 126 layers on 16 stages of 8 chunks: embedding and head stand in for a layer each.
    layers = default_layers(126, 16, 8)
    assert layers == (7, *[8] * 14, 7)
    chunks = chunk_layers(layers, 8)
    assert chunks == (0, *[1] * 126, 0)
    assert fits_chunks(np.array([layers], dtype=float), np.array([8]))[0]


def test_stages_in_between_give_up_layers_of_their_largest_chunks() -> None:
    # The largest has 5 = 3 + 2; a stage of 4 has 2 + 2, the last one of 4 has 3 + 1.
    assert chunk_layers((5, 4, 4), 2) == (3, 2, 3, 2, 2, 1)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_fewest_and_most_layers_bound_every_split(
    schedule: str, columns_of: Callable[..., StrategyColumns]
) -> None:
    code = SCHEDULES.index(schedule)
    strategy = columns_of(pp=3, vpp=2, schedule=code)
    fewest, most = range_at(strategy, 12, np.arange(3.0)[None, :])
    if schedule == "1f1b":
        assert fewest.tolist() == [[2, 2, 2]]
        assert most.tolist() == [[4, 4, 4]]
    else:
        assert fewest.tolist() == most.tolist() == [[4, 4, 4]]


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (3, 1), (4, 1), *CASES])
def test_regular_layers_are_equal_but_for_the_ends_and_can_be_laid_out(pp: int, vpp: int) -> None:
    for num_layers in range(pp * vpp, 4 * pp * vpp + 1):
        full = -(-num_layers // (pp * vpp)) * vpp
        one, both = [full] * pp, [full] * pp
        one[-1] -= 1
        both[0], both[-1] = both[0] - 1, both[-1] - 1
        possible = [[full] * pp, one] + [both] * (pp > 1)
        held = [tuple(each) for each in possible if sum(each) == num_layers and min(each) > 0]
        legal = [
            each for each in held if fits_chunks(np.array([each], dtype=float), np.array([vpp]))[0]
        ]
        assert regular_layers(num_layers, pp, vpp) == (legal[0] if legal else None)
