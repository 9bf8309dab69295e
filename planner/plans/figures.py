"""Figures of a question that can be turned: of the hardware, and of the job and model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.catalog.hardware import usual_ranges
from planner.cost.context import Context
from planner.cost.kernels import FALLBACKS
from planner.spec.cluster import AcceleratorSpec, ClusterSpec, GemmEfficiency, NodeSpec
from planner.units import GB, GIB, TERA, US

Change = Callable[[Context, float], Context]
SHARES = 8
"""Of batch, length and layers a change is in whole eighths, so that it still divides well."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: its value here, and how it is another one."""

    key: str
    """As under ``overrides`` of a cluster file, or the option's."""
    title: str
    value: float
    """In ``unit``."""
    unit: str
    changed: Change
    """The context whose figure is so many times as large."""
    ends: tuple[float, float] | None = None
    """Factors between which a machine's own value lies; None where it is known."""
    most: float = float("inf")
    """Largest value."""
    is_hardware: bool = True
    is_cost: bool = False
    """The smaller the better, as latencies are."""

    def turned(self, context: Context, factor: float) -> Context:
        """The context with the figure so many times as large, at most ``most``."""
        return self.changed(context, self.factor(factor))

    def factor(self, factor: float) -> float:
        """What a factor really is here."""
        if not self.is_hardware:
            return _whole(self.value, factor) / self.value
        return min(factor, self.most / self.value)

    def is_worse(self, factor: float) -> bool:
        """Whether no layout is faster with so much of it, and none fits that did not."""
        return self.is_hardware and (factor > 1.0 if self.is_cost else factor < 1.0)


def figures(context: Context) -> Iterator[Figure]:
    """Every figure that this question has."""
    yield from _of_accelerator(context)
    yield from _of_links(context)
    yield from _of_host(context.cluster.node)
    yield from _of_job(context)


def with_accelerator(context: Context, accelerator: AcceleratorSpec) -> Context:
    """The context with another accelerator in its nodes."""
    return _with_node(context, replace(context.cluster.node, accelerator=accelerator))


def _with_node(context: Context, node: NodeSpec) -> Context:
    return replace(context, cluster=replace(context.cluster, node=node))


def _of_accelerator(context: Context) -> Iterator[Figure]:
    accelerator, peaks = context.cluster.accelerator, context.cluster.accelerator.peak_flops_per_s
    dtype = next(name for name in FALLBACKS[context.job.precision] if peaks.get(name))
    key = "fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops"

    def with_peak(given: Context, factor: float) -> Context:
        own = given.cluster.accelerator
        rates = {**own.peak_flops_per_s, dtype: own.peak_flops_per_s[dtype] * factor}
        return with_accelerator(given, replace(own, peak_flops_per_s=rates))

    yield Figure(
        key=key,
        title=f"{dtype} peak",
        value=peaks[dtype] / TERA,
        unit="TFLOP/s",
        changed=with_peak,
    )
    yield Figure(
        key="gemm_sustained_fraction",
        title="products' share of it",
        value=accelerator.gemm.sustained_fraction,
        unit="",
        changed=_with_sustained,
        ends=_sustained_ends(accelerator.gemm),
        most=1.0,
    )
    yield Figure(
        key="hbm_gb_per_s",
        title="HBM bandwidth",
        value=accelerator.hbm_bytes_per_s / GB,
        unit="GB/s",
        changed=lambda given, factor: with_accelerator(
            given,
            replace(
                given.cluster.accelerator,
                hbm_bytes_per_s=given.cluster.accelerator.hbm_bytes_per_s * factor,
            ),
        ),
        ends=usual_ranges()["hbm_gb_per_s"],
    )
    yield Figure(
        key="hbm_gib",
        title="HBM capacity",
        value=accelerator.hbm_bytes / GIB,
        unit="GiB",
        changed=lambda given, factor: with_accelerator(
            given,
            replace(
                given.cluster.accelerator, hbm_bytes=given.cluster.accelerator.hbm_bytes * factor
            ),
        ),
    )


def _sustained_ends(gemm: GemmEfficiency) -> tuple[float, float]:
    """Of machines with this part where they are known to differ, else the usual ones."""
    if not gemm.has_range:
        return usual_ranges()["gemm_sustained_fraction"]
    return gemm.slowest / gemm.sustained_fraction, gemm.fastest / gemm.sustained_fraction


def _with_sustained(context: Context, factor: float) -> Context:
    """As a user's own figure, that of other machines falls away."""
    own = context.cluster.accelerator
    gemm = replace(
        own.gemm,
        sustained_fraction=own.gemm.sustained_fraction * factor,
        sustained_slowest_fraction=None,
        sustained_fastest_fraction=None,
    )
    return with_accelerator(context, replace(own, gemm=gemm))


def _of_links(context: Context) -> Iterator[Figure]:
    cluster, ends = context.cluster, usual_ranges()
    inside = cluster.node.scale_up
    if cluster.domain.num_accelerators > 1:
        yield Figure(
            key="scale_up_gb_per_s_per_direction",
            title=inside.name,
            value=inside.bytes_per_s / GB,
            unit="GB/s",
            changed=_with_scale_up,
            ends=ends["scale_up_gb_per_s_per_direction"],
        )
        yield Figure(
            key="scale_up_latency_us",
            title=f"{inside.name} latency",
            value=inside.latency_s / US,
            unit="µs",
            changed=_with_scale_up_latency,
            ends=ends["scale_up_latency_us"],
            is_cost=True,
        )
    if cluster.num_accelerators > cluster.domain.num_accelerators:
        num_ports = cluster.node.num_accelerators
        yield Figure(
            key="nic_gbit_per_s",
            title="network, each GPU",
            value=cluster.node.nic_bytes_per_s / num_ports / GB,
            unit="GB/s",
            changed=_with_network,
            ends=ends["nic_gbit_per_s"],
        )
        yield Figure(
            key="fabric_latency_us",
            title="network latency",
            value=cluster.fabric.latency_s / US,
            unit="µs",
            changed=_with_network_latency,
            ends=ends["fabric_latency_us"],
            is_cost=True,
        )


def _with_scale_up(context: Context, factor: float) -> Context:
    """Measured collectives of the domain are scaled with its rate, as in other nodes."""
    node = context.cluster.node
    collectives = {
        kind: tuple(
            replace(fit, busbw_bytes_per_s=tuple(rate * factor for rate in fit.busbw_bytes_per_s))
            for fit in fits
        )
        for kind, fits in node.accelerator.collectives.items()
    }
    return _with_node(
        context,
        replace(
            node,
            accelerator=replace(node.accelerator, collectives=collectives),
            scale_up=replace(node.scale_up, bytes_per_s=node.scale_up.bytes_per_s * factor),
        ),
    )


def _with_scale_up_latency(context: Context, factor: float) -> Context:
    node = context.cluster.node
    level = replace(node.scale_up, latency_s=node.scale_up.latency_s * factor)
    return _with_node(context, replace(node, scale_up=level))


def _with_network(context: Context, factor: float) -> Context:
    cluster = context.cluster
    outer, *inner = (
        replace(level, bytes_per_s=level.bytes_per_s * factor)
        for level in (cluster.fabric, *cluster.inner_fabric)
    )
    node = replace(cluster.node, nic_bytes_per_s=cluster.node.nic_bytes_per_s * factor)
    return _with_cluster(context, replace(cluster, node=node, fabric=outer, inner_fabric=(*inner,)))


def _with_network_latency(context: Context, factor: float) -> Context:
    cluster = context.cluster
    outer, *inner = (
        replace(level, latency_s=level.latency_s * factor)
        for level in (cluster.fabric, *cluster.inner_fabric)
    )
    return _with_cluster(context, replace(cluster, fabric=outer, inner_fabric=(*inner,)))


def _with_cluster(context: Context, cluster: ClusterSpec) -> Context:
    return replace(context, cluster=cluster)


def _of_host(node: NodeSpec) -> Iterator[Figure]:
    yield Figure(
        key="host_link_gb_per_s_per_direction",
        title="host link",
        value=node.host_link_bytes_per_s / GB,
        unit="GB/s",
        changed=lambda given, factor: _with_node(
            given,
            replace(
                given.cluster.node,
                host_link_bytes_per_s=given.cluster.node.host_link_bytes_per_s * factor,
            ),
        ),
        ends=usual_ranges()["host_link_gb_per_s_per_direction"],
    )
    if node.host_memory_bytes is None:
        return
    yield Figure(
        key="host_memory_gib",
        title="host memory",
        value=node.host_memory_bytes / GIB,
        unit="GiB",
        changed=lambda given, factor: _with_node(
            given,
            replace(
                given.cluster.node,
                host_memory_bytes=(given.cluster.node.host_memory_bytes or 0.0) * factor,
            ),
        ),
    )


def _of_job(context: Context) -> Iterator[Figure]:
    job, model = context.job, context.model
    yield Figure(
        key="global_batch",
        title="batch",
        value=job.global_batch,
        unit="sequences",
        changed=lambda given, factor: replace(
            given, job=replace(given.job, global_batch=_whole(given.job.global_batch, factor))
        ),
        is_hardware=False,
    )
    yield Figure(
        key="seq_len",
        title="sequence length",
        value=job.seq_len,
        unit="tokens",
        changed=lambda given, factor: replace(
            given, job=replace(given.job, seq_len=_whole(given.job.seq_len, factor))
        ),
        is_hardware=False,
    )
    if not model.num_decoder_layers:
        yield Figure(
            key="num_layers",
            title="layers",
            value=model.num_layers,
            unit="",
            changed=lambda given, factor: replace(
                given, model=replace(given.model, num_layers=_whole(given.model.num_layers, factor))
            ),
            is_hardware=False,
        )


def _whole(value: float, factor: float) -> int:
    """A count near ``value · factor``, in steps of the power of two below an eighth of it now."""
    step = 1 << max(0, (int(value) // SHARES).bit_length() - 1)
    return max(1, round(value * factor / step) * step)
