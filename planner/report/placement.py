"""Where a strategy's groups sit on the levels of a cluster, in words."""

from planner.cost.context import Context
from planner.cost.topology import group_of
from planner.spec.strategy import Strategy

_AXES = {"tp": "tp", "cp": "cp", "dp": "dp_shard", "dp_replicate": "dp_replicate", "pp": "pp"}
_EXPERT_AXES = {"etp": "etp", "ep": "ep"}
"""Shown where experts lie otherwise than the other layers."""


def placement_line(context: Context, strategy: Strategy) -> str:
    """Return ``tp-cp-ep-dp-pp (inside out): tp 4 nvlink, dp 2 nvlink x 4 ib-ndr, ...``."""
    columns, cluster = strategy.columns(), context.cluster
    parts = []
    for axis, name in (_AXES | (_EXPERT_AXES if strategy.ep > 1 else {})).items():
        group = group_of(name, columns, cluster)
        sizes = [1.0, *(float(inside[0]) for inside in group.members)]
        pairs = zip(sizes, sizes[1:], cluster.levels, strict=False)
        steps = [
            f"{inside / below:.3g} {level.name}" for below, inside, level in pairs if inside > below
        ]
        if steps:
            parts.append(f"{axis} {' x '.join(steps)}")
    return f"{strategy.placement} (inside out): {', '.join(parts) or 'one GPU'}"
