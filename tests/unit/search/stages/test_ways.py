"""Which sets of modules are worth a stage problem of their own."""

import numpy as np
import pytest

from planner.cost.module_sets import SelectiveCosts
from planner.search.stages.solver import non_dominated


def options_of(added: list[float], saved: list[float], workspace: list[float]) -> SelectiveCosts:
    """Sets of one strategy."""
    column = {"added_s": added, "saved_bytes": saved, "workspace_bytes": workspace}
    return SelectiveCosts(
        **{name: np.array(values)[:, None] for name, values in column.items()},
        lead_saved_bytes=np.zeros((len(added), 1)),
    )


def kept(options: SelectiveCosts, weights: list[float]) -> list[bool]:
    return non_dominated(options, np.array(weights))[:, 0].tolist()


@pytest.mark.parametrize(
    ("added", "saved", "workspace", "weights", "expected"),
    [
        # The third adds as long as the second and keeps more; the fourth needs more workspace.
        ([1, 2, 2, 2], [9, 5, 6, 5], [1, 1, 1, 2], [1, 1, 1, 1], [True, True, False, False]),
        ([1, 2, 3], [9, 5, 6], [2, 2, 1], [1, 1, 1], [True, True, True]),
        # A lighter weight is an advantage.
        ([1, 2], [5, 6], [1, 1], [1, 1], [True, False]),
        ([1, 2], [5, 6], [1, 1], [1.01, 1], [True, True]),
        # Of sets that do the same the first is tried.
        ([1, 1, 1], [5, 5, 5], [1, 1, 1], [1, 1, 1], [True, False, False]),
    ],
)
def test_a_set_that_is_worse_in_everything_is_not_tried(
    added: list[float],
    saved: list[float],
    workspace: list[float],
    weights: list[float],
    expected: list[bool],
) -> None:
    assert kept(options_of(added, saved, workspace), weights) == expected


def test_every_strategy_has_its_own_sets() -> None:
    options = SelectiveCosts(
        added_s=np.array([[1.0, 2.0], [2.0, 1.0]]),
        saved_bytes=np.array([[5.0, 5.0], [5.0, 5.0]]),
        lead_saved_bytes=np.array([[0.0, 0.0], [0.0, -1.0]]),
        workspace_bytes=np.ones((2, 2)),
    )
    found = non_dominated(options, np.ones(2)).tolist()
    assert found == [[True, False], [False, True]]
