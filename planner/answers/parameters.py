"""Figures of a question that can be scaled: of the hardware, and of the job and model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from planner.catalog.hardware import usual_ranges
from planner.cost.context import Context
from planner.cost.estimate import with_products
from planner.cost.kernels import FALLBACKS
from planner.units import GB, GIB, TERA, US

NODE, ACCELERATOR = "cluster.node", "cluster.node.accelerator"
DOMAIN, LEVELS = f"{NODE}.scale_up", ("cluster.fabric", "cluster.inner_fabric.*")
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
        return with_products(
            context, sustained_slowest_fraction=None, sustained_fastest_fraction=None
        )

    def factor(self, factor: float) -> float:
        """Return the factor actually applied: counts change in steps of a power of two."""
        if self.is_hardware:
            return min(factor, self.most / self.value) if self.most else factor
        # A change is in about whole eighths, so that it divides well.
        eighth = int(self.value) // 8
        step = 1 << max(0, eighth.bit_length() - 1)
        return max(1, round(self.value * factor / step) * step) / self.value


def scaled(part: Any, path: Sequence[str], factor: float) -> Any:  # noqa: ANN401 - any spec
    """A spec with the numbers at a path so many times as large; those not known stay None."""
    if part is None:
        return None
    if not path:
        return round(part * factor) if isinstance(part, int) else part * factor
    name, *rest = path
    if isinstance(part, Mapping):
        names = list(part) if name == "*" else [name]
        return {**part, **{each: scaled(part[each], rest, factor) for each in names}}
    if isinstance(part, tuple):
        return tuple(scaled(each, rest, factor) for each in part)
    changed = {name: scaled(getattr(part, name), rest, factor)}
    return replace(part, **changed)


class Figure(NamedTuple):
    """A figure of the hardware, whose value stands at the first of its paths."""

    key: str
    title: str
    unit: str  # of UNITS; the less the better where it is a time
    paths: tuple[str, ...]


UNITS = {"GB/s": GB, "GiB": GIB, "µs": US}
FIGURES = (
    Figure("hbm_gb_per_s", "HBM bandwidth", "GB/s", (f"{ACCELERATOR}.hbm_bytes_per_s",)),
    Figure("hbm_gib", "HBM capacity", "GiB", (f"{ACCELERATOR}.hbm_bytes",)),
    Figure(
        "scale_up_gb_per_s_per_direction",
        "{domain}",
        "GB/s",
        # Measured collectives of the domain are scaled with its rate, as in other nodes.
        (f"{DOMAIN}.bytes_per_s", f"{ACCELERATOR}.collectives.*.*.busbw_bytes_per_s.*"),
    ),
    Figure("scale_up_latency_us", "{domain} latency", "µs", (f"{DOMAIN}.latency_s",)),
    Figure(
        "nic_gbit_per_s",
        "network, each GPU",
        "GB/s",
        (f"{NODE}.nic_bytes_per_s", *(f"{level}.bytes_per_s" for level in LEVELS)),
    ),
    Figure(
        "fabric_latency_us",
        "network latency",
        "µs",
        tuple(f"{level}.latency_s" for level in LEVELS),
    ),
    Figure(
        "host_link_gb_per_s_per_direction",
        "host link",
        "GB/s",
        (f"{NODE}.host_link_bytes_per_s",),
    ),
    Figure("host_memory_gib", "host memory", "GiB", (f"{NODE}.host_memory_bytes",)),
)


def parameters(context: Context) -> list[Parameter]:
    """Every figure that this question has."""
    cluster, job, model = context.cluster, context.job, context.model
    inside = cluster.domain.num_accelerators
    absent = (
        *(("scale_up_",) if inside <= 1 else ()),
        *(("nic_", "fabric_") if cluster.num_accelerators <= inside else ()),
    )
    figures = [figure for figure in FIGURES if not figure.key.startswith(absent)]
    hardware = (_of_hardware(context, figure) for figure in figures)
    of_job = [
        _of_job("job.global_batch", "batch", job.global_batch, "sequences"),
        _of_job("job.seq_len", "sequence length", job.seq_len, "tokens"),
    ]
    # Of models that have one kind of layers.
    if not model.num_decoder_layers:
        of_job.append(_of_job("model.num_layers", "layers", model.num_layers, ""))
    return [_peak(context), _sustained(context), *filter(None, hardware), *of_job]


def _of_job(path: str, title: str, value: int, unit: str) -> Parameter:
    return Parameter(
        key=path.partition(".")[2],
        title=title,
        value=value,
        unit=unit,
        paths=(path,),
        is_hardware=False,
    )


def _of_hardware(context: Context, figure: Figure) -> Parameter | None:
    """The figure with its value here; None where that is not known."""
    node = context.cluster.node
    own = attrgetter(figure.paths[0])(context)
    if own is None:
        return None
    # The network of a node serves all its GPUs.
    shared = node.num_accelerators if figure.key == "nic_gbit_per_s" else 1
    return Parameter(
        key=figure.key,
        title=figure.title.format(domain=node.scale_up.name),
        value=own / shared / UNITS[figure.unit],
        unit=figure.unit,
        paths=figure.paths,
        ends=usual_ranges().get(figure.key),
        is_cost=figure.unit == "µs",
    )


def _peak(context: Context) -> Parameter:
    peaks = context.cluster.accelerator.peak_flops_per_s
    dtype = next(name for name in FALLBACKS[context.job.precision] if peaks.get(name))
    return Parameter(
        key="fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops",
        title=f"{dtype} peak",
        value=peaks[dtype] / TERA,
        unit="TFLOP/s",
        paths=(f"{ACCELERATOR}.peak_flops_per_s.{dtype}",),
    )


def _sustained(context: Context) -> Parameter:
    gemm, ends = context.cluster.accelerator.gemm, usual_ranges()[SUSTAINED]
    own = gemm.sustained_fraction
    return Parameter(
        key=SUSTAINED,
        title="GEMM efficiency",
        value=own,
        paths=(f"{ACCELERATOR}.gemm.sustained_fraction",),
        # Of machines with this part, where they are known to differ.
        ends=(gemm.slowest / own, gemm.fastest / own) if gemm.has_range else ends,
        most=1.0,
    )
