"""The plans that no other dominates in two or three objectives.

Why the fastest plan of every number of GPUs is enough: at a given number of GPUs, the iteration
time, the cost and the energy of a job all rise with the iteration time, so the fastest plan of a
number dominates (or equals) the others. A number of GPUs whose fastest plan is no faster than that
of a smaller one costs and draws more as well. So the frontier of time over GPUs holds a plan for
every point of the frontier of any of time, GPUs, cost and energy. Headroom is counted in whole GiB,
and :func:`planner.search.headroom.headroom_frontier` gives the plans for every one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.query.objectives import objective_matrix
from planner.search.headroom import headroom_gib
from planner.search.ranking.pareto import non_dominated
from planner.units import Array

if TYPE_CHECKING:
    from planner.plans.plan import Plan


def points_of(plans: Sequence["Plan"], names: Sequence[str]) -> Array:
    """Plans x objectives, all to be minimised; headroom in whole GiB, negated."""
    points = objective_matrix(plans, names)
    for column, name in enumerate(names):
        if name == "headroom_bytes":
            points[:, column] = [
                -headroom_gib(plan.context, plan.estimate.memory.peak_bytes) for plan in plans
            ]
    return points


def merged(plans: Sequence["Plan"], names: Sequence[str]) -> tuple["Plan", ...]:
    """What no plan dominates, in the order of GPUs, then time, then most headroom."""
    if not plans:
        return ()
    kept = [plans[row] for row in non_dominated(points_of(plans, names)).tolist()]
    order = np.lexsort(points_of(kept, ("headroom_bytes", "iteration_s", "gpus")).T)
    return tuple(kept[row] for row in order.tolist())
