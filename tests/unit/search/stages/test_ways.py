"""Which sets of modules are worth a stage problem of their own."""

import numpy as np

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


def test_a_set_that_is_worse_in_everything_is_not_tried() -> None:
    # The third adds as long as the second and keeps more; the fourth needs more workspace.
    options = options_of([1.0, 2.0, 2.0, 2.0], [9.0, 5.0, 6.0, 5.0], [1.0, 1.0, 1.0, 2.0])
    assert kept(options, [1.0] * 4) == [True, True, False, False]


def test_a_set_that_is_better_in_one_thing_is_tried() -> None:
    options = options_of([1.0, 2.0, 3.0], [9.0, 5.0, 6.0], [2.0, 2.0, 1.0])
    assert kept(options, [1.0] * 3) == [True] * 3


def test_a_lighter_weight_is_an_advantage() -> None:
    options = options_of([1.0, 2.0], [5.0, 6.0], [1.0, 1.0])
    assert kept(options, [1.0, 1.0]) == [True, False]
    assert kept(options, [1.01, 1.0]) == [True, True]


def test_of_sets_that_do_the_same_the_first_is_tried() -> None:
    options = options_of([1.0, 1.0, 1.0], [5.0, 5.0, 5.0], [1.0, 1.0, 1.0])
    assert kept(options, [1.0] * 3) == [True, False, False]


def test_every_strategy_has_its_own_sets() -> None:
    options = SelectiveCosts(
        added_s=np.array([[1.0, 2.0], [2.0, 1.0]]),
        saved_bytes=np.array([[5.0, 5.0], [5.0, 5.0]]),
        lead_saved_bytes=np.array([[0.0, 0.0], [0.0, -1.0]]),
        workspace_bytes=np.ones((2, 2)),
    )
    found = non_dominated(options, np.ones(2)).tolist()
    assert found == [[True, False], [False, True]]
