"""Figures of a question that can be scaled: of the hardware, and of the job and model."""

import math
from collections.abc import Mapping, Sequence
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
        node = replace(context.cluster.node, accelerator=replace(accelerator, gemm=gemm))
        return replace(context, cluster=replace(context.cluster, node=node))

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


def parameters(context: Context) -> list[Parameter]:
    """Every figure that this question has."""
    job, model, node = context.job, context.model, context.cluster.node
    host = [
        Parameter(
            key="host_link_gb_per_s_per_direction",
            title="host link",
            value=node.host_link_bytes_per_s / GB,
            unit="GB/s",
            paths=(f"{NODE}.host_link_bytes_per_s",),
            ends=usual_ranges()["host_link_gb_per_s_per_direction"],
        )
    ]
    if node.host_memory_bytes is not None:
        memory = Parameter(
            key="host_memory_gib",
            title="host memory",
            value=node.host_memory_bytes / GIB,
            unit="GiB",
            paths=(f"{NODE}.host_memory_bytes",),
        )
        host.append(memory)
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
    return [*_of_node(context), *_of_network(context), *host, *of_job]


def _of_node(context: Context) -> list[Parameter]:
    """Return the figures of the accelerator, and of the links between accelerators of a domain."""
    accelerator, inside = context.cluster.accelerator, context.cluster.node.scale_up
    peaks, ends = accelerator.peak_flops_per_s, usual_ranges()
    dtype = next(name for name in FALLBACKS[context.job.precision] if peaks.get(name))
    gemm, sustained_ends = accelerator.gemm, ends[SUSTAINED]
    # Of machines with this part, where they are known to differ.
    if gemm.has_range:
        sustained_ends = (
            gemm.slowest / gemm.sustained_fraction,
            gemm.fastest / gemm.sustained_fraction,
        )
    own = [
        Parameter(
            key="fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops",
            title=f"{dtype} peak",
            value=peaks[dtype] / TERA,
            unit="TFLOP/s",
            paths=(f"{ACCELERATOR}.peak_flops_per_s.{dtype}",),
        ),
        Parameter(
            key=SUSTAINED,
            title="products' share of it",
            value=gemm.sustained_fraction,
            paths=(f"{ACCELERATOR}.gemm.sustained_fraction",),
            ends=sustained_ends,
            most=1.0,
        ),
        Parameter(
            key="hbm_gb_per_s",
            title="HBM bandwidth",
            value=accelerator.hbm_bytes_per_s / GB,
            unit="GB/s",
            paths=(f"{ACCELERATOR}.hbm_bytes_per_s",),
            ends=ends["hbm_gb_per_s"],
        ),
        Parameter(
            key="hbm_gib",
            title="HBM capacity",
            value=accelerator.hbm_bytes / GIB,
            unit="GiB",
            paths=(f"{ACCELERATOR}.hbm_bytes",),
        ),
    ]
    if context.cluster.domain.num_accelerators == 1:
        return own
    # Measured collectives of the domain are scaled with its rate, as in other nodes.
    measured = f"{ACCELERATOR}.collectives.*.*.busbw_bytes_per_s.*"
    return [
        *own,
        Parameter(
            key="scale_up_gb_per_s_per_direction",
            title=inside.name,
            value=inside.bytes_per_s / GB,
            unit="GB/s",
            paths=(f"{NODE}.scale_up.bytes_per_s", measured),
            ends=ends["scale_up_gb_per_s_per_direction"],
        ),
        Parameter(
            key="scale_up_latency_us",
            title=f"{inside.name} latency",
            value=inside.latency_s / US,
            unit="µs",
            paths=(f"{NODE}.scale_up.latency_s",),
            ends=ends["scale_up_latency_us"],
            is_cost=True,
        ),
    ]


def _of_network(context: Context) -> list[Parameter]:
    """Return the figures of the network between nodes, with every level of it."""
    cluster, ends = context.cluster, usual_ranges()
    if cluster.num_accelerators <= cluster.domain.num_accelerators:
        return []
    levels = ("cluster.fabric", "cluster.inner_fabric.*")
    return [
        Parameter(
            key="nic_gbit_per_s",
            title="network, each GPU",
            value=cluster.node.nic_bytes_per_s / cluster.node.num_accelerators / GB,
            unit="GB/s",
            paths=(f"{NODE}.nic_bytes_per_s", *(f"{level}.bytes_per_s" for level in levels)),
            ends=ends["nic_gbit_per_s"],
        ),
        Parameter(
            key="fabric_latency_us",
            title="network latency",
            value=cluster.fabric.latency_s / US,
            unit="µs",
            paths=tuple(f"{level}.latency_s" for level in levels),
            ends=ends["fabric_latency_us"],
            is_cost=True,
        ),
    ]
