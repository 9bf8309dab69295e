"""The machine and the software of a published run: cluster, profile, stated settings, adapters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from planner.catalog.clusters import load_cluster, part_of_node
from planner.errors import InputError
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import (
    capacity_settings,
    captured_fraction,
    runtime_settings,
    with_optimizer,
    with_recompute_modules,
    with_training,
)
from planner.layers.adapter_targets import adapter_params, training_problem
from planner.query.traits import settings_mapping, settings_of
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.spec.training import Mode, Training, read_targets
from planner.spec.traits import FrameworkTraits, Setting
from planner.units import GBIT_PER_S
from tools.validation.records import Hardware, Lora, Record, Runtime

HOST = ("host_cores", "host_memory_bytes", "host_memory_bytes_per_s")
"""Of a node, what a run on a part of it had to itself."""
TRAINABLE_TOLERANCE = 0.001
"""Of a published number of trained parameters, beyond which something else is trained too."""


class CannotEstimateError(Exception):
    """A record cannot be estimated; the message is the reason shown for skipping it."""


@cache
def _node_cluster(num_nodes: int, node: str) -> ClusterSpec:
    return load_cluster(f"{num_nodes}x{node}")


def to_cluster(hardware: Hardware) -> ClusterSpec:
    """Return the cluster a run used: its node type, and as many nodes as its GPUs fill.

    Fewer GPUs than a node holds are a part of one node, whose host the run had to itself.
    Raises CannotEstimateError for hardware that the catalog does not have.
    """
    if hardware.node is None:
        raise CannotEstimateError(f"no catalog entry for {hardware.gpu}")
    if hardware.gpus is None:
        raise CannotEstimateError("number of GPUs not published")
    size = _node_cluster(1, hardware.node).node.num_accelerators
    used = min(hardware.gpus_per_node or size, size)
    num_nodes = -(-hardware.gpus // used)
    cluster = _node_cluster(num_nodes, hardware.node)
    if hardware.gpus < used or used < size:
        local = min(hardware.gpus, used)
        part = part_of_node(cluster.node, local)
        alone = {name: getattr(cluster.node, name) for name in HOST}
        cluster = replace(
            cluster,
            node=replace(part, whole=None, **alone),
            fabric=replace(cluster.fabric, num_accelerators=num_nodes * local),
        )
    if hardware.domain_gpus is not None:
        level = cluster.node.scale_up.within(hardware.domain_gpus)
        cluster = replace(cluster, node=replace(cluster.node, scale_up=level))
    if hardware.node_gbit_per_s is not None:
        port = hardware.node_gbit_per_s * GBIT_PER_S / size
        cluster = replace(cluster, fabric=replace(cluster.fabric, bytes_per_s=port))
    return cluster


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Traits of a run, and in words what of them the record states."""

    traits: FrameworkTraits
    notes: tuple[str, ...] = ()


def to_setup(record: Record) -> Setup:
    """Return the traits of a record's framework generation with its stated settings."""
    software, runtime = record.software, record.runtime
    factor = runtime.capacity_factor
    graphs, modules = runtime.cuda_graph or (), record.parallel.recompute_modules
    sections = settings_mapping(tuple(record.traits.items()))
    stated = settings_of(sections, where=record.id, key="traits")
    traits = load_traits(software.framework, software.profile, stated)
    if software.optimizer:
        traits = with_optimizer(traits, software.optimizer)
    settings = runtime_settings(
        graphs=graphs,
        dispatcher=runtime.dispatcher,
        expert_overlap=runtime.expert_overlap,
        tp_overlap=runtime.tp_overlap,
    )
    if factor:
        settings += capacity_settings(factor, pads=runtime.pads_to_capacity)
    if runtime.launch_blocking:
        settings += (("kernels.waits_for_kernels", True),)
    # Attention and head: fp8_dot_product_attention and fp8_output_proj of Megatron-Bridge.
    layers = tuple(each for each in ("experts", "linears") if each != runtime.products_in_16_bit)
    settings += (("kernels.in_8_bit", (*layers, *runtime.in_8_bit)),)
    notes = [f"{path} {value} as stated" for path, value in stated]
    if software.is_nearest:
        notes.append(f"{record.framework} priced as the nearest family, {software.framework}")
    if fraction := runtime.layers_in_16_bit_fraction:
        settings += (("kernels.layers_in_16_bit_fraction", fraction),)
    if padding := runtime.vocab_padding:
        notes.append(f"vocabulary padded to a multiple of {padding} as stated")
        settings += (("support.vocab_padding", padding),)
    if modules:
        notes.append(f"recomputed modules {', '.join(modules)} as stated")
        traits = with_recompute_modules(traits, modules)
    if captured := captured_fraction(graphs):
        notes.append(f"CUDA graphs replay {captured:.0%} of a mixture's launches as stated")
    notes += _runtime_notes(runtime)
    return Setup(traits=_with_settings(traits, settings), notes=tuple(notes))


def _with_settings(traits: FrameworkTraits, settings: Sequence[Setting]) -> FrameworkTraits:
    """The traits with settings laid over them."""
    for path, value in settings:
        section, _, name = path.partition(".")
        part = replace(getattr(traits, section), **{name: value})
        traits = replace(traits, **{section: part})
    return traits


def _runtime_notes(runtime: Runtime) -> list[str]:
    """What :func:`planner.frameworks.settings.runtime_settings` took from the record, in words."""
    said = {
        "the host waits for every kernel": runtime.launch_blocking,
        "asynchronous tensor parallelism": runtime.tp_overlap,
        f"{runtime.products_in_16_bit} in 16 bits": runtime.products_in_16_bit,
        f"{runtime.layers_in_16_bit_fraction} of the layers in 16 bits": (
            runtime.layers_in_16_bit_fraction
        ),
        "expert all-to-all beside another micro-batch": runtime.expert_overlap,
        f"expert dispatcher {runtime.dispatcher}": runtime.dispatcher,
        f"experts with a capacity factor of {runtime.capacity_factor}": runtime.capacity_factor,
    }
    return [f"{words} as stated" for words, is_stated in said.items() if is_stated]


def to_training(lora: Lora) -> Training:
    """What a record says is trained; CannotEstimateError where that is not modelled.

    Several adapters, of which every token takes one, count as one that is as large as all.
    """
    if lora.quantized_base_bits == 8:
        raise CannotEstimateError("a base of 8 bits is not modelled")
    if lora.rank is None:
        raise CannotEstimateError("rank of the adapters not published")
    if not lora.target_modules:
        raise CannotEstimateError("targets of the adapters not published")
    try:
        targets = read_targets(",".join((*lora.target_modules, *(lora.modules_to_save or ()))))
    except ValueError as error:
        raise CannotEstimateError(f"adapters of other modules: {error}") from None
    mode: Mode = "qlora" if lora.quantized_base_bits == 4 else "lora"
    return Training(
        mode=mode, rank=lora.rank, targets=targets, num_adapters=lora.concurrent_adapters or 1
    )


def with_adapters(traits: FrameworkTraits, record: Record, model: ModelSpec) -> FrameworkTraits:
    """The traits where a record's adapters are trained; as they are where it has none."""
    if record.lora is None:
        return traits
    training = to_training(record.lora)
    _, problem = training_problem(model, training, traits.kernels)
    if problem:
        raise CannotEstimateError(problem)
    if stated := record.lora.trainable_params:
        trained = adapter_params(model, training, traits.kernels)
        if abs(trained / stated - 1.0) > TRAINABLE_TOLERANCE:
            text = f"{stated:,.0f} trained parameters are not those of adapters, {trained:,}"
            raise CannotEstimateError(text)
    try:
        return with_training(traits, training)
    except InputError as error:
        raise CannotEstimateError(error.problems[0].message) from None
