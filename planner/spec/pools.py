"""MixedCluster: pools of unlike machines, and the network between them."""

from dataclasses import dataclass, replace

from planner.spec.cluster import ClusterSpec, LevelSpec


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Equal nodes among others: a cluster by itself."""

    name: str
    cluster: ClusterSpec

    @property
    def num_accelerators(self) -> int:
        """Accelerators of the pool."""
        return self.cluster.num_accelerators


@dataclass(frozen=True, kw_only=True)
class MixedCluster:
    """Two or more pools, in the order of their file."""

    name: str
    pools: tuple[Pool, ...]
    between: LevelSpec
    """What a message from one pool to another passes; its rate is that of one accelerator."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators of all pools."""
        return sum(pool.num_accelerators for pool in self.pools)


def stretched(cluster: ClusterSpec, num_accelerators: int) -> ClusterSpec:
    """As many of a pool's nodes as hold so many accelerators: where all of a job ran on them."""
    size = cluster.node.num_accelerators
    num_nodes = -(-num_accelerators // size)
    fabric = replace(cluster.fabric, num_accelerators=num_nodes * size)
    return replace(cluster, num_nodes=num_nodes, fabric=fabric)


def bordering(cluster: ClusterSpec, between: LevelSpec) -> ClusterSpec:
    """The same nodes where all that leaves a scale-up domain goes to another pool."""
    fabric = replace(between, num_accelerators=cluster.num_accelerators)
    return replace(cluster, fabric=fabric, inner_fabric=())
