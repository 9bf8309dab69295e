"""Figures of a question that can be scaled: of the hardware, and of the job and model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from planner.catalog.hardware import usual_ranges
from planner.cost.context import Context
from planner.cost.kernels import FALLBACKS
from planner.spec.cluster import ClusterSpec, GemmEfficiency, LevelSpec
from planner.units import GB, GIB, TERA, US

SHARES = 8  # of batch, length and layers: a change is in whole eighths, so that it divides well
NODE, ACCELERATOR, SCALE_UP = "cluster.node", "cluster.node.accelerator", "cluster.node.scale_up"
Owner = TypeVar("Owner")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One figure: its value here, and how it is another one."""

    key: str
    """As under ``overrides`` of a cluster file, or the option's."""
    title: str
    value: float
    """In ``unit``."""
    unit: str = ""
    changed: Callable[[Context, float], Context]
    """The context whose figure is so many times as large."""
    ends: tuple[float, float] | None = None
    """Factors between which a machine's own value lies; None where it is known."""
    most: float = float("inf")
    """Largest value."""
    is_hardware: bool = True
    is_cost: bool = False
    """The smaller the better, as latencies are."""

    def scaled(self, context: Context, factor: float) -> Context:
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


def parameters(context: Context) -> Iterator[Parameter]:
    """Every figure that this question has."""
    yield from _of_accelerator(context)
    yield from _of_links(context.cluster)
    yield from _of_host(context)
    yield from _of_job(context)


def _with_values(owner: Owner, path: str, **values: object) -> Owner:
    """The owner with other values of the part at a path, such as ``cluster.node``."""
    name, _, rest = path.partition(".")
    if name:
        values = {name: _with_values(getattr(owner, name), rest, **values)}
    return replace(owner, **values)  # type: ignore[type-var]


def _scaling(path: str, name: str) -> Callable[[Context, float], Context]:
    """Scales a figure of the part at a path."""

    def scaled(context: Context, factor: float) -> Context:
        part: Any = context
        for step in path.split("."):
            part = getattr(part, step)
        return _with_values(context, path, **{name: (getattr(part, name) or 0.0) * factor})

    return scaled


def _of_accelerator(context: Context) -> Iterator[Parameter]:
    accelerator, peaks = context.cluster.accelerator, context.cluster.accelerator.peak_flops_per_s
    dtype = next(name for name in FALLBACKS[context.job.precision] if peaks.get(name))

    def with_peak(given: Context, factor: float) -> Context:
        own = given.cluster.accelerator.peak_flops_per_s
        rates = {**own, dtype: own[dtype] * factor}
        return _with_values(given, ACCELERATOR, peak_flops_per_s=rates)

    yield Parameter(
        key="fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops",
        title=f"{dtype} peak",
        value=peaks[dtype] / TERA,
        unit="TFLOP/s",
        changed=with_peak,
    )
    yield Parameter(
        key="gemm_sustained_fraction",
        title="products' share of it",
        value=accelerator.gemm.sustained_fraction,
        changed=_with_sustained,
        ends=_sustained_ends(accelerator.gemm),
        most=1.0,
    )
    yield Parameter(
        key="hbm_gb_per_s",
        title="HBM bandwidth",
        value=accelerator.hbm_bytes_per_s / GB,
        unit="GB/s",
        changed=_scaling(ACCELERATOR, "hbm_bytes_per_s"),
        ends=usual_ranges()["hbm_gb_per_s"],
    )
    yield Parameter(
        key="hbm_gib",
        title="HBM capacity",
        value=accelerator.hbm_bytes / GIB,
        unit="GiB",
        changed=_scaling(ACCELERATOR, "hbm_bytes"),
    )


def _sustained_ends(gemm: GemmEfficiency) -> tuple[float, float]:
    """Of machines with this part where they are known to differ, else the usual ones."""
    if not gemm.has_range:
        return usual_ranges()["gemm_sustained_fraction"]
    return gemm.slowest / gemm.sustained_fraction, gemm.fastest / gemm.sustained_fraction


def _with_sustained(context: Context, factor: float) -> Context:
    """As a user's own figure, that of other machines falls away."""
    return _with_values(
        context,
        f"{ACCELERATOR}.gemm",
        sustained_fraction=context.cluster.accelerator.gemm.sustained_fraction * factor,
        sustained_slowest_fraction=None,
        sustained_fastest_fraction=None,
    )


def _of_links(cluster: ClusterSpec) -> Iterator[Parameter]:
    ends, inside = usual_ranges(), cluster.node.scale_up
    if cluster.domain.num_accelerators > 1:
        yield Parameter(
            key="scale_up_gb_per_s_per_direction",
            title=inside.name,
            value=inside.bytes_per_s / GB,
            unit="GB/s",
            changed=_with_scale_up,
            ends=ends["scale_up_gb_per_s_per_direction"],
        )
        yield Parameter(
            key="scale_up_latency_us",
            title=f"{inside.name} latency",
            value=inside.latency_s / US,
            unit="µs",
            changed=_scaling(SCALE_UP, "latency_s"),
            ends=ends["scale_up_latency_us"],
            is_cost=True,
        )
    if cluster.num_accelerators > cluster.domain.num_accelerators:
        yield Parameter(
            key="nic_gbit_per_s",
            title="network, each GPU",
            value=cluster.node.nic_bytes_per_s / cluster.node.num_accelerators / GB,
            unit="GB/s",
            changed=_with_network,
            ends=ends["nic_gbit_per_s"],
        )
        yield Parameter(
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
    collectives = {
        kind: tuple(
            replace(fit, busbw_bytes_per_s=tuple(rate * factor for rate in fit.busbw_bytes_per_s))
            for fit in fits
        )
        for kind, fits in context.cluster.accelerator.collectives.items()
    }
    scaled = _scaling(SCALE_UP, "bytes_per_s")(context, factor)
    return _with_values(scaled, ACCELERATOR, collectives=collectives)


def _with_network(context: Context, factor: float) -> Context:
    def faster(level: LevelSpec) -> LevelSpec:
        return replace(level, bytes_per_s=level.bytes_per_s * factor)

    return _with_levels(_scaling(NODE, "nic_bytes_per_s")(context, factor), faster)


def _with_network_latency(context: Context, factor: float) -> Context:
    return _with_levels(context, lambda level: replace(level, latency_s=level.latency_s * factor))


def _with_levels(context: Context, change: Callable[[LevelSpec], LevelSpec]) -> Context:
    """The context with every level of the network between nodes changed."""
    cluster = context.cluster
    inner = tuple(map(change, cluster.inner_fabric))
    cluster = replace(cluster, fabric=change(cluster.fabric), inner_fabric=inner)
    return replace(context, cluster=cluster)


def _of_host(context: Context) -> Iterator[Parameter]:
    node = context.cluster.node
    yield Parameter(
        key="host_link_gb_per_s_per_direction",
        title="host link",
        value=node.host_link_bytes_per_s / GB,
        unit="GB/s",
        changed=_scaling(NODE, "host_link_bytes_per_s"),
        ends=usual_ranges()["host_link_gb_per_s_per_direction"],
    )
    if node.host_memory_bytes is not None:
        yield Parameter(
            key="host_memory_gib",
            title="host memory",
            value=node.host_memory_bytes / GIB,
            unit="GiB",
            changed=_scaling(NODE, "host_memory_bytes"),
        )


def _of_job(context: Context) -> Iterator[Parameter]:
    job, model = context.job, context.model
    counts = [
        ("job", "global_batch", "batch", job.global_batch, "sequences"),
        ("job", "seq_len", "sequence length", job.seq_len, "tokens"),
    ]
    if not model.num_decoder_layers:
        counts.append(("model", "num_layers", "layers", model.num_layers, ""))
    for owner, name, title, value, unit in counts:
        yield Parameter(
            key=name,
            title=title,
            value=value,
            unit=unit,
            changed=_scaling_count(owner, name),
            is_hardware=False,
        )


def _scaling_count(owner: str, name: str) -> Callable[[Context, float], Context]:
    def scaled(context: Context, factor: float) -> Context:
        value = _whole(getattr(getattr(context, owner), name), factor)
        return _with_values(context, owner, **{name: value})

    return scaled


def _whole(value: float, factor: float) -> int:
    """A count near ``value · factor``, in steps of the power of two below an eighth of it now."""
    step = 1 << max(0, (int(value) // SHARES).bit_length() - 1)
    return max(1, round(value * factor / step) * step)
