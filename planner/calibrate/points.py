"""Points: what was measured, what the model says of it on a cluster, and what cannot be."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.check.layout import Layout
from planner.collectives.cost import busbw_factor
from planner.cost.estimate import estimate
from planner.cost.kernels import product_s
from planner.errors import InputError
from planner.layers.op import Gemm
from planner.plans.collective import planned_s
from planner.spec.cluster import ClusterSpec
from planner.spec.job import Precision
from planner.spec.library import Kind
from planner.units import GB

NOISE = {
    "collective": 0.10,
    "product": 0.05,
    "attention": 0.06,
    "memory-bound": 0.10,
    "host link": 0.05,
    "host Adam": 0.15,
    "disk": 0.10,
    "run": 0.06,
}
"""Relative standard deviation of one measurement against the model, on machines whose figures were
fitted: docs/communication.md, docs/kernels.md, docs/offload.md, docs/accuracy.md."""
DISKS = ("nvme_write_gb_per_s", "nvme_read_gb_per_s")
ROUNDING = 1.01
"""By which a printed figure may lie above a limit."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement."""

    kind: str
    """Of NOISE."""
    path: str
    line: int
    measured: float
    """Seconds, or bytes/s of a link."""
    predict: Callable[[ClusterSpec], float]
    """The same by the model."""
    key: str = ""
    """Of DISKS: the figure that it says outright, also where the catalog has none."""


def too_fast(path: str, line: int, what: str, given: str, most: str) -> InputError:
    """A measurement that no machine of the kind can make."""
    message = f"{what} of {given} is more than there is: {most}"
    return InputError.single(path, f"line {line}", message)


def collective_point(
    path: str,
    line: int,
    kind: Kind,
    num_bytes: float,
    num_ranks: int,
    measured_s: float,
    cluster: ClusterSpec,
) -> Point:
    """A row of nccl-tests; raises InputError where its bytes cannot pass the links in that time.

    Every rank takes in ``(n-1)/n`` of a gathered or exchanged vector, one whole message, and of an
    all-reduce one whole vector at least (switches may add it up); a node takes in ``(k-1)/k`` of
    it by its ports.
    """
    inside = cluster.domain.num_accelerators
    rate = cluster.domain.bytes_per_s
    is_whole = kind in ("all_reduce", "p2p")
    entering = num_bytes if is_whole else num_bytes * (num_ranks - 1) / num_ranks
    least_s = entering / rate
    if num_ranks > inside:
        nodes = -(-num_ranks // cluster.node.num_accelerators)
        per_node = num_bytes * (nodes - 1) / nodes
        least_s = per_node / cluster.node.nic_bytes_per_s
    if least_s > ROUNDING * measured_s:
        given = f"{num_bytes:,.0f} bytes in {measured_s * 1e6:,.1f} us"
        most = f"the links of {cluster.node.name} need {least_s * 1e6:,.1f} us at their full rate"
        raise too_fast(path, line, f"{kind} over {num_ranks}", given, most)

    def predict(machine: ClusterSpec) -> float:
        return planned_s(kind, num_bytes, num_ranks, machine) or measured_s

    return Point(kind="collective", path=path, line=line, measured=measured_s, predict=predict)


def product_point(
    path: str,
    line: int,
    sides: tuple[int, int, int],
    precision: Precision,
    measured_s: float,
    cluster: ClusterSpec,
) -> Point:
    """A row of a table of products; raises InputError where it is above the peak."""
    m, n, k = sides
    peaks = {str(name): value for name, value in cluster.accelerator.peak_flops_per_s.items()}
    if precision not in peaks:
        message = f"{cluster.accelerator.name} has no peak in {precision}"
        raise InputError.single(path, f"line {line}", message)
    peak = peaks[precision]
    rate = 2.0 * m * n * k / measured_s
    if rate > ROUNDING * peak:
        given, most = f"{rate / 1e12:,.0f} TFLOP/s", f"the peak is {peak / 1e12:,.0f} TFLOP/s"
        raise too_fast(path, line, f"{precision} product", given, most)
    gemm = Gemm(m=np.array(float(m)), n=np.array(float(n)), k=np.array(float(k)))

    def predict(machine: ClusterSpec) -> float:
        return float(product_s(gemm, machine.accelerator, precision))

    return Point(kind="product", path=path, line=line, measured=measured_s, predict=predict)


def link_point(path: str, line: int, bytes_per_s: float, cluster: ClusterSpec) -> Point:
    """A host link's rate; raises InputError where it is above that of the memory it ends in."""
    most = cluster.accelerator.hbm_bytes_per_s
    if bytes_per_s > ROUNDING * most:
        given, limit = f"{bytes_per_s / GB:,.0f} GB/s", f"the memory moves {most / GB:,.0f} GB/s"
        raise too_fast(path, line, "a host link", given, limit)

    def predict(machine: ClusterSpec) -> float:
        return machine.node.host_link_bytes_per_s or bytes_per_s

    return Point(kind="host link", path=path, line=line, measured=bytes_per_s, predict=predict)


def run_point(
    path: str, line: int, layout: Layout, measured_s: float, cluster: ClusterSpec
) -> Point:
    """A training run; raises InputError for more GPUs, or FLOPs, than there are."""
    context, most = replace(layout.context, cluster=cluster), cluster.num_accelerators
    if layout.num_gpus > most:
        message = f"the run had {layout.num_gpus:,} GPUs, {cluster.name} has {most:,}"
        raise InputError.single(path, f"line {line}", message)
    made = estimate(context, layout.strategy)
    share = made.mfu * made.iter_time_s / measured_s
    if share > ROUNDING:
        raise too_fast(path, line, "an MFU", f"{share:.0%}", "100 % is the peak")

    def predict(machine: ClusterSpec) -> float:
        return estimate(replace(context, cluster=machine), layout.strategy).iter_time_s

    return Point(kind="run", path=path, line=line, measured=measured_s, predict=predict)


def bus_factor(kind: Kind, num_ranks: int) -> float:
    """Bus over algorithm bandwidth."""
    return float(busbw_factor(kind, float(num_ranks)))
