"""Layers per chunk: layouts as written, cut ones, and what frameworks do without one."""

import pytest

from planner.plans.splits import default_chunks, layout_chunks, layout_layers


def test_a_layout_is_taken_as_written() -> None:
    assert layout_chunks("Et|(tt|)*2tmL", 6) == (1, 2, 2, 1)
    assert layout_layers("Et*4|(t*4|)*14tmL", 4) == (16, 16, 16, 13)


def test_a_cut_layout_goes_on_as_it_began() -> None:
    assert layout_chunks("Et*8|t*8|...", 61) == (8,) * 7 + (5,)
    assert layout_chunks("Et*4|t*4|t*4|...", 16) == (4, 4, 4, 4)


@pytest.mark.parametrize(
    ("num_layers", "pp", "vpp", "chunks"),
    [
        (80, 4, 1, (20, 20, 20, 20)),
        (126, 4, 8, (3, *[4] * 30, 3)),
        (94, 8, 1, (11, *[12] * 6, 11)),
        (61, 4, 1, (16, 15, 15, 15)),
        (7, 1, 1, (7,)),
    ],
)
def test_without_a_layout_embedding_and_head_count_where_that_divides(
    num_layers: int, pp: int, vpp: int, chunks: tuple[int, ...]
) -> None:
    assert default_chunks(num_layers, pp, vpp) == chunks


@pytest.mark.parametrize(("num_layers", "pp", "vpp"), [(61, 4, 4), (31, 2, 8), (45, 4, 3)])
def test_chunks_hold_every_layer_where_nothing_divides(num_layers: int, pp: int, vpp: int) -> None:
    chunks = default_chunks(num_layers, pp, vpp)
    assert len(chunks) == pp * vpp
    assert sum(chunks) == num_layers
    assert max(chunks) == -(-num_layers // (pp * vpp))
