"""The traits of a published run: the profile it names, under the settings it states."""

from dataclasses import dataclass

from planner.frameworks.registry import load_traits
from planner.frameworks.runtime import captured_fraction, runtime_settings, with_settings
from planner.frameworks.settings import with_optimizer, with_recompute_modules
from planner.spec.traits import FrameworkTraits
from planner.validation.hardware import CannotEstimateError
from planner.validation.records import Record, Runtime, Software


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Traits of a run, and in words what of them the record states."""

    traits: FrameworkTraits
    notes: tuple[str, ...] = ()


def software_of(record: Record) -> Software:
    """Return the framework's generation; CannotEstimateError where no profile is of it."""
    if record.software is None:
        raise CannotEstimateError(f"no trait profile for {record.framework}")
    return record.software


def to_setup(record: Record) -> Setup:
    """Return the traits of a record's framework generation with its stated settings."""
    software, runtime = software_of(record), record.runtime
    factor = runtime.capacity_factor
    graphs, modules = runtime.cuda_graph or (), record.parallel.recompute_modules
    traits = load_traits(software.framework, software.profile)
    if software.optimizer:
        traits = with_optimizer(traits, software.optimizer)
    settings = runtime_settings(
        graphs=graphs,
        dispatcher=runtime.dispatcher,
        expert_overlap=runtime.expert_overlap,
        tp_overlap=runtime.tp_overlap,
        launch_blocking=runtime.launch_blocking,
        in_8_bit=runtime.in_8_bit,
        capacity=(factor, runtime.pads_to_capacity) if factor else None,
    )
    notes: list[str] = []
    if kept := runtime.products_in_16_bit:
        notes.append(f"{kept} in 16 bits as stated")
        settings += (("kernels.products_in_16_bit", kept),)
    if padding := runtime.vocab_padding:
        notes.append(f"vocabulary padded to a multiple of {padding} as stated")
        settings += (("support.vocab_padding", padding),)
    if wire := software.gradient_reduce_bytes:
        notes.append(f"gradients reduced in {wire} bytes as stated")
        settings += (("states.gradient_reduce_bytes", float(wire)),)
    if software.attention:
        notes.append(f"{software.attention} attention as stated")
        settings += (("kernels.attention", software.attention),)
    if modules:
        notes.append(f"recomputed modules {', '.join(modules)} as stated")
        traits = with_recompute_modules(traits, modules)
    if captured := captured_fraction(graphs):
        notes.append(f"CUDA graphs replay {captured:.0%} of a mixture's launches as stated")
    notes += _runtime_notes(runtime)
    return Setup(traits=with_settings(traits, settings), notes=tuple(notes))


def _runtime_notes(runtime: Runtime) -> list[str]:
    """What :func:`planner.frameworks.runtime.runtime_settings` took from the record, in words."""
    said = {
        "the host waits for every kernel": runtime.launch_blocking,
        "asynchronous tensor parallelism": runtime.tp_overlap,
        "expert all-to-all beside another micro-batch": runtime.expert_overlap,
        f"expert dispatcher {runtime.dispatcher}": runtime.dispatcher,
        f"experts with a capacity factor of {runtime.capacity_factor}": runtime.capacity_factor,
    }
    return [f"{words} as stated" for words, is_stated in said.items() if is_stated]
