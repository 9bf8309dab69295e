"""Where the ranks of a parallel group sit: how many of them share a scale-up domain.

Axes are placed innermost first: tp, cp, dp (ep inside it; sharding inside replication), pp, as
Megatron-LM does by default.
"""

from dataclasses import dataclass

import numpy as np

from planner.spec.cluster import ClusterSpec
from planner.spec.strategy import StrategyColumns
from planner.units import Array


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communication group: its size, and its members inside one scale-up domain."""

    size: Array
    local: Array

    @property
    def num_domains(self) -> Array:
        """Scale-up domains the group touches."""
        return np.ceil(self.size / self.local)


def group_of(axis: str, strategy: StrategyColumns, cluster: ClusterSpec) -> Group:
    """Place ``axis`` with stride equal to the product of the axes inside it.

    ``local = min(degree, max(1, domain // stride))``.
    """
    shard = strategy.dp // strategy.dp_replicate
    stride = {
        "tp": np.ones_like(strategy.tp),
        "cp": strategy.tp,
        "ep": strategy.tp * strategy.cp,
        "dp_shard": strategy.tp * strategy.cp,
        "dp_shard_cp": strategy.tp,
        "expert_dp_shard": strategy.tp * strategy.cp * strategy.ep,
        "expert_dp_shard_cp": strategy.tp * strategy.ep,
        "dp_replicate": strategy.tp * strategy.cp * shard,
        "pp": strategy.tp * strategy.cp * strategy.dp,
    }[axis]
    size = {
        "dp_shard": shard,
        "dp_shard_cp": shard * strategy.cp,
        "expert_dp_shard": np.maximum(shard // strategy.ep, 1),
        "expert_dp_shard_cp": np.maximum(shard * strategy.cp // strategy.ep, 1),
    }.get(axis)
    if size is None:
        size = getattr(strategy, axis)
    domain = min(cluster.node.scale_up.num_accelerators, cluster.num_accelerators)
    local = np.minimum(size, np.maximum(1, domain // stride))
    return Group(size=size, local=np.maximum(local, 1))
