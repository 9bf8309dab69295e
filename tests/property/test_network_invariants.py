"""What must hold for collectives on any cluster of switches, of two levels or more."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest
from contexts import columns_of, of_levels
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.clusters import load_cluster
from planner.cost.network import collective_s, point_to_point_s
from planner.cost.topology import Group, group_of
from planner.spec.cluster import ClusterSpec, Collective, LevelSpec

COLLECTIVES = st.sampled_from(get_args(Collective))
BYTES = st.floats(1.0, 1e11)
Situation = tuple[ClusterSpec, Group]
EXAMPLES = settings(max_examples=100, derandomize=True)


@dataclass(frozen=True)
class Network:
    """A domain of 2**sizes[0], then levels each 2**sizes[i] times larger."""

    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    latencies: tuple[float, ...]
    oversubscriptions: tuple[float, ...]
    reduces: bool

    def cluster(self) -> ClusterSpec:
        levels = [
            LevelSpec(
                name=f"level {index}",
                num_accelerators=2 ** sum(self.sizes[: index + 1]),
                bytes_per_s=self.rates[index],
                latency_s=self.latencies[index],
                efficiency_fraction=0.8,
                oversubscription=self.oversubscriptions[index] if index else 1.0,
                reduces_in_network=self.reduces and index > 0,
            )
            for index in range(len(self.sizes))
        ]
        return of_levels(*levels)


@st.composite
def networks(draw: st.DrawFn, min_levels: int = 2, max_levels: int = 4) -> Network:
    number = draw(st.integers(min_levels, max_levels))

    def each(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(values) for _ in range(number))

    return Network(
        sizes=tuple(draw(st.integers(1, 4)) for _ in range(number)),
        rates=each(st.floats(1e9, 1e12)),
        latencies=each(st.floats(1e-7, 1e-4)),
        oversubscriptions=each(st.floats(1.0, 8.0)),
        reduces=draw(st.booleans()),
    )


@st.composite
def placed(draw: st.DrawFn) -> Situation:
    """A network, and a group of one axis of a strategy that fills part of it."""
    network = draw(networks())
    logs = [draw(st.integers(0, 4)) for _ in range(3)]
    while sum(logs) > sum(network.sizes):
        logs[logs.index(max(logs))] -= 1
    degrees = {name: 2**log for name, log in zip(("tp", "dp", "pp"), logs, strict=True)}
    columns = columns_of(**degrees, placement=draw(st.integers(0, 1)))
    cluster = network.cluster()
    return cluster, group_of(draw(st.sampled_from(("tp", "dp_shard", "pp"))), columns, cluster)


@given(situation=placed(), collective=COLLECTIVES, num_bytes=BYTES, factor=st.floats(1.0, 1000.0))
@EXAMPLES
def test_more_bytes_never_take_less_time_and_a_group_of_one_none(
    situation: Situation, collective: Collective, num_bytes: float, factor: float
) -> None:
    cluster, group = situation
    few = collective_s(collective, num_bytes, group, cluster)
    assert np.isfinite(few[0])
    assert (few[0] > 0) == (int(group.size[0]) > 1)
    assert collective_s(collective, num_bytes * factor, group, cluster) >= few * (1 - 1e-12)
    # Members never decrease outwards and fit into their level.
    counts = [int(inside[0]) for inside in group.members]
    assert counts == sorted(counts)
    for count, level in zip(counts, cluster.levels, strict=True):
        assert 1 <= count <= level.num_accelerators


@given(
    situation=placed(),
    collective=COLLECTIVES,
    num_bytes=BYTES,
    which=st.integers(0, 3),
    factor=st.floats(1.0, 100.0),
    what=st.sampled_from(("bytes_per_s", "latency_s", "oversubscription")),
)
@EXAMPLES
def test_a_worse_level_never_makes_anything_faster(
    situation: Situation,
    collective: Collective,
    num_bytes: float,
    which: int,
    factor: float,
    what: str,
) -> None:
    cluster, group = situation
    levels = list(cluster.levels)
    level = levels[which % len(levels)]
    by = 1.0 / factor if what == "bytes_per_s" else factor
    levels[which % len(levels)] = replace(level, **{what: by * getattr(level, what)})
    worse = of_levels(*levels)
    before = collective_s(collective, num_bytes, group, cluster)
    assert collective_s(collective, num_bytes, group, worse) >= before * (1 - 1e-12)
    message = point_to_point_s(np.array(num_bytes), group, cluster)
    assert point_to_point_s(np.array(num_bytes), group, worse) >= message * (1 - 1e-12)


@given(network=networks(), collective=COLLECTIVES, num_bytes=BYTES, data=st.data())
@EXAMPLES
def test_more_neighbours_inside_a_fast_domain_never_slow_a_group(
    network: Network, collective: Collective, num_bytes: float, data: st.DataObject
) -> None:
    cluster = network.cluster()
    latencies = sorted(network.latencies)
    levels = [
        replace(level, latency_s=latency, oversubscription=1.0, reduces_in_network=False)
        for level, latency in zip(cluster.levels, latencies, strict=True)
    ]
    count = cluster.num_accelerators
    levels[0] = replace(
        levels[0], bytes_per_s=max(network.rates) * count, latency_s=latencies[0] / count
    )
    cluster = of_levels(*levels)
    sizes = [level.num_accelerators for level in cluster.levels]
    spread = data.draw(st.integers(0, network.sizes[0] - 1))
    near = [max(size, 1) for size in sizes]
    far = [max(size >> (network.sizes[0] - spread), 1) for size in sizes[:-1]] + [sizes[-1]]
    close, apart = (
        Group(members=tuple(np.array([min(n, sizes[-1])]) for n in members))
        for members in (near, far)
    )
    fast = collective_s(collective, num_bytes, close, cluster)
    assert fast <= collective_s(collective, num_bytes, apart, cluster) * (1 + 1e-12)


def two_level_s(
    collective: Collective, num_bytes: float, size: int, local: int, cluster: ClusterSpec
) -> float:
    """Domain and fabric written out: one ring (or tree) over the members' ports, or one port."""
    domain, fabric = cluster.levels
    inside_rate = domain.bytes_per_s * domain.efficiency_fraction
    port = fabric.bytes_per_s * fabric.efficiency_fraction
    rounds = 2 if collective == "all_reduce" else 1
    if local == size:
        hops = rounds * (size - 1) * domain.latency_s
        return hops + rounds * (size - 1) / size * num_bytes / inside_rate
    if collective == "all_to_all":
        share = num_bytes * local / size
        inside = (local - 1) * domain.latency_s + (local - 1) / local * share / inside_rate
        remote = fabric.latency_s + (num_bytes - share) / port
        return max(inside if local > 1 else 0.0, remote)
    rate, domains = min(local * port, inside_rate), size // local
    hops = (domains - 1) * fabric.latency_s + (local - 1) * domain.latency_s
    ring = rounds * hops + rounds * (size - 1) / size * num_bytes / rate
    if collective != "all_reduce":
        return ring
    between = min((2 if domains == 2 else 1) * local * port, inside_rate)
    return min(ring, 2 * np.log2(domains) * fabric.latency_s + 2 * num_bytes / between)


@given(network=networks(max_levels=2), collective=COLLECTIVES, num_bytes=BYTES, data=st.data())
@EXAMPLES
def test_two_levels_are_a_ring_or_tree_over_the_ports_of_a_node_or_as_slow_as_one_domain(
    network: Network, collective: Collective, num_bytes: float, data: st.DataObject
) -> None:
    network = replace(network, oversubscriptions=(1.0, 1.0), reduces=False)
    cluster = network.cluster()
    size = 2 ** data.draw(st.integers(1, sum(network.sizes)))
    most = min(size, cluster.domain.num_accelerators)
    local = 2 ** data.draw(st.integers(0, most.bit_length() - 1))
    group = Group(members=(np.array([local]), np.array([size])))
    inside = Group(members=(np.array([local]), np.array([local])))
    least = collective_s(collective, num_bytes, inside, cluster)[0]
    expected = max(two_level_s(collective, num_bytes, size, local, cluster), least)
    assert collective_s(collective, num_bytes, group, cluster)[0] == pytest.approx(expected)


@given(network=networks(), collective=COLLECTIVES, num_bytes=BYTES)
@EXAMPLES
def test_switches_that_add_never_slow_a_group(
    network: Network, collective: Collective, num_bytes: float
) -> None:
    sizes = [level.num_accelerators for level in network.cluster().levels]
    everyone = Group(members=tuple(np.array([size]) for size in sizes))
    plain, adding = (
        collective_s(collective, num_bytes, everyone, replace(network, reduces=reduces).cluster())
        for reduces in (False, True)
    )
    assert adding <= plain * (1 + 1e-12)
    if collective != "all_reduce":
        assert adding == plain


MEASURED = """
64xdgx-h100 64xdgx-h200 64xdgx-b200 64xdgx-a100-640 4xgb200-nvl72 64xfrontier 64xhgx-mi300x
64xdgx-1
"""


@pytest.mark.parametrize("collective", get_args(Collective))
@pytest.mark.parametrize("name", MEASURED.split())
def test_a_group_that_leaves_its_domain_gets_no_faster(name: str, collective: Collective) -> None:
    cluster = load_cluster(name)
    domain = cluster.domain.num_accelerators
    sizes = domain * np.array([1, 2, 3, 4])
    members = tuple(np.minimum(sizes, level.num_accelerators) for level in cluster.levels[:-1])
    group = Group(members=(*members, sizes), domain=cluster.num_inner_levels)
    for num_bytes in 2.0 ** np.arange(10, 36):
        seconds = collective_s(collective, np.full(sizes.shape, num_bytes), group, cluster)
        assert (seconds[1:] >= seconds[0]).all(), (num_bytes, seconds)
