"""Turns command-line arguments into contexts, collecting every problem before it complains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from planner.catalog.clusters import (
    load_cluster,
    load_cluster_of,
    read_host_memory,
    split_host_memory,
)
from planner.catalog.hardware import is_path
from planner.catalog.machine_names import meant_machine
from planner.catalog.models import given_path, load_model_details, meant_name
from planner.cli.batch import ADAPTER_BATCH_TOKENS, DEFAULT_BATCH_TOKENS, read_global_batch
from planner.cli.collector import Collector
from planner.cli.software import (
    idle_notes,
    mtp_layers_in,
    read_frameworks,
    read_schedules,
    training_in,
    unsupported_hardware,
)
from planner.cli.training import (
    ALL_WEIGHTS,
    TrainingOptions,
    read_training,
    training_so,
    usual_framework,
)
from planner.cli.words import meant_word
from planner.cost.context import Context
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.cost.module_sets import module_sets
from planner.errors import InputError
from planner.frameworks.optimizers import ADAM
from planner.frameworks.registry import CURRENT
from planner.limits import MAX_SEQ_LEN, brief
from planner.spec.cluster import AcceleratorSpec, ClusterSpec
from planner.spec.documents import Documents, read_documents
from planner.spec.job import (
    MAX_IMBALANCE,
    USUAL_IMBALANCE_FRACTION,
    USUAL_SEQ_LEN,
    WHOLE,
    JobSpec,
    Precision,
    usual_seq_len,
)
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits
from planner.units import GIB, format_bytes

ANY_PLACEMENT = "any"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Contexts to search, and the defaults that were assumed."""

    contexts: tuple[Context, ...]
    notes: tuple[str, ...]


def _precision(
    collector: Collector, text: str | None, cluster: ClusterSpec | None, notes: list[str]
) -> Precision:
    """The precision given, or the usual one of the accelerator."""
    known = get_args(Precision)
    if text is None:
        usual = usual_precision(cluster.accelerator) if cluster else "bf16"
        if cluster and usual != "bf16":
            notes.append(f"{usual} (default: {cluster.accelerator.name} does not compute in bf16)")
        return usual
    text = meant_word("--precision", text, known, notes)
    if text not in known:
        collector.add("--precision", f"unknown precision {text!r}; allowed are {', '.join(known)}")
        return "bf16"
    precision: Precision = text  # type: ignore[assignment]
    if cluster is not None:
        try:
            peak_flops_per_s(cluster.accelerator, precision)
        except ValueError as error:
            collector.add("--precision", str(error))
    if precision in WHOLE:
        notes.append(f"{precision}: no kernel tables; shares of its peak are those of 16 bits")
    return precision


def _seq_len(
    collector: Collector, given: int | None, model: ModelSpec | None, notes: list[str]
) -> int | None:
    if given is not None and given < 1:
        collector.add("--seq-len", f"must be at least 1; given {given}")
        return None
    if given is not None and given > MAX_SEQ_LEN:
        collector.add("--seq-len", f"must be at most {MAX_SEQ_LEN:,}; given {given}")
        return None
    if model is None:
        return given
    if given is None:
        seq_len = usual_seq_len(model)
        notes.append(f"sequence length {seq_len} (default: the model's, at most {USUAL_SEQ_LEN})")
        return seq_len
    if given > model.max_seq_len:
        notes.append(
            f"sequence length {given}, beyond the {model.max_seq_len} {model.name} was made for"
        )
    return given


def check_imbalance(collector: Collector, percent: float | None) -> None:
    """Note an imbalance that cannot be."""
    if percent is not None and not 0.0 <= percent <= 100.0 * MAX_IMBALANCE:
        collector.add(
            "--imbalance", f"must be from 0 to {100.0 * MAX_IMBALANCE:g} percent; given {percent:g}"
        )


def _imbalance(
    collector: Collector, percent: float | None, model: ModelSpec | None, notes: list[str]
) -> float:
    """Fraction of tokens beyond the mean on the busiest rank of experts; 0 for dense models."""
    check_imbalance(collector, percent)
    if model is None or model.moe is None:
        if percent is not None and model is not None:
            collector.add("--imbalance", f"{model.name} has no experts")
        return 0.0
    if percent is not None:
        return percent / 100.0
    notes.append(
        f"the busiest rank of experts gets {USUAL_IMBALANCE_FRACTION:.0%} more tokens than the "
        "mean (assumed; --imbalance changes it)"
    )
    return USUAL_IMBALANCE_FRACTION


def _documents(
    collector: Collector, text: str | None, seq_len: int | None, notes: list[str]
) -> Documents | None:
    """The documents that ``--documents`` says, of at most a sequence."""
    if text is None or seq_len is None:
        return None
    try:
        found = read_documents(text, seq_len)
    except ValueError as error:
        collector.add("--documents", str(error))
        return None
    notes.append(found.note)
    return found


def _assumptions(cluster: ClusterSpec) -> list[str]:
    """What was filled in about the hardware."""
    accelerator = cluster.accelerator
    notes = list(cluster.assumptions)
    node = cluster.node
    if node.host_memory_bytes and node.host_memory_note:
        notes.append(
            f"{format_bytes(node.host_memory_bytes)} of host memory per node: "
            f"{node.host_memory_note}; --host-memory replaces it"
        )
    if accelerator.gemm.has_range:
        notes.append(products_note(accelerator))
    guessed = len(accelerator.assumptions) + len(cluster.node.assumptions)
    if guessed:
        notes.append(
            f"{guessed} figures of {accelerator.name} and {cluster.node.name} have no source; "
            "`planner hardware` marks them assumed"
        )
    return notes


def products_note(accelerator: AcceleratorSpec) -> str:
    """What an accelerator's machines differ in, and where a user states his own."""
    gemm = accelerator.gemm
    return (
        f"matrix products on {accelerator.name} sustain {gemm.sustained_fraction:.0%} of peak; "
        f"published machines differ, from {gemm.slowest:.0%} to {gemm.fastest:.0%}, and ranges of "
        "time hold them all; gemm_sustained_fraction in a cluster file states yours"
    )


def read_layers(text: str | None) -> tuple[int, ...] | None:
    """Layers of every stage from ``10,11,11,10``."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"needs one whole number per stage, such as 10,11,11,10; given {brief(text)}"
        raise InputError.single("command line", "--layers-per-stage", message) from None


def parse_offloaded_layers(text: str) -> int | Literal["all"]:
    """Layers per stage whose activations are offloaded, from ``12`` or ``all``."""
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        message = f"must be all, or a whole number of layers per stage; given {brief(text)}"
        raise ValueError(message) from None


def read_question(
    *,
    model: str,
    cluster: str,
    framework: str | None,
    precision: str | None,
    global_batch: int | None,
    global_batch_tokens: str | None,
    seq_len: int | None,
    tokens: str | None,
    margin_percent: float | None,
    imbalance_percent: float | None = None,
    documents: str | None = None,
    mtp_layers: int | None = None,
    profile: str = CURRENT,
    settings: Sequence[str] = (),
    recompute_modules: str | None = None,
    optimizer: str = ADAM,
    training: TrainingOptions = ALL_WEIGHTS,
    schedules: Sequence[str] | None = None,
    collector: Collector | None = None,
    num_accelerators: int | None = None,
) -> Question:
    """Read all arguments; raises one InputError with every problem found.

    ``collector`` may hold problems of other options, to be reported with these.
    ``num_accelerators`` takes so many of the cluster's node, whatever count it states. Without a
    ``framework`` it is the usual one of what is trained.
    """
    collector, notes = collector or Collector(), list[str]()
    details = collector.read(lambda: load_model_details(model))
    model_spec = details.spec if details else None
    notes += [f"{details.spec.name}: {note}" for note in details.notes] if details else []
    cluster_spec = collector.read(
        lambda: (
            load_cluster_of(cluster, num_accelerators)
            if num_accelerators
            else load_cluster(cluster)
        )
    )
    chosen = read_frameworks(
        collector,
        notes,
        framework=framework or usual_framework(training, notes),
        profile=profile,
        settings=settings,
        optimizer=optimizer,
        recompute_modules=recompute_modules,
        margin_percent=margin_percent,
    )
    kind = _precision(collector, precision, cluster_spec, notes)
    chosen = training_in(collector, chosen, kind, notes)
    trained = read_training(collector, training, notes)
    chosen = training_so(collector, chosen, trained, model_spec, kind, notes)
    chosen, ahead = mtp_layers_in(collector, mtp_layers, model_spec, chosen, notes)
    allowed_schedules = read_schedules(collector, schedules, chosen)
    length = _seq_len(collector, seq_len, model_spec, notes)
    batch = read_global_batch(
        collector,
        notes,
        global_batch,
        global_batch_tokens,
        seq_len=length,
        cluster=cluster_spec,
        usual_tokens=ADAPTER_BATCH_TOKENS if trained.is_frozen else DEFAULT_BATCH_TOKENS,
    )
    total = collector.count("--tokens", tokens)
    if margin_percent is not None and not 0.0 <= margin_percent < 100.0:
        collector.add("--margin", f"must be from 0 to below 100 percent; given {margin_percent}")
    imbalance = _imbalance(collector, imbalance_percent, model_spec, notes)
    lengths = _documents(collector, documents, length, notes)
    collector.finish()
    assert model_spec is not None
    assert cluster_spec is not None
    assert length is not None
    assert batch is not None
    job = JobSpec(
        global_batch=batch,
        seq_len=length,
        precision=kind,
        total_tokens=total,
        imbalance_fraction=imbalance,
        documents=lengths,
    )
    notes += _assumptions(cluster_spec)
    notes += unsupported_hardware(chosen, cluster_spec)
    if recompute_modules is not None:
        notes += idle_notes(chosen, model_spec)
    contexts = [
        _context(model_spec, replace(job, mtp_layers=number), cluster_spec, one, allowed_schedules)
        for one, number in zip(chosen, ahead, strict=True)
    ]
    if recompute_modules is None:
        contexts = [replace(each, module_sets=module_sets(each)) for each in contexts]
    return Question(contexts=tuple(contexts), notes=tuple(notes))


def _context(
    model: ModelSpec,
    job: JobSpec,
    cluster: ClusterSpec,
    traits: FrameworkTraits,
    schedules: Sequence[str],
) -> Context:
    return Context(
        model=model,
        job=job,
        cluster=cluster,
        traits=traits,
        margin_fraction=traits.memory_uncertainty_fraction,
        schedules=tuple(name for name in schedules if name in traits.support.schedules),
        placements=traits.support.placements,
        weighs_evidence=True,
    )


def with_placement(contexts: tuple[Context, ...], given: str | None) -> tuple[Context, ...]:
    """Contexts that search the placement given, all with ``any``; those offering none are left."""
    if given is None:
        return contexts
    offered = [context.traits.support.placements for context in contexts]
    known = sorted({name for names in offered for name in names})
    if given not in (*known, ANY_PLACEMENT):
        message = f"unknown or not offered; given {given!r}, allowed {', '.join(known)}, any"
        raise InputError.single("command line", "--placement", message)
    wanted = known if given == ANY_PLACEMENT else [given]
    return tuple(
        replace(context, placements=tuple(name for name in names if name in wanted))
        for context, names in zip(contexts, offered, strict=True)
        if set(names) & set(wanted)
    )


def batch_notes(notes: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """Notes with the global batch that a layout in whole micro-batches really has."""
    batch = f"global batch {context.job.global_batch} sequences, in whole micro-batches"
    return tuple(batch if note.startswith("global batch") else note for note in notes)


def margin_notes(contexts: tuple[Context, ...], *, given: bool) -> tuple[str, ...]:
    """How much of HBM a search leaves free, and why."""
    why = "--margin" if given else "how far peaks were off on published runs; --margin changes it"
    return tuple(
        f"{context.traits.name}: {context.margin_fraction:.1%} of HBM left free ({why})"
        for context in contexts
        if context.margin_fraction
    )


def model_for_file(argument: str) -> str:
    """Make a model's path absolute so that a saved plan can be read from anywhere.

    A name is the catalog's.
    """
    return meant_name(argument) or str(given_path(argument).resolve())


def argument_for_file(argument: str) -> str:
    """Make a path argument absolute so that a saved plan can be read from anywhere."""
    machine, host_memory_bytes = split_host_memory(argument)
    if not is_path(machine):
        return meant_machine(argument) if host_memory_bytes is None else argument
    return f"{Path(machine).resolve()}{argument[len(str(machine)) :]}"


def with_host_memory(collector: Collector, cluster: str, given: str | None) -> str:
    """A cluster's argument with the host memory that an option gives for its nodes."""
    num_bytes = collector.parsed("--host-memory", given, read_host_memory)
    if num_bytes is None:
        return cluster
    if split_host_memory(cluster)[1] is not None:
        collector.add("--host-memory", f"is given twice: {cluster} states it too")
        return cluster
    as_given = (given or "").replace(" ", "")
    size = as_given if as_given.endswith("B") else f"{num_bytes / GIB:.15g}GiB"
    return f"{cluster}@{size}"


def place_of(cluster: str | None, host_memory: str | None) -> str | None:
    """The same where a file may state the cluster; raises InputError."""
    if host_memory is None:
        return cluster
    collector = Collector()
    if cluster is None:
        collector.add("--host-memory", "needs the cluster whose nodes have it")
    place = with_host_memory(collector, cluster or "", host_memory)
    collector.finish()
    return place
