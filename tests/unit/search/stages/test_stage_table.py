"""Every way to put layers under policies, or steps of them, in parts of bounded size."""

import numpy as np
import pytest

from planner.search.stages.stage_table import MOST_CELLS, Ranges


def ranges_of(most: list[int], free: tuple[bool, ...]) -> Ranges:
    return Ranges(
        numbers=np.arange(1.0, max(most) + 1.0),
        fewest=np.ones(len(most)),
        most=np.array(most, dtype=float),
        free=free,
    )


@pytest.mark.parametrize("num_stages", [1, 4, 64])
@pytest.mark.parametrize("kinds", [2, 3])
def test_a_thousand_layers_are_looked_at_in_parts_of_bounded_size(
    num_stages: int, kinds: int
) -> None:
    ranges = ranges_of([1000] * num_stages, (True,) * kinds)
    part = ranges.parts[-1]
    stage, layers, counts = ranges.grid(part)
    assert part.last == 1000
    assert part.step > 1
    assert len(stage) <= MOST_CELLS
    assert counts.sum(axis=0).max() == 1000
    assert (counts.sum(axis=0) <= layers).all()


def test_the_layers_of_a_large_published_model_are_looked_at_one_by_one() -> None:
    ranges = ranges_of([111] * 16, (True, True))
    assert {part.step for part in ranges.parts} == {1}
