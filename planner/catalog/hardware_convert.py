"""Checked hwdb files to base units: the only place where vendors' units are converted."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from planner.catalog.figures import Figure, Figures, Flag, Strict
from planner.catalog.hardware_file import (
    AcceleratorFile,
    AttentionSection,
    CollectivesSection,
    FabricFile,
    GemmSection,
    HardwareFile,
    HostMemoryFile,
    HostProcessorFile,
    NodeFile,
    PcieFile,
    ScaleUpSection,
)
from planner.spec.cluster import (
    AcceleratorSpec,
    AttentionEfficiency,
    Collective,
    CollectiveFit,
    Dtype,
    GemmEfficiency,
    LevelSpec,
    LowPrecisionAttention,
    LowPrecisionGemm,
    NodeSpec,
)
from planner.spec.job import Precision
from planner.units import GB, GBIT_PER_S, GIB, KIB, TERA, US

# By the end of a key: its unit in words, the end of the field in base units, and the factor.
UNITS: Mapping[str, tuple[str, str, float]] = {
    "_gib": ("GiB", "_bytes", GIB),
    "_kib": ("KiB", "_bytes", KIB),
    "_tb": ("TB", "_bytes", TERA),
    "gb_per_s_per_direction": ("GB/s per direction", "bytes_per_s", GB),
    "gb_per_s": ("GB/s", "bytes_per_s", GB),
    "_gbit_per_s": ("Gbit/s", "_bytes_per_s", GBIT_PER_S),
    "_tflops": ("TFLOP/s", "_flops_per_s", TERA),
    "_us": ("µs", "_s", US),
    "_w": ("W", "_w", 1.0),
    "usd_per_hour": ("USD/h", "usd_per_hour", 1.0),
}


def to_accelerator(
    file: AcceleratorFile, name: str, node: NodeFile | None = None
) -> AcceleratorSpec:
    """Convert an accelerator file to base units.

    In a node whose scale-up rate is not the one its collectives were measured at, their
    bandwidths are scaled by the ratio.
    """
    rates: dict[Dtype, float] = {}
    for dtype in get_args(Dtype):
        rate = getattr(file, "fp32_tflops" if dtype == "fp32" else f"{dtype}_dense_tflops")
        if rate:
            rates[dtype] = rate.value * TERA
    flash_attn = file.attention_flash_attn
    flash2 = file.attention_flash2 or file.attention
    return AcceleratorSpec(
        **_in_base_units(file, AcceleratorSpec),
        name=name,
        peak_flops_per_s=rates,
        gemm=_to_gemm(file.gemm),
        attention=_to_attention(file.attention),
        attention_flash2=_to_attention(flash2),
        attention_flash_attn=_to_attention(flash_attn) if flash_attn else None,
        collectives=_to_collectives(file.collectives, collectives_scale(file, node)),
        assumptions=_assumed(file, name),
    )


def _in_base_units(section: Strict, spec: type) -> dict[str, Any]:
    """Words and figures in base units, by the fields of a spec that they are."""
    names = {field.name for field in fields(spec)}
    values: dict[str, Any] = {}
    for key in type(section).model_fields:
        given, name = getattr(section, key), key
        value: Any = given.value if isinstance(given, Figure | Figures | Flag) else given
        for end, (_, base, factor) in UNITS.items():
            if value is not None and key.endswith(end):
                name = key.removesuffix(end) + base
                is_list = isinstance(value, tuple)
                value = tuple(one * factor for one in value) if is_list else value * factor
                break
        if name in names and isinstance(value, str | int | float | tuple):
            values[name] = value
    return values


def _to_gemm(section: GemmSection) -> GemmEfficiency:
    dense = _in_base_units(section, GemmEfficiency)
    offsets = {key: dense[key] for key in ("m0", "n0", "k0", "launch_s")}
    return GemmEfficiency(
        **dense,
        low_precision={
            name: LowPrecisionGemm(**(offsets | _in_base_units(given, LowPrecisionGemm)))
            for name, given in section.low_precision.items()
        },
    )


def _to_attention(section: AttentionSection) -> AttentionEfficiency:
    low: dict[Precision, LowPrecisionAttention] = {
        name: LowPrecisionAttention(**_in_base_units(given, LowPrecisionAttention))
        for name, given in section.low_precision.items()
    }
    return AttentionEfficiency(**_in_base_units(section, AttentionEfficiency), low_precision=low)


def collectives_scale(file: AcceleratorFile, node: NodeFile | None) -> float:
    """Scale-up rate of the node over the rate the collectives were measured at."""
    if file.collectives is None or node is None:
        return 1.0
    measured_at = file.collectives.measured_at_gb_per_s_per_direction.value
    return node.scale_up.gb_per_s_per_direction.value / measured_at


def _to_collectives(
    section: CollectivesSection | None, scale: float
) -> Mapping[Collective, tuple[CollectiveFit, ...]]:
    found: dict[Collective, tuple[CollectiveFit, ...]] = {}
    for collective in get_args(Collective) if section else ():
        fits = []
        for given in getattr(section, collective):
            fit = CollectiveFit(**_in_base_units(given, CollectiveFit))
            rates = tuple(value * scale * GB for value in given.busbw_gb_per_s.value)
            fits.append(replace(fit, busbw_bytes_per_s=rates))
        if fits:
            found[collective] = tuple(fits)
    return found


def to_node(
    file: NodeFile,
    name: str,
    accelerator: AcceleratorSpec,
    scale: float,
    processor: HostProcessorFile,
    host_memory: HostMemoryFile,
    pcie: PcieFile,
) -> NodeSpec:
    """Convert a node file to base units; ``scale`` as from :func:`collectives_scale`.

    What it does not state of its processors is taken from ``processor``, and of its memory from
    ``host_memory``: ``factor · accelerators · HBM``, up to whole steps; of its PCIe from ``pcie``.
    """
    scale_up, package, price = file.scale_up, file.package, file.price
    nics, nic, memory = file.nics, file.nic_gbit_per_s, file.host_memory_gib
    factor, step = host_memory.times_accelerator_memory, host_memory.step_gib.value * GIB
    least = factor.value * file.accelerators_per_node.value * accelerator.hbm_bytes
    assumed = _assumed(file, name)
    if abs(scale - 1.0) >= 0.01:
        text = "collective bandwidths are those measured at another scale-up rate"
        assumed += (f"{name}: {text}, times {scale:.2f}",)
    note = factor.note if memory is None else memory.note if memory.basis == "assumed" else ""
    return NodeSpec(
        **{"host_memory_bytes": math.ceil(least / step) * step}
        | _in_base_units(processor, NodeSpec)
        | _in_base_units(file, NodeSpec)
        | {"nic_bytes_per_s": nics.value * nic.value * GBIT_PER_S if nics and nic else 0.0}
        | {"accelerator": accelerator},
        name=name,
        num_accelerators=file.accelerators_per_node.value,
        scale_up=LevelSpec(
            **_reached(scale_up, pcie) | _in_base_units(scale_up, LevelSpec),
            name=scale_up.kind,
            num_accelerators=scale_up.domain_accelerators.value,
        ),
        package=LevelSpec(
            **_in_base_units(package, LevelSpec),
            name="package",
            topology="fully_connected",
            num_accelerators=package.accelerators.value,
        )
        if package
        else None,
        host_memory_note=note,
        usd_per_hour=price.usd_per_hour.value if price else None,
        price_note=f"{price.provider} {price.instance}, {price.date}" if price else "",
        assumptions=assumed,
    )


def _reached(scale_up: ScaleUpSection, pcie: PcieFile) -> dict[str, Any]:
    """Efficiency of collectives over PCIe, where the node does not state it."""
    if scale_up.efficiency_fraction or not scale_up.peer_to_peer:
        return {}
    if not scale_up.peer_to_peer.value:
        return {"efficiency_fraction": pcie.staged_fraction.value}
    return {"efficiency_fraction": pcie.peer_fraction.value} | _in_base_units(pcie, LevelSpec)


def fabric_levels(
    fabric: FabricFile, name: str, num_nodes: int, node: NodeSpec, port_bytes_per_s: float
) -> tuple[LevelSpec, ...]:
    """Return the levels of a fabric that so many nodes reach, smallest first.

    The first level that holds all of them is the outermost one; levels inside the scale-up domain
    fall away. A fabric without levels is one switch.
    """
    ring, port = fabric.ring_ports, fabric.port_gbit_per_s
    spanning = LevelSpec(
        **_in_base_units(fabric, LevelSpec),
        name=name,
        num_accelerators=num_nodes * node.num_accelerators,
        bytes_per_s=port_bytes_per_s,
        ring_bytes_per_s=ring.value * port.value * GBIT_PER_S if ring and port else math.inf,
    )
    levels: list[LevelSpec] = []
    for section in fabric.levels:
        inside = min(section.num_nodes.value if section.num_nodes else num_nodes, num_nodes)
        if inside * node.num_accelerators < node.scale_up.num_accelerators and inside < num_nodes:
            continue
        own = _in_base_units(section, LevelSpec)
        levels.append(replace(spanning, num_accelerators=inside * node.num_accelerators, **own))
        if inside == num_nodes:
            break
    return tuple(levels) or (spanning,)


def figures_of(section: Strict, path: str = "") -> Iterator[tuple[str, Figure | Figures | Flag]]:
    """Yield the key path and the figure of every figure of a file, in the file's order."""
    for key in type(section).model_fields:
        values = getattr(section, key)
        inner = {"": values}
        if isinstance(values, tuple):
            inner = {f"[{index}]": value for index, value in enumerate(values)}
        elif isinstance(values, dict):
            inner = {f".{name}": value for name, value in values.items()}
        for name, value in inner.items():
            if isinstance(value, Figure | Figures | Flag):
                yield f"{path}{key}{name}", value
            elif isinstance(value, Strict):
                yield from figures_of(value, f"{path}{key}{name}.")


def _assumed(file: HardwareFile, name: str) -> tuple[str, ...]:
    """Sentences on the assumed figures of a file; figures with the same reason share one."""
    by_reason: dict[str, list[str]] = {}
    for key, figure in figures_of(file):
        if figure.basis == "assumed":
            reason = figure.note or file.sources[figure.source].citation()
            by_reason.setdefault(reason, []).append(key)
    return tuple(
        f"{name}: {', '.join(keys)} assumed: {reason}" for reason, keys in by_reason.items()
    )
