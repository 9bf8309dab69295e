"""Where a strategy's groups sit on the levels of a cluster, in words."""

from planner.cost.context import Context
from planner.cost.topology import group_of
from planner.spec.strategy import STAGE_DEGREES, Strategy

_INNER_AXES = tuple(name for name in STAGE_DEGREES if name != "dp")
_EXPERT_AXES = ("etp", "ep")
"""Shown where experts lie otherwise than the other layers."""
_GROUPS = {"dp": "dp_shard"}
"""What axes are called as groups, where that is not their name."""


def placement_line(context: Context, strategy: Strategy) -> str:
    """Return ``tp-cp-ep-dp-pp (inside out): tp 4 nvlink, dp 2 nvlink x 4 ib-ndr, ...``."""
    columns, cluster = strategy.columns(), context.cluster
    parts = []
    experts = _EXPERT_AXES if strategy.ep > 1 else ()
    for axis in (*_INNER_AXES, "dp", "dp_replicate", "pp", *experts):
        group = group_of(_GROUPS.get(axis, axis), columns, cluster)
        sizes = [1.0, *(float(inside[0]) for inside in group.members)]
        pairs = zip(sizes, sizes[1:], cluster.levels, strict=False)
        steps = [
            f"{inside / below:.3g} {level.name}" for below, inside, level in pairs if inside > below
        ]
        if steps:
            parts.append(f"{axis} {' x '.join(steps)}")
    return f"{strategy.placement} (inside out): {', '.join(parts) or 'one GPU'}"
