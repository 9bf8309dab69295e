"""The schemas of hwdb files. Keys carry the vendor's unit; every number is a figure."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from functools import partial
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, RootModel, create_model

from planner.catalog.figures import (
    Figure,
    Figures,
    Flag,
    Name,
    Source,
    Strict,
    WholeFigure,
    WholeFigures,
)
from planner.documents.tree import load_own
from planner.expr import Functions, Names, part_of
from planner.spec.cluster import (
    AttentionEfficiency,
    Collective,
    CollectiveFit,
    GemmEfficiency,
    LowPrecisionAttention,
    LowPrecisionGemm,
    Topology,
)

Kind = Literal["accelerators", "nodes", "fabrics", "clusters"]

# Rules between the keys of a kind of file, by the name of its schema and the key.
_RULES = load_own(__package__, "hardware_rules.yaml")
_FUNCTIONS: Functions = {"len": len, "list": list, "prod": prod, "starts": str.startswith}


class HardwareFile(Strict):
    """Fields that all three kinds share: a title, remarks, and the sources of the figures."""

    title: str
    note: str = ""
    sources: dict[str, Source]

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield the rules of ``hardware_rules.yaml`` that are broken: a key, and what is wrong."""
        names = Names(partial(part_of, self), _FUNCTIONS)
        for key, conditions in _RULES.get(type(self).__name__, {}).items():
            yield from ((key, text) for text in names.texts_that_hold(conditions))


# By the end of a spec's field: that of the key of a section, whose unit is smaller.
ENDS = {"bytes_per_s": "gb_per_s", "_bytes": "_kib", "_s": "_us"}


def _section(spec: type, *optional: str, **other: Any) -> Any:  # noqa: ANN401 - types
    """The part of a file that states a spec: its fields as figures, in the units of its keys.

    ``optional``: what may be left out although the spec has no default; ``other``: what is more
    than a figure, with its type and default.
    """
    made: dict[str, Any] = {}
    for each in fields(spec):
        key, kind = each.name, WholeFigure if each.type is int else Figure
        for end, unit in ENDS.items():
            if key.endswith(end):
                key = key.removesuffix(end) + unit
                break
        several: Any = Figures if get_origin(each.type) is tuple else kind
        is_needed = each.default is MISSING and each.name not in optional
        made[key] = (several, ...) if is_needed else (several | None, None)
    return create_model(spec.__name__, __base__=Strict, **(made | other))


# Offsets that are left out are those of 16 bits.
LowPrecision: Any = _section(LowPrecisionGemm, "m0", "n0", "k0", "launch_s")
LowAttention: Any = _section(LowPrecisionAttention)
GemmSection: Any = _section(
    GemmEfficiency,
    low_precision=(dict[Literal["fp8", "fp8_block", "mxfp8", "fp4"], LowPrecision], {}),
)
AttentionSection: Any = _section(
    AttentionEfficiency, low_precision=(dict[Literal["fp8", "mxfp8"], LowAttention], {})
)
CollectiveSection: Any = _section(CollectiveFit, num_ranks=(Annotated[int, Field(gt=1)], ...))


def has_factors(section: AttentionSection) -> bool:
    """Return True if head sizes rise, with one forward and one backward factor each."""
    lists = [section.head_dims, section.forward_head_factors, section.backward_head_factors]
    for each in section.low_precision.values():
        lists += [each.forward_factors, each.backward_factors]
    sizes = section.head_dims.value if section.head_dims else ()
    lengths = {len(each.value) if each else 1 for each in lists}
    return len(lengths) == 1 and list(sizes) == sorted(set(sizes))


def regimes_fault(section: CollectiveSection) -> str:
    """Return what is wrong between the lists of regimes of a collective."""
    regimes = len(section.latency_us.value)
    switches = section.switch_kib.value if section.switch_kib else ()
    if len(section.busbw_gb_per_s.value) != regimes:
        return "latency_us and busbw_gb_per_s must list as many values"
    if len(switches) != regimes - 1:
        needed = f"one value between each two of the {regimes} regimes"
        return f"switch_kib must list {needed}; given {len(switches)}"
    is_rising = all(earlier < later for earlier, later in pairwise(switches))
    return "" if is_rising else "switch_kib must rise"


CollectiveSections = Annotated[tuple[CollectiveSection, ...], Field(strict=False)]


class CollectivesSection(Strict):
    """Measured collectives, and the scale-up rate of the node they were measured on."""

    measured_at_gb_per_s_per_direction: Figure
    all_reduce: CollectiveSections = ()
    all_gather: CollectiveSections = ()
    reduce_scatter: CollectiveSections = ()
    all_to_all: CollectiveSections = ()


class AcceleratorFile(HardwareFile):
    """``hwdb/accelerators/NAME.yaml``: one device as its software sees it."""

    vendor: Name
    architecture: str = ""
    year: int | None = None
    compute_capability: Figure | None = None
    hbm_gib: Figure
    hbm_gb_per_s: Figure
    fp32_tflops: Figure | None = None
    tf32_dense_tflops: Figure | None = None
    fp16_dense_tflops: Figure | None = None
    bf16_dense_tflops: Figure | None = None
    fp8_dense_tflops: Figure | None = None
    fp4_dense_tflops: Figure | None = None
    tdp_w: Figure | None = None
    context_gib: Figure | None = None
    scale_up_gb_per_s_per_direction: Figure | None = None
    nvlinks: WholeFigure | None = None
    memory_bound_fraction: Figure
    usual_node: str | None = None
    kubernetes_resource: str = ""
    skypilot_name: str = ""
    gemm: GemmSection
    attention: AttentionSection
    attention_flash2: AttentionSection | None = None
    attention_flash_attn: AttentionSection | None = None
    collectives: CollectivesSection | None = None

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield broken rules, and what is wrong with lists of factors and of regimes."""
        yield from super().broken()
        for key in ("attention", "attention_flash2", "attention_flash_attn"):
            section = getattr(self, key)
            if section and not has_factors(section):
                message = "head_dims must rise, with one forward and one backward factor each"
                yield f"{key}.head_dims", message
        for collective in get_args(Collective) if self.collectives else ():
            for index, each in enumerate(getattr(self.collectives, collective)):
                if message := regimes_fault(each):
                    yield f"collectives.{collective}.{index}", message


class PackageSection(Strict):
    """Devices of one package, joined closer than the domain; the rate is per device."""

    accelerators: WholeFigure
    gb_per_s_per_direction: Figure
    latency_us: Figure
    efficiency_fraction: Figure


class ScaleUpSection(Strict):
    """The domain of NVLink, xGMI, ICI, PCIe; its rate is per accelerator.

    A torus or mesh gives the members along each dimension, and the rate along one of them. What
    collectives reach of PCIe follows from whether its accelerators reach each other's memory, where
    it is not stated.
    """

    kind: str
    topology: Topology = "switch"
    domain_accelerators: WholeFigure
    dims: WholeFigures | None = None
    gb_per_s_per_direction: Figure
    latency_us: Figure
    efficiency_fraction: Figure | None = None
    peer_to_peer: Flag | None = None
    reduces_in_network: Flag | None = None

    @property
    def num_dims(self) -> int:
        """Dimensions of a torus or mesh; 0 of any other topology."""
        number = self.topology.rpartition("_")[2]
        return int(number[0]) if number in ("2d", "3d") else 0


class PriceSection(Strict):
    """Price of the node, its provider and its date."""

    usd_per_hour: Figure
    provider: str
    instance: str = ""
    date: str


class NodeFile(HardwareFile):
    """``hwdb/nodes/NAME.yaml``: a server; absent figures are unknown."""

    accelerator: str
    accelerators_per_node: WholeFigure
    package: PackageSection | None = None
    scale_up: ScaleUpSection
    nics: WholeFigure | None = None
    nic_gbit_per_s: Figure | None = None
    fabric: str
    host_memory_gib: Figure | None = None
    host_cores: WholeFigure | None = None
    host_memory_gb_per_s: Figure | None = None
    host_core_gb_per_s: Figure | None = None
    launch_factor: Figure | None = None
    host_link_gb_per_s_per_direction: Figure
    accelerators_per_host_slot: WholeFigure | None = None
    nvme_tb: Figure | None = None
    nvme_read_gb_per_s: Figure | None = None
    nvme_write_gb_per_s: Figure | None = None
    power_w: Figure | None = None
    price: PriceSection | None = None


class HostMemoryFile(HardwareFile):
    """``hwdb/host_memory.yaml``: what is assumed of nodes whose file states no host memory."""

    times_accelerator_memory: Figure
    step_gib: Figure


class HostProcessorFile(HardwareFile):
    """``hwdb/host_processor.yaml``: what is assumed of nodes whose file states no processors."""

    host_cores: WholeFigure
    host_memory_gb_per_s: Figure
    host_core_gb_per_s: Figure


class PcieFile(HardwareFile):
    """``hwdb/pcie.yaml``: what collectives reach of a PCIe link."""

    staged_fraction: Figure  # through host memory
    peer_fraction: Figure
    root_fraction: Figure  # of so many accelerators with peer-to-peer access
    root_accelerators: WholeFigure


class RangeSection(Strict):
    """Factors of the catalog's value between which a machine's own lies."""

    lowest_factor: Figure
    highest_factor: Figure


class RangesFile(HardwareFile):
    """``hwdb/ranges.yaml``: how far figures that nobody measured on a machine may be off."""

    ranges: dict[str, RangeSection]  # by key of a cluster file


class DetectionFile(HardwareFile):
    """``hwdb/detection.yaml``: how what tools print is taken."""

    slots: dict[str, Figure]  # GB/s of 16 PCIe lanes by generation
    # Of names of GPUs; they tell none apart.
    brand_words: Annotated[tuple[str, ...], Field(strict=False)]


class FabricLevelSection(Strict):
    """Nodes that reach each other below a layer of switches; the last level holds all nodes."""

    name: Name
    num_nodes: WholeFigure | None = None
    latency_us: Figure | None = None  # that of the fabric where not given
    oversubscription: Figure | None = None
    reduces_in_network: Flag | None = None


class FabricFile(HardwareFile):
    """``hwdb/fabrics/NAME.yaml``: the network between nodes; without levels, one big switch."""

    ports: Literal["infiniband", "ethernet", "efa", "slingshot"] | None = None
    latency_us: Figure
    efficiency_fraction: Figure
    port_gbit_per_s: Figure | None = None
    # Of a node, that one ring uses, however many ranks it has there; none: those of them all.
    ring_ports: Figure | None = None
    kubernetes_resource: str = ""
    levels: Annotated[tuple[FabricLevelSection, ...], Field(strict=False)] = ()

    def broken(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the sizes of the levels."""
        sizes = (each.num_nodes for each in self.levels)
        return level_faults([size.value if size else None for size in sizes])


def level_faults(sizes: Sequence[int | None]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the nodes of a fabric's levels: they grow up to the last one."""
    below, last = 1, len(sizes) - 1
    for index, size in enumerate(sizes):
        message = ""
        if index == last and size is not None:
            message = f"the last level holds all nodes; given {size}, leave it out"
        elif index < last and size is None:
            message = "is missing; only the last level, which holds all nodes, has none"
        elif size is not None and size <= below:
            message = f"must be more than the {below} of the level below; given {size}"
        if message:
            yield f"levels.{index}.num_nodes", message
        below = max(size or 0, below)


class PresetFile(HardwareFile):
    """``hwdb/clusters/NAME.yaml``: a machine as it stands."""

    node: str
    num_nodes: WholeFigure
    fabric: str | None = None


class AliasesFile(RootModel[dict[Kind, dict[str, str]]]):
    """``hwdb/aliases.yaml``: other names of catalog entries, by kind."""
