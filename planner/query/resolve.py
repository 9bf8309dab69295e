"""From a question to what is searched: contexts, the space, the aim, and what was assumed.

The steps go one way: model, cluster, software, job, narrowing, aim, then what frameworks and
formats of files cannot say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.catalog.models import load_model_details
from planner.cost.context import Context
from planner.cost.module_sets import module_sets
from planner.formats.format import Format
from planner.notes import Note, NoteKind, Problems
from planner.query.goal import read_aim
from planner.query.job import read_job, read_precision
from planner.query.like import started
from planner.query.narrowing import (
    check_placement,
    expressible,
    narrowing_of,
    offering,
    placed,
)
from planner.query.objectives import FASTEST, Aim
from planner.query.places import with_host_memory
from planner.query.query import Query
from planner.query.software import (
    format_meant,
    mtp_layers_in,
    note_idle_modules,
    read_frameworks,
    read_schedules,
    read_training,
    training_in,
    training_so,
    unsupported_hardware,
)
from planner.search.space.narrow import Narrowing
from planner.spec.cluster import AcceleratorSpec, ClusterSpec
from planner.spec.job import JobSpec
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits
from planner.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A question that was read: what to search, for what, and what was assumed."""

    query: Query
    contexts: tuple[Context, ...]
    narrowing: Narrowing
    aim: Aim = FASTEST
    notes: tuple[Note, ...] = ()
    time_limit_s: float | None = None
    keeps_margin: bool = False  # the user chose the margin, so no plan inside it is taken
    fmt: Format | None = None  # the format of files whose space it is, where one was asked for

    def with_batch(self, batch: int, text: str) -> "Resolved":
        """Return the same with another global batch, in sequences, and a note that says so."""
        note = Note(kind=NoteKind.default, text=text, subject="global_batch")
        return replace(
            self.without_note("global_batch"),
            contexts=tuple(
                replace(each, job=replace(each.job, global_batch=batch)) for each in self.contexts
            ),
            notes=(*self.without_note("global_batch").notes, note),
        )

    def without_note(self, subject: str) -> "Resolved":
        """Return the same without what was noted on an option."""
        return replace(self, notes=tuple(each for each in self.notes if each.subject != subject))


def resolve(
    query: Query,
    *,
    fmt: Format | None = None,
    num_gpus: int | None = None,
    problems: Problems | None = None,
) -> Resolved:
    """Read a question; raises one InputError with every problem.

    ``fmt`` is the format of files asked for, whose framework and space it then is. ``num_gpus``
    takes so many accelerators of the cluster's node, whatever count it states. ``problems`` may
    hold those of other options, to be reported with these.
    """
    problems = problems or Problems()
    asked = query
    query = problems.read(lambda: started(query)) or query
    problems.found += query.problems
    model = _model(query.model, problems)
    cluster = _cluster(query, num_gpus, problems)
    fmt = fmt or format_meant(query.get("framework"))
    frameworks = read_frameworks(query, fmt, problems)
    precision = read_precision(query.get("precision"), cluster, problems)
    frameworks = training_in(precision, frameworks, problems)
    training = read_training(query, problems)
    frameworks = training_so(training, frameworks, model, precision, problems)
    frameworks, ahead = mtp_layers_in(query.get("mtp_layers"), model, frameworks, problems)
    schedules = read_schedules(query.get("schedule"), frameworks, problems)
    job = read_job(query, model, cluster, precision, training, problems)
    narrowing = narrowing_of(query, problems)
    aim = read_aim(query, cluster, problems)
    check_placement(query.get("placement"), frameworks, problems)
    problems.finish()
    assert model is not None
    assert cluster is not None
    assert job is not None
    note_hardware(cluster, problems)
    unsupported_hardware(frameworks, cluster, problems)
    contexts = _contexts(model, cluster, job, frameworks, ahead, schedules)
    if query.get("recompute_modules") is not None:
        note_idle_modules(frameworks, model, problems)
    else:
        contexts = tuple(replace(each, module_sets=module_sets(each)) for each in contexts)
    contexts = expressible(contexts, fmt, problems)
    contexts = offering(contexts, narrowing, problems)
    contexts = placed(contexts, query.get("placement"))
    is_given = query.get("margin") is not None
    _note_margins(contexts, problems, is_given=is_given)
    return Resolved(
        query=asked,
        contexts=contexts,
        narrowing=narrowing,
        aim=aim,
        notes=tuple(dict.fromkeys(problems.notes)),
        time_limit_s=query.get("time_limit"),
        keeps_margin=is_given,
        fmt=fmt,
    )


def _model(name: str, problems: Problems) -> ModelSpec | None:
    details = problems.read(lambda: load_model_details(name))
    if details is None:
        return None
    for note in details.notes:
        problems.note(NoteKind.default, f"{details.spec.name}: {note}", "model")
    return details.spec


def _cluster(query: Query, num_gpus: int | None, problems: Problems) -> ClusterSpec | None:
    def read() -> ClusterSpec:
        place = with_host_memory(query.cluster, query.get("host_memory"), problems)
        return load_cluster_of(place, num_gpus) if num_gpus else load_cluster(place)

    return problems.read(read)


def _contexts(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    frameworks: Sequence[FrameworkTraits],
    ahead: Sequence[int],
    schedules: Sequence[str],
) -> tuple[Context, ...]:
    """A context of each framework, with its layers of multi-token prediction."""
    return tuple(
        Context(
            model=model,
            job=replace(job, mtp_layers=mtp_layers),
            cluster=cluster,
            traits=traits,
            margin_fraction=traits.memory_uncertainty_fraction,
            schedules=tuple(name for name in schedules if name in traits.support.schedules),
            placements=traits.support.placements,
            weighs_evidence=True,
        )
        for traits, mtp_layers in zip(frameworks, ahead, strict=True)
    )


def note_hardware(cluster: ClusterSpec, problems: Problems) -> None:
    """Note what was filled in about the hardware."""
    accelerator, node = cluster.accelerator, cluster.node
    problems.notes += cluster.assumptions
    if node.host_memory_bytes and node.host_memory_note:
        text = (
            f"{format_bytes(node.host_memory_bytes)} of host memory per node: "
            f"{node.host_memory_note}; --host-memory replaces it"
        )
        problems.note(NoteKind.default, text, "host_memory")
    if accelerator.gemm.has_range:
        problems.note(NoteKind.default, products_note(accelerator), "cluster")
    guessed = len(accelerator.assumptions) + len(node.assumptions)
    if guessed:
        text = (
            f"{guessed} figures of {accelerator.name} and {node.name} have no source; "
            "`planner show hardware` marks them assumed"
        )
        problems.note(NoteKind.default, text, "cluster")


def products_note(accelerator: AcceleratorSpec) -> str:
    """Return what an accelerator's machines differ in, and where a user states his own."""
    gemm = accelerator.gemm
    return (
        f"matrix products on {accelerator.name} sustain {gemm.sustained_fraction:.0%} of peak; "
        f"published machines differ, from {gemm.slowest:.0%} to {gemm.fastest:.0%}, and ranges of "
        "time hold them all; gemm_sustained_fraction in a cluster file states yours"
    )


def _note_margins(contexts: Sequence[Context], problems: Problems, *, is_given: bool) -> None:
    """Note how much of HBM a search leaves free, and why."""
    measured = "how far peaks were off on published runs; --margin changes it"
    why = "--margin" if is_given else measured
    for context in contexts:
        if context.margin_fraction:
            free = f"{context.margin_fraction:.1%} of HBM left free ({why})"
            problems.note(NoteKind.margin, f"{context.traits.name}: {free}", "margin")
