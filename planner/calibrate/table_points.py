"""The rows of a table of measurements as points of a cluster."""

from collections.abc import Callable, Iterator, Mapping

from planner.calibrate.kernel_points import (
    attention_point,
    attention_work,
    disk_point,
    host_adam_point,
    memory_point,
)
from planner.calibrate.machine import check_machine
from planner.calibrate.measured import Measured, Table
from planner.calibrate.points import Point, collective_point, link_point, product_point
from planner.errors import InputError
from planner.layers.op import FlashAttention
from planner.plans.collective import most_whole_ranks
from planner.spec.cluster import ClusterSpec

_Make = Callable[[str, int, Measured, Table, ClusterSpec], Point | None]


def table_points(path: str, table: Table, cluster: ClusterSpec) -> Iterator[Point]:
    """A point of every row that the model has a time for; raises InputError for what cannot be."""
    machine = table.machine
    check_machine(path, machine, cluster)
    inside = cluster.node.num_accelerators
    if machine.per_node > inside:
        message = f"was measured on {machine.per_node} a node; {cluster.node.name} has {inside}"
        raise InputError.single(path, "# per_node", message)
    for at, row in zip(table.lines or range(1, len(table.rows) + 1), table.rows, strict=True):
        make = _POINTS.get(row.what)
        point = make(path, at, row, table, cluster) if make else None
        if point is not None:
            yield point


def work_of(row: Measured) -> FlashAttention:
    """A row of causal attention as the model's kernel: torch's."""
    return attention_work(row.batch, row.heads, row.seq_len, row.head_dim)


def _product(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point | None:
    if row.dtype not in cluster.accelerator.peak_flops_per_s:
        return None
    sides = (row.m, row.n, row.k)
    return product_point(path, at, sides, row.dtype, row.time_s, cluster)  # type: ignore[arg-type]


def _attention(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point:
    is_backward = row.what == "attention_backward"
    return attention_point(
        path,
        at,
        work_of(row),
        row.dtype,  # type: ignore[arg-type]
        row.time_s,
        cluster,
        is_backward=is_backward,
    )


def _memory(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point:
    return memory_point(path, at, row.num_bytes, row.time_s, cluster)


def _link(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point:
    return link_point(path, at, row.num_bytes / row.time_s, cluster)


def _adam(path: str, at: int, row: Measured, table: Table, cluster: ClusterSpec) -> Point:
    threads, ranks = table.machine.threads, table.machine.per_node
    return host_adam_point(path, at, row.params, threads, ranks, row.time_s, cluster)


def _disk(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point:
    rate, is_write = row.num_bytes / row.time_s, row.what == "nvme_write"
    return disk_point(path, at, rate, cluster, is_write=is_write)


def _collective(path: str, at: int, row: Measured, _: Table, cluster: ClusterSpec) -> Point:
    kind, most = row.what, most_whole_ranks(cluster)
    if row.ranks > most:
        message = f"was run on {row.ranks} ranks; {cluster.name} has {most}"
        raise InputError.single(path, f"line {at}", message)
    return collective_point(path, at, kind, row.num_bytes, row.ranks, row.time_s, cluster)  # type: ignore[arg-type]


_POINTS: Mapping[str, _Make] = {
    "product": _product,
    "attention_forward": _attention,
    "attention_backward": _attention,
    "add": _memory,
    "norm": _memory,
    "host_to_device": _link,
    "device_to_host": _link,
    "host_adam": _adam,
    "nvme_write": _disk,
    "nvme_read": _disk,
    "all_reduce": _collective,
    "all_gather": _collective,
    "reduce_scatter": _collective,
    "all_to_all": _collective,
    "p2p": _collective,
}
"""A copy says what the memory moves, a launch what the host takes: neither is a kernel of plans."""
