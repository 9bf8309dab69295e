"""Minimal conflicts against brute force over all sets of limits."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search.conflicts import Pattern, Witness, minimal_conflict, minimal_core

LIMITS = ("a", "b", "c", "d", "e")
PATTERNS = st.lists(st.frozensets(st.sampled_from(LIMITS)), max_size=12)


def is_conflict(limits: Sequence[str], patterns: Sequence[Pattern]) -> bool:
    """Every layout violates one of the limits."""
    return all(pattern & set(limits) for pattern in patterns)


def is_minimal(limits: Sequence[str], patterns: Sequence[Pattern]) -> bool:
    return all(
        not is_conflict(fewer, patterns)
        for number in range(len(limits))
        for fewer in combinations(limits, number)
    )


def probe_of(patterns: Sequence[Pattern], asked: list[frozenset[str]] | None = None):  # noqa: ANN201
    """The space of so many layouts, each called by its number."""

    def probe(kept: frozenset[str]) -> Witness[int] | None:
        if asked is not None:
            asked.append(kept)
        keeping = (n for n, pattern in enumerate(patterns) if not pattern & kept)
        row = next(keeping, None)
        return None if row is None else Witness(layout=row, violated=patterns[row])

    return probe


@given(PATTERNS)
def test_a_core_is_a_conflict_and_minimal_and_exists_where_one_does(
    patterns: list[Pattern],
) -> None:
    core = minimal_core(LIMITS, patterns)
    if core is None:
        assert not is_conflict(LIMITS, patterns)
    else:
        assert is_conflict(core, patterns)
        assert is_minimal(core, patterns)


@given(PATTERNS)
def test_conflicts_found_by_probing_are_minimal_and_have_witnesses(patterns: list[Pattern]) -> None:
    found = minimal_conflict(LIMITS, probe_of(patterns))
    if found is None:
        assert not is_conflict(LIMITS, patterns)
        return
    assert is_conflict(found.limits, patterns)
    assert is_minimal(found.limits, patterns)
    assert set(found.without) == set(found.limits)
    for limit, row in found.without.items():
        assert patterns[row] & set(found.limits) == {limit}


@given(PATTERNS)
def test_later_limits_are_named_only_where_earlier_ones_are_in_no_conflict(
    patterns: list[Pattern],
) -> None:
    found = minimal_conflict(LIMITS, probe_of(patterns))
    if found is not None and found.limits:
        last = LIMITS.index(found.limits[-1])
        assert not is_conflict(LIMITS[:last], patterns)


def test_patterns_are_asked_for_only_as_needed() -> None:
    patterns = [frozenset("a"), frozenset("b"), *[frozenset("abcde")] * 1000]
    asked: list[frozenset[str]] = []
    found = minimal_conflict(LIMITS, probe_of(patterns, asked))
    assert found is not None
    assert found.limits == ("a", "b")
    assert asked == [frozenset(), frozenset("a"), frozenset("ab")]


def test_without_any_layout_no_limit_is_to_blame() -> None:
    found = minimal_conflict(LIMITS, probe_of([]))
    assert found is not None
    assert found.limits == ()
    assert minimal_conflict((), probe_of([frozenset()])) is None


def test_a_probe_that_does_not_keep_what_it_must_is_an_error() -> None:
    answers = iter([frozenset("a"), frozenset("a")])
    with pytest.raises(ValueError, match="broke"):
        minimal_conflict(LIMITS, lambda _: Witness(layout=0, violated=next(answers)))
