"""Communication libraries: ``hwdb/libraries/NAME.yaml`` to profiles."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from planner.catalog.figures import (
    Basis,
    Figure,
    Figures,
    Source,
    Strict,
    WholeFigure,
    validate,
)
from planner.catalog.paths import hwdb_dir
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError
from planner.spec.library import (
    ByNodes,
    ByProtocol,
    Kind,
    LibraryProfile,
    LibraryRule,
    NcclGeneration,
    NcclTuning,
    Protocol,
)
from planner.units import GB, US

Names = Annotated[tuple[str, ...], Field(strict=False)]
Latencies = dict[str, dict[Protocol, float]]
Three = Annotated[tuple[float, float, float], Field(strict=False)]


class RuleSection(Strict):
    """When a library takes an algorithm; see planner.spec.library.LibraryRule."""

    kinds: Annotated[tuple[Kind, ...], Field(strict=False)]
    algorithm: str
    protocol: Literal["", "LL", "LL128", "Simple", "topo"] = ""
    architectures: Names = ()
    max_bytes: int | None = None
    max_bytes_per_rank: int | None = None
    min_nodes: int = 1
    max_nodes: int | None = None
    max_ranks: int | None = None
    power_of_two_ranks: bool = False
    power_of_two_nodes: bool = False
    why: str
    basis: Basis
    source: str


class TuningSection(Strict):
    """The tables of NCCL's tuning model, all from one source."""

    base_latency_us: Latencies
    hardware_latency_us: dict[str, Latencies]
    ll_network_gb_per_s: Three
    net_overhead_us: float
    tree_correction: dict[Protocol, Annotated[tuple[float, ...], Field(strict=False)]]
    basis: Basis
    source: str


class GraphSection(Strict):
    """What NCCL's search finds on a machine, as shares of the datasheet."""

    nvlink_fraction: Figure
    network_fraction: Figure


class GenerationSection(Strict):
    """Constants of one generation; see planner.spec.library.NcclGeneration."""

    min_compute_capability: Figure | None = None
    channels: WholeFigure
    ll_gb_per_s: Figure
    ring_ll128_channel_gb_per_s: Figures
    tree_ll128_channel_gb_per_s: Figures
    tree_channel_gb_per_s: Figures
    nvls_tree_channel_gb_per_s: Figures
    nvls_fraction: Figure | None = None
    nvls_channel_gb_per_s: Figure | None = None
    ring_plateau: Figure


class LibraryFile(Strict):
    """``hwdb/libraries/NAME.yaml``."""

    title: str
    note: str = ""
    vendors: Names
    max_ranks: WholeFigure | None = None
    rules: Annotated[tuple[RuleSection, ...], Field(strict=False)]
    tuning: TuningSection | None = None
    graph: GraphSection | None = None
    generations: dict[str, GenerationSection] = Field(default_factory=dict)
    sources: dict[str, Source]


def list_libraries() -> list[str]:
    """Return the names of the known libraries."""
    return sorted(path.stem for path in (hwdb_dir() / "libraries").glob("*.yaml"))


def load_library(name: str) -> LibraryProfile:
    """Return a library's profile; raises InputError for an unknown name."""
    known = list_libraries()
    if name not in known:
        message = f"unknown library; given {name!r}, allowed are {', '.join(known)}"
        raise InputError.single("command line", "--library", message)
    path = hwdb_dir() / "libraries" / f"{name}.yaml"
    file = validate(LibraryFile, load_yaml(path), str(path))
    return LibraryProfile(
        name=name,
        title=file.title,
        vendors=file.vendors,
        max_ranks=file.max_ranks.value if file.max_ranks else float("inf"),
        rules=tuple(_to_rule(rule) for rule in file.rules),
        tuning=_to_tuning(file),
        note=file.note,
    )


def fitting_libraries(vendor: str) -> list[str]:
    """Return the names of the libraries made for a vendor's accelerators, or for any."""
    return [
        name for name in list_libraries() if vendor in (load_library(name).vendors or (vendor,))
    ]


def usual_library(vendor: str) -> str:
    """Return the library made for a vendor's accelerators; mpi where there is none."""
    for name in list_libraries():
        if vendor in load_library(name).vendors:
            return name
    return "mpi"


def _to_rule(rule: RuleSection) -> LibraryRule:
    def limit(value: int | None) -> float:
        return float("inf") if value is None else float(value)

    return LibraryRule(
        kinds=rule.kinds,
        algorithm=rule.algorithm,
        protocol=rule.protocol,
        architectures=rule.architectures,
        max_bytes=limit(rule.max_bytes),
        max_bytes_per_rank=limit(rule.max_bytes_per_rank),
        min_nodes=rule.min_nodes,
        max_nodes=limit(rule.max_nodes),
        max_ranks=limit(rule.max_ranks),
        power_of_two_ranks=rule.power_of_two_ranks,
        power_of_two_nodes=rule.power_of_two_nodes,
        why=rule.why,
    )


def _to_tuning(file: LibraryFile) -> NcclTuning | None:
    if file.tuning is None or file.graph is None:
        return None
    tables = file.tuning

    def seconds(latencies: Latencies) -> Mapping[str, ByProtocol]:
        return {
            algorithm: {protocol: value * US for protocol, value in row.items()}
            for algorithm, row in latencies.items()
        }

    return NcclTuning(
        generations=tuple(_to_generation(name, part) for name, part in file.generations.items()),
        base_latency_s=seconds(tables.base_latency_us),
        hardware_latency_s={
            link: seconds(latencies) for link, latencies in tables.hardware_latency_us.items()
        },
        ll_network_bytes_per_s=_by_nodes(tables.ll_network_gb_per_s),
        tree_correction=tables.tree_correction,
        net_overhead_s=tables.net_overhead_us * US,
        nvlink_fraction=file.graph.nvlink_fraction.value,
        network_fraction=file.graph.network_fraction.value,
    )


def _value(figure: Figure | None) -> float:
    return 0.0 if figure is None else figure.value


def _by_nodes(values: tuple[float, ...]) -> ByNodes:
    one, two, more = values
    return one * GB, two * GB, more * GB


def _to_generation(name: str, part: GenerationSection) -> NcclGeneration:
    return NcclGeneration(
        name=name,
        min_compute_capability=_value(part.min_compute_capability),
        num_channels=part.channels.value,
        ll_bytes_per_s=part.ll_gb_per_s.value * GB,
        ring_ll128_channel_bytes_per_s=_by_nodes(part.ring_ll128_channel_gb_per_s.value),
        tree_ll128_channel_bytes_per_s=_by_nodes(part.tree_ll128_channel_gb_per_s.value),
        tree_channel_bytes_per_s=_by_nodes(part.tree_channel_gb_per_s.value),
        nvls_tree_channel_bytes_per_s=_by_nodes(part.nvls_tree_channel_gb_per_s.value),
        nvls_fraction=_value(part.nvls_fraction),
        nvls_channel_bytes_per_s=_value(part.nvls_channel_gb_per_s) * GB,
        ring_plateau=part.ring_plateau.value,
    )
