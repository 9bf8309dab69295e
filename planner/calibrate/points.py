"""Points: what was measured, what the model says of it on a cluster, and what cannot be.

A measurement that no machine of the kind can make is refused with its line.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from planner.answers.collective import most_whole_ranks, planned_s
from planner.calibrate.rows import Machine, Measured, Table
from planner.catalog.detect import accelerator_of
from planner.cost.attention_kernels import (
    attention_peak_flops_per_s,
    flash_attention_backward_s,
    flash_attention_forward_s,
)
from planner.cost.estimate import estimate
from planner.cost.kernels import element_wise_s, product_s
from planner.errors import InputError, Problem
from planner.layers.op import FlashAttention, Gemm
from planner.query.layout import Layout
from planner.spec.cluster import PROCESSOR, ClusterSpec, CollectiveKind, Dtype
from planner.spec.job import Precision
from planner.units import GB, TERA, US

# Relative standard deviation of one measurement against the model, on machines whose figures were
# fitted: docs/accuracy.md and, in docs/how-it-works/, communication.md, kernels.md, time.md.
NOISE = {
    "collective": 0.10,
    "product": 0.05,
    "attention": 0.06,
    "memory-bound": 0.10,
    "host link": 0.05,
    "host Adam": 0.15,
    "run": 0.06,
}
ROUNDING = 1.01  # by which a printed figure may lie above a limit
HOST_ADAM_BYTES = 28.0  # read and written per parameter by a fused Adam (docs/how-it-works/time.md)
# Of the memory's rate that all ranks' fused Adam reach together
# (traits.offload.host_bandwidth_fraction of frameworks that use it).
FUSED_HOST_FRACTION = 0.45


@dataclass(frozen=True, kw_only=True)
class Place:
    """File and line of a measurement."""

    path: str
    line: int

    def refuse(self, message: str) -> InputError:
        """An error at this line."""
        return InputError.single(self.path, f"line {self.line}", message)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement."""

    kind: str  # of NOISE
    place: Place
    measured: float  # seconds, or bytes/s of a link
    predict: Callable[[ClusterSpec], float]  # the same by the model


def check_devices(path: str, names: Mapping[str, str], cluster: ClusterSpec) -> None:
    """Raise InputError for GPUs that the catalog knows as others than the cluster's.

    ``names``: as tools print them, each with its key in the file. A name that the catalog does not
    know may be anything.
    """
    own = accelerator_of(cluster.accelerator.name)
    InputError.check(
        _another(path, key, f"{name} ({found})", cluster)
        for name, key in names.items()
        if (found := accelerator_of(name)) and own and found != own
    )


def check_machine(path: str, machine: Machine, cluster: ClusterSpec) -> None:
    """Raise InputError where a table of ``--measure`` is of another kind of machine."""
    if (machine.device == "cpu") != (cluster.accelerator.vendor == PROCESSOR):
        raise InputError([_another(path, "# device", f"{machine.name}, {machine.device}", cluster)])
    check_devices(path, {machine.name: "# name"}, cluster)


def _another(path: str, key: str, what: str, cluster: ClusterSpec) -> Problem:
    message = f"measured on {what}; {cluster.name} has {cluster.accelerator.name}"
    return Problem(where=path, key=key, message=message)


def attention_work(
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    kernel: Literal["fused", "flash2"] = "flash2",
    *,
    is_causal: bool = True,
) -> FlashAttention:
    """Attention as people measure it, as the model's kernel."""
    return FlashAttention(
        kernel=kernel,
        square_flops=np.array(4.0 * float(seq_len) ** 2 * batch * heads * head_dim),
        causal_fraction=0.5 if is_causal else 1.0,
        seq_len=seq_len,
        head_dim=head_dim,
        num_tiles=batch * heads * seq_len / 128.0,
    )


def attention_flops(work: FlashAttention, *, is_backward: bool) -> float:
    """FLOPs of one pass."""
    # backward has 2.5 times those of forward, scores recomputed (arXiv 2307.08691, section 4)
    return float(np.sum(work.flops)) * (2.5 if is_backward else 1.0)


@dataclass(frozen=True)
class Reading:
    """What was measured at a place of a file, to be held against a cluster.

    Its methods make a point of it, and raise InputError for what no machine of the kind can do.
    """

    place: Place
    measured: float  # seconds, or bytes/s of a link
    cluster: ClusterSpec

    def _point(self, kind: str, predict: Callable[[ClusterSpec], float]) -> Point:
        return Point(kind=kind, place=self.place, measured=self.measured, predict=predict)

    def _too_fast(self, what: str, given: str, most: str) -> InputError:
        return self.place.refuse(f"{what} of {given} is more than there is: {most}")

    def _check(
        self, what: str, rate: float, limit: str, most: float, scale: float = GB, unit: str = "GB/s"
    ) -> None:
        if rate > ROUNDING * most:
            given = f"{rate / scale:,.4g} {unit}"
            raise self._too_fast(what, given, f"{limit} {most / scale:,.4g} {unit}")

    def collective(self, kind: CollectiveKind, num_bytes: float, num_ranks: int) -> Point:
        """A collective, whose bytes have to pass the links in that time.

        Every rank takes in ``(n-1)/n`` of a gathered or exchanged vector, one whole message, and of
        an all-reduce one whole vector at least (switches may add it up); a node takes in
        ``(k-1)/k`` of it by its ports.
        """
        cluster, node, seconds = self.cluster, self.cluster.node, self.measured
        most_ranks = most_whole_ranks(cluster)
        if not 2 <= num_ranks <= most_ranks:
            text = f"was run on {num_ranks} ranks; {cluster.name} has {most_ranks}"
            raise self.place.refuse(text)
        # beyond a domain the ports of the nodes decide, whatever the links inside carry
        if num_ranks > cluster.domain.num_accelerators:
            nodes = -(-num_ranks // node.num_accelerators)
            least_s = num_bytes * (nodes - 1) / nodes / node.nic_bytes_per_s
        else:
            is_whole = kind in ("all_reduce", "p2p")
            entering = num_bytes if is_whole else num_bytes * (num_ranks - 1) / num_ranks
            least_s = entering / cluster.domain.bytes_per_s
        if least_s > ROUNDING * seconds:
            given = f"{num_bytes:,.0f} bytes in {seconds / US:,.1f} us"
            most = f"the links of {node.name} need {least_s / US:,.1f} us at their full rate"
            raise self._too_fast(f"{kind} over {num_ranks}", given, most)
        # plans have no such collective: the point then pulls at nothing
        return self._point(
            "collective",
            lambda machine: planned_s(kind, num_bytes, num_ranks, machine) or seconds,
        )

    def product(self, m: int, n: int, k: int, precision: Precision) -> Point:
        """A GEMM, at most at the peak."""
        accelerator = self.cluster.accelerator
        peak = accelerator.peak_flops_per_s.get(cast("Dtype", precision))
        if peak is None:
            raise self.place.refuse(f"{accelerator.name} has no peak in {precision}")
        rate = 2.0 * m * n * k / self.measured
        self._check(f"{precision} product", rate, "the peak is", peak, TERA, "TFLOP/s")
        rows, columns, inner = (np.array(float(side)) for side in (m, n, k))
        gemm = Gemm(m=rows, n=columns, k=inner)
        return self._point(
            "product",
            lambda machine: float(product_s(gemm, machine.accelerator, precision)),
        )

    def attention(self, work: FlashAttention, precision: Precision, *, is_backward: bool) -> Point:
        """Fused attention, one pass, at most at the peak."""
        try:
            peak = attention_peak_flops_per_s(self.cluster.accelerator, precision)
        except ValueError as error:
            raise self.place.refuse(str(error)) from None
        rate = attention_flops(work, is_backward=is_backward) / self.measured
        self._check("attention", rate, "the peak is", peak, TERA, "TFLOP/s")
        seconds = flash_attention_backward_s if is_backward else flash_attention_forward_s
        return self._point(
            "attention",
            lambda machine: float(np.sum(seconds(work, machine.accelerator, precision))),
        )

    def memory(self, num_bytes: float) -> Point:
        """An element-wise kernel, no faster than the memory."""
        most = self.cluster.accelerator.hbm_bytes_per_s
        self._check("memory traffic", num_bytes / self.measured, "memory moves", most)
        return self._point(
            "memory-bound",
            lambda machine: float(element_wise_s(np.asarray(num_bytes), machine.accelerator)),
        )

    def link(self) -> Point:
        """The rate of a host link, at most that of the memory."""
        most = self.cluster.accelerator.hbm_bytes_per_s
        self._check("a host link", self.measured, "the memory moves", most)
        return self._point("host link", lambda machine: machine.node.host_link_bytes_per_s)

    def host_adam(self, params: float, threads: int, ranks: int) -> Point:
        """A step of a fused Adam on the host by so many threads of each of the ranks of a node.

        ``28 bytes · params / min(threads · core, 0.45 · memory / ranks)``, as plans have it of one
        thread or more (planner.cost.offload.host_bytes_per_s); no faster than the host's memory.
        """
        moved, most = HOST_ADAM_BYTES * params * ranks, self.cluster.node.host_memory_bytes_per_s
        self._check("traffic of Adam", moved / self.measured, "the host's memory moves", most)

        def predict(machine: ClusterSpec) -> float:
            node = machine.node
            shared = FUSED_HOST_FRACTION * node.host_memory_bytes_per_s / ranks
            return HOST_ADAM_BYTES * params / min(threads * node.host_core_bytes_per_s, shared)

        return self._point("host Adam", predict)

    def run(self, layout: Layout) -> Point:
        """A training run, on no more GPUs and of no more FLOPs than there are."""
        cluster, num_gpus = self.cluster, layout.strategy.num_gpus
        context, most = replace(layout.context, cluster=cluster), cluster.num_accelerators
        if num_gpus > most:
            raise self.place.refuse(f"the run had {num_gpus:,} GPUs, {cluster.name} has {most:,}")
        made = estimate(context, layout.strategy)
        share = made.mfu * made.iter_time_s / self.measured
        if share > ROUNDING:
            raise self._too_fast("an MFU", f"{share:.0%}", "100 % is the peak")
        return self._point(
            "run",
            lambda machine: (
                estimate(replace(context, cluster=machine), layout.strategy).iter_time_s
            ),
        )


def table_points(path: str, table: Table, cluster: ClusterSpec) -> Iterator[Point]:
    """A point of every row that the model has a time for; raises InputError for what cannot be."""
    machine, inside = table.machine, cluster.node.num_accelerators
    check_machine(path, machine, cluster)
    if machine.per_node > inside:
        message = f"was measured on {machine.per_node} a node; {cluster.node.name} has {inside}"
        raise InputError.single(path, "# per_node", message)
    lines = table.lines or range(1, len(table.rows) + 1)
    for line, row in zip(lines, table.rows, strict=True):
        reading = Reading(Place(path=path, line=line), row.time_s, cluster)
        point = _row_point(reading, row, machine)
        if point is not None:
            yield point


def work_of(row: Measured) -> FlashAttention:
    """A row of causal attention as the model's kernel: torch's."""
    return attention_work(row.batch, row.heads, row.seq_len, row.head_dim)


def _row_point(reading: Reading, row: Measured, machine: Machine) -> Point | None:
    """None of a copy, which says what the memory moves, of a launch, and of emulated precisions."""
    precision = cast("Precision", row.dtype)
    match row.what:
        case "product" if row.dtype in reading.cluster.accelerator.peak_flops_per_s:
            return reading.product(row.m, row.n, row.k, precision)
        case "attention_forward" | "attention_backward":
            is_backward = row.what == "attention_backward"
            return reading.attention(work_of(row), precision, is_backward=is_backward)
        case "add" | "norm":
            return reading.memory(row.num_bytes)
        case "host_to_device" | "device_to_host":
            return replace(reading, measured=row.bytes_per_s).link()
        case "host_adam":
            return reading.host_adam(row.params, machine.threads, machine.per_node)
        case "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "p2p":
            return reading.collective(row.what, row.num_bytes, row.ranks)
    return None
