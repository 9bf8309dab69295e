"""Global ranks of pipeline stages and of the communication groups inside them."""

import numpy as np

from planner.cost.topology import extent_of
from planner.spec.strategy import GPU_DEGREES, PLACEMENTS, Strategy, StrategyColumns

Ranks = tuple[int, ...]


def stage_ranks(strategy: Strategy, stage: int) -> Ranks:
    """Ranks of a stage, rising: they number the axes in the order of the placement."""
    axes = [axis for axis in reversed(PLACEMENTS[strategy.placement]) if axis in GPU_DEGREES]
    grid = np.arange(strategy.num_gpus).reshape([getattr(strategy, axis) for axis in axes])
    return tuple(grid.take(stage, axis=axes.index("pp")).ravel().tolist())


def groups_of(axis: str, strategy: Strategy, stage: int) -> tuple[Ranks, ...]:
    """Groups of an axis inside one stage, each in the order of its members.

    As :func:`topology.group_of` places it among the ranks of the stage; the mesh of experts lies
    over them whatever is placed between.
    """
    columns = {**vars(strategy.columns()), "pp": np.ones(1, dtype=int)}
    size, stride = (int(each[0]) for each in extent_of(axis, StrategyColumns(**columns)))
    ranks = np.array(stage_ranks(strategy, stage))
    grid = ranks.reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)
    return tuple(tuple(group) for group in grid.tolist())


def pairs_of(strategy: Strategy, stages: tuple[int, int]) -> tuple[Ranks, ...]:
    """Ranks of two stages that stand in the same place."""
    return tuple(zip(*(stage_ranks(strategy, stage) for stage in stages), strict=True))
