"""Minimal conflicts against brute force over all sets of limits."""

from collections.abc import Collection
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from planner.search.space.narrow import minimal_conflict

LIMITS = ("a", "b", "c", "d", "e")
# Of every layout the limits that it does not keep.
BROKEN = st.lists(st.frozensets(st.sampled_from(LIMITS)), max_size=12)


@given(BROKEN)
def test_a_conflict_is_minimal_and_of_earlier_limits_where_they_are_in_one(
    broken: list[frozenset[str]],
) -> None:
    def holds(kept: Collection[str]) -> bool:
        return any(each.isdisjoint(kept) for each in broken)

    if holds(LIMITS):
        return
    found = minimal_conflict(LIMITS, holds)
    assert not holds(found)
    if found:
        assert all(holds(fewer) for fewer in combinations(found, len(found) - 1))
        assert holds(LIMITS[: LIMITS.index(found[-1])])


def test_without_any_layout_no_limit_is_to_blame() -> None:
    assert minimal_conflict(LIMITS, lambda _kept: False) == ()
