"""Lengths of documents: moments of the cut-off exponential, by hand."""

import numpy as np
import pytest

from planner.spec.job import read_documents


def test_lengths_about_half_the_longest_are_uniform() -> None:
    documents = read_documents("packed:500", 1000)
    assert documents.attended_tokens == pytest.approx(1000 * 2 / 3, rel=1e-3)
    expected = [1000 * n / (n + 1) for n in (1, 2, 7)]
    assert documents.padded_tokens(np.array([1, 2, 7])) == pytest.approx(expected, rel=1e-3)


def test_lengths_far_below_the_longest_are_exponential() -> None:
    documents = read_documents("padded:100", 10_000)
    assert documents.attended_tokens == pytest.approx(200, rel=1e-2)
    harmonic = [100 * sum(1 / k for k in range(1, n + 1)) for n in (1, 2, 4)]
    assert documents.padded_tokens(np.array([1, 2, 4])) == pytest.approx(harmonic, rel=1e-2)


@pytest.mark.parametrize("mean", [30, 700, 4096, 7000, 8192])
def test_one_document_is_as_long_as_the_mean(mean: int) -> None:
    documents = read_documents(f"grouped:{mean}", 8192)
    assert documents.padded_tokens(np.array([1])) == pytest.approx([mean], rel=5e-3)
    assert mean <= documents.attended_tokens * 1.005 <= 8192 * 1.005


def test_documents_are_read_as_they_are_written() -> None:
    for given, text in (("grouped:700.5", "grouped:700.5"), ("700", "packed:700")):
        assert read_documents(given, 4096).text == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sorted:700", "packed:MEAN, padded:MEAN, grouped:MEAN"),
        ("packed:", "given 'packed:'"),
        ("packed:nan", "given 'packed:nan'"),
        ("packed:-1", "given 'packed:-1'"),
        ("packed:5000", "4096, which is the longest; given 5000"),
        ("packed:2", "from 8.192 tokens"),
    ],
)
def test_what_no_documents_are_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="given") as error:
        read_documents(text, 4096)
    assert says in str(error.value)
