"""Figures of a question that can be scaled: of the hardware, and of the job and model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.catalog.hardware import usual_ranges
from planner.cost.context import Context
from planner.cost.kernels import FALLBACKS
from planner.units import GB, GIB, TERA, US

NODE, ACCELERATOR = "cluster.node", "cluster.node.accelerator"
SUSTAINED = "gemm_sustained_fraction"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One figure: its value here, and where it stands in a context."""

    key: str
    """Key as under ``overrides`` of a cluster file, or the option's."""
    title: str
    value: float
    """Value in ``unit``."""
    unit: str = ""
    paths: tuple[str, ...]
    """Paths of the numbers that are scaled with it; ``*`` stands for all of a tuple or mapping."""
    ends: tuple[float, float] | None = None
    """Factors between which a machine's own value lies; None where it is known."""
    most: float | None = None
    """Largest value, where there is one."""
    is_hardware: bool = True
    is_cost: bool = False
    """The smaller the better, as latencies are."""

    def scaled(self, context: Context, factor: float) -> Context:
        """The context with the figure so many times as large, at most ``most``."""
        for path in self.paths:
            context = scaled(context, path.split("."), self.factor(factor))
        if self.key != SUSTAINED:
            return context
        # As a user's own figure, that of other machines falls away.
        accelerator = context.cluster.accelerator
        gemm = replace(
            accelerator.gemm, sustained_slowest_fraction=None, sustained_fastest_fraction=None
        )
        return context.with_node(accelerator=replace(accelerator, gemm=gemm))

    def factor(self, factor: float) -> float:
        """Return the factor actually applied: counts change in steps of a power of two."""
        if self.is_hardware:
            return min(factor, self.most / self.value) if self.most else factor
        # A change is in about whole eighths, so that it divides well.
        step = 1 << max(0, (int(self.value) // 8).bit_length() - 1)
        return max(1, round(self.value * factor / step) * step) / self.value

    def is_worse(self, factor: float) -> bool:
        """Return True if this factor makes no layout faster and lets none fit that did not."""
        return self.is_hardware and (factor > 1.0 if self.is_cost else factor < 1.0)


def scaled(part: Any, path: Sequence[str], factor: float, most: float = math.inf) -> Any:  # noqa: ANN401 - any spec
    """A spec with the numbers at a path so many times as large; those not known stay None."""
    if part is None:
        return None
    if not path:
        return round(part * factor) if isinstance(part, int) else min(part * factor, most)
    name, *rest = path
    if isinstance(part, Mapping):
        names = list(part) if name == "*" else [name]
        return {**part, **{each: scaled(part[each], rest, factor, most) for each in names}}
    if isinstance(part, tuple):
        return tuple(scaled(each, rest, factor, most) for each in part)
    return replace(part, **{name: scaled(getattr(part, name), rest, factor, most)})


def _hardware(
    key: str, title: str, value: float, unit: str, *paths: str, is_cost: bool = False
) -> Parameter:
    """A figure of the hardware, with the range in which that of machines is known to lie."""
    ends = usual_ranges().get(key)
    return Parameter(
        key=key, title=title, value=value, unit=unit, paths=paths, ends=ends, is_cost=is_cost
    )


def parameters(context: Context) -> list[Parameter]:
    """Every figure that this question has."""
    job, model = context.job, context.model
    counts = [
        ("job.global_batch", "batch", job.global_batch, "sequences"),
        ("job.seq_len", "sequence length", job.seq_len, "tokens"),
    ]
    # Of models that have one kind of layers.
    if not model.num_decoder_layers:
        counts.append(("model.num_layers", "layers", model.num_layers, ""))
    of_job = [
        Parameter(
            key=path.partition(".")[2],
            title=title,
            value=value,
            unit=unit,
            paths=(path,),
            is_hardware=False,
        )
        for path, title, value, unit in counts
    ]
    hardware = (_of_accelerator, _of_domain, _of_network, _of_host)
    return [figure for figures in hardware for figure in figures(context)] + of_job


def _of_accelerator(context: Context) -> Iterator[Parameter]:
    accelerator = context.cluster.accelerator
    gemm, peaks = accelerator.gemm, accelerator.peak_flops_per_s
    dtype = next(name for name in FALLBACKS[context.job.precision] if peaks.get(name))
    key = "fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops"
    path = f"{ACCELERATOR}.peak_flops_per_s.{dtype}"
    yield _hardware(key, f"{dtype} peak", peaks[dtype] / TERA, "TFLOP/s", path)
    own, title, path = gemm.sustained_fraction, "products' share of it", f"{ACCELERATOR}.gemm"
    share = _hardware(SUSTAINED, title, own, "", f"{path}.sustained_fraction")
    # Of machines with this part, where they are known to differ.
    ends = (gemm.slowest / own, gemm.fastest / own) if gemm.has_range else share.ends
    yield replace(share, ends=ends, most=1.0)
    rate, path = accelerator.hbm_bytes_per_s / GB, f"{ACCELERATOR}.hbm_bytes_per_s"
    yield _hardware("hbm_gb_per_s", "HBM bandwidth", rate, "GB/s", path)
    size, path = accelerator.hbm_bytes / GIB, f"{ACCELERATOR}.hbm_bytes"
    yield _hardware("hbm_gib", "HBM capacity", size, "GiB", path)


def _of_domain(context: Context) -> Iterator[Parameter]:
    """Yield the figures of the links between accelerators of a domain."""
    if context.cluster.domain.num_accelerators == 1:
        return
    inside, path = context.cluster.node.scale_up, f"{NODE}.scale_up"
    # Measured collectives of the domain are scaled with its rate, as in other nodes.
    paths = (f"{path}.bytes_per_s", f"{ACCELERATOR}.collectives.*.*.busbw_bytes_per_s.*")
    key, rate = "scale_up_gb_per_s_per_direction", inside.bytes_per_s / GB
    yield _hardware(key, inside.name, rate, "GB/s", *paths)
    key, title, path = "scale_up_latency_us", f"{inside.name} latency", f"{path}.latency_s"
    yield _hardware(key, title, inside.latency_s / US, "µs", path, is_cost=True)


def _of_network(context: Context) -> Iterator[Parameter]:
    """Yield the figures of the network between nodes, with every level of it."""
    cluster = context.cluster
    if cluster.num_accelerators <= cluster.domain.num_accelerators:
        return
    levels = ("cluster.fabric", "cluster.inner_fabric.*")
    paths = (f"{NODE}.nic_bytes_per_s", *(f"{level}.bytes_per_s" for level in levels))
    rate = cluster.node.nic_bytes_per_s / cluster.node.num_accelerators / GB
    yield _hardware("nic_gbit_per_s", "network, each GPU", rate, "GB/s", *paths)
    latency, paths = cluster.fabric.latency_s / US, tuple(f"{level}.latency_s" for level in levels)
    yield _hardware("fabric_latency_us", "network latency", latency, "µs", *paths, is_cost=True)


def _of_host(context: Context) -> Iterator[Parameter]:
    node = context.cluster.node
    key, rate = "host_link_gb_per_s_per_direction", node.host_link_bytes_per_s / GB
    yield _hardware(key, "host link", rate, "GB/s", f"{NODE}.host_link_bytes_per_s")
    if node.host_memory_bytes is not None:
        size, path = node.host_memory_bytes / GIB, f"{NODE}.host_memory_bytes"
        yield _hardware("host_memory_gib", "host memory", size, "GiB", path)
