"""Megatron's layout text and its other ways to split layers."""

import pytest

from planner.formats.megatron.options import (
    chunks_of,
    even_chunks,
    given_ends,
    layout_problem,
    layout_text,
    parse_layout,
    pattern_text,
    uniform_block,
)


def test_a_layout_is_written_and_parsed() -> None:
    assert layout_text((3, 1, 0)) == "Et*3|t|L"
    assert layout_text((3, 1, 0), 2) == "Et*3|t|mmL"
    assert chunks_of(parse_layout("Et*3|t|L")) == (3, 1, 0)


def test_repetitions_are_written_out_as_megatron_does() -> None:
    assert parse_layout("Ettt|(tt|)*2,m|L") == ["Ettt", "tt", "tt", "m", "L"]


@pytest.mark.parametrize("text", ["Ex|L", "E(t|)*99999999L", "E t|L"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"layers"):
        parse_layout(text)


@pytest.mark.parametrize("text", ["tE|tL", "Et|t", "Et|EtL", "Et|tL"])
def test_a_layout_needs_its_ends_and_all_layers(text: str) -> None:
    assert layout_problem(parse_layout(text), 3)


def test_embedding_and_loss_may_count_as_layers() -> None:
    assert even_chunks(126, 4, 2, embedding=True, loss=True) == (15, 16, 16, 16, 16, 16, 16, 15)


def test_ends_leave_equal_stages() -> None:
    assert given_ends(32, 4, 1, first=7, last=9) == (7, 8, 8, 9)
    assert given_ends(32, 4, 1, first=7, last=8) is None


def test_block_recomputation_counts_per_chunk() -> None:
    assert uniform_block((4, 4, 4, 3), (4, 4)) == 2
    assert uniform_block((4, 4, 4, 3), (8, 7)) == 4
    assert uniform_block((4, 4, 4, 3), (4, 3)) is None


def test_a_pattern_is_a_product() -> None:
    assert pattern_text([0, 0, 1, 1, 1]) == "([0]*2+[1]*3)"
