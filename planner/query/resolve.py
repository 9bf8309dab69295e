"""Resolution of a question: the contexts, space and aim to search, and what was assumed.

The steps go one way: model, cluster, software, job, narrowing, aim, then what frameworks and
formats of files cannot say.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from planner.catalog.clusters import (
    load_cluster,
    load_cluster_of,
    read_host_memory,
    split_host_memory,
)
from planner.catalog.hardware import is_path, normalised_machine
from planner.catalog.models import given_path, load_model_details, meant_name
from planner.cost.context import Context
from planner.cost.module_sets import module_sets
from planner.errors import InputError, unknown
from planner.formats.format import Format
from planner.frameworks.settings import usual_mtp_layers
from planner.notes import COMMAND_LINE, Note, NoteKind, Problems
from planner.query.job import read_job, read_precision
from planner.query.like import not_priced_in, with_like
from planner.query.narrowing import expressible, narrowing_of, with_values
from planner.query.objectives import AMOUNTS, FASTEST, OBJECTIVES, WORDS, Aim, JobLimits
from planner.query.query import Query
from planner.query.software import (
    format_meant,
    frameworks_at_precision,
    frameworks_that_train,
    frameworks_with_mtp,
    meant,
    note_idle_modules,
    read_frameworks,
    read_training,
    unsupported_hardware,
)
from planner.search.space.narrow import Narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.spec.strategy import SCHEDULES
from planner.units import GIB, format_bytes, parse_duration, parse_usd


@dataclass(frozen=True, kw_only=True)
class Case:
    """A question: a context per framework, the part of the space, and what was assumed."""

    contexts: tuple[Context, ...]
    narrowing: Narrowing = EVERYTHING
    notes: tuple[Note, ...] = ()
    query: Query | None = None  # as it was asked; None of a saved plan

    @property
    def context(self) -> Context:
        """Context of the first framework."""
        return self.contexts[0]

    def of(self, context: Context) -> Self:
        """The question in one other context."""
        return replace(self, contexts=(context,))

    def with_each(self, change: Callable[[Context], Context]) -> Self:
        """The question with every context changed."""
        return replace(self, contexts=tuple(map(change, self.contexts)))


@dataclass(frozen=True, kw_only=True)
class Resolved(Case):
    """A question that was read, and what its best plans are best at."""

    query: Query
    aim: Aim = FASTEST
    time_limit_s: float | None = None
    keeps_margin: bool = False  # the user chose the margin, so no plan inside it is taken
    fmt: Format | None = None  # the format of files whose space it is, where one was asked for

    def with_batch(self, batch: int, text: str) -> "Resolved":
        """Return the question with another global batch, in sequences, and a note that says so."""
        note = Note(kind=NoteKind.default, text=text, subject="global_batch")
        other = self.without_note("global_batch")
        other = other.with_each(lambda context: context.with_job(global_batch=batch))
        return replace(other, notes=(*other.notes, note))

    def without_note(self, subject: str) -> "Resolved":
        """Return the question without the notes on an option."""
        kept = tuple(each for each in self.notes if each.subject != subject)
        return replace(self, notes=kept)


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
    asked, query = query, problems.read(partial(with_like, query)) or query
    problems.found += query.problems
    problems.notes += problems.read(partial(not_priced_in, asked.get("like"))) or []
    model = _read_model(query.model, problems)
    place = argument_with_memory(query.cluster, query.get("host_memory"), problems)
    load = partial(load_cluster_of, num_accelerators=num_gpus) if num_gpus else load_cluster
    cluster = problems.read(partial(load, place))
    fmt = fmt or format_meant(query.get("framework"))
    frameworks = read_frameworks(query, fmt, model, cluster, problems)
    precision = read_precision(query.get("precision"), cluster, problems)
    frameworks = frameworks_at_precision(precision, frameworks, problems)
    training = read_training(query, problems)
    frameworks = frameworks_that_train(training, frameworks, model, precision, problems)
    given_mtp = query.get("mtp_layers")
    frameworks = frameworks_with_mtp(given_mtp, model, frameworks, problems)
    job = read_job(query, model, cluster, precision, training, problems)
    narrowing = narrowing_of(query, problems)
    aim = read_aim(query, cluster, problems)
    problems.finish()
    assert model is not None
    assert cluster is not None
    assert job is not None
    note_hardware(cluster, problems)
    unsupported_hardware(frameworks, cluster, problems)
    contexts = tuple(
        Context(
            model=model,
            job=replace(
                job, mtp_layers=usual_mtp_layers(model, traits) if given_mtp is None else given_mtp
            ),
            cluster=cluster,
            traits=traits,
            margin_fraction=traits.memory_uncertainty_fraction,
            is_tuned=bool(query.get("tuned")),
            schedules=tuple(name for name in SCHEDULES if name in traits.support.schedules),
            placements=traits.support.placements,
            ranking="simplicity",
        )
        for traits in frameworks
    )
    contexts = _searched(query, contexts, fmt, narrowing, problems)
    return Resolved(
        query=asked,
        contexts=contexts,
        narrowing=narrowing,
        aim=aim,
        notes=tuple(dict.fromkeys(problems.notes)),
        time_limit_s=query.get("time_limit"),
        keeps_margin=query.get("margin") is not None,
        fmt=fmt,
    )


def _read_model(argument: str, problems: Problems) -> ModelSpec | None:
    details = problems.read(partial(load_model_details, argument))
    if details is None:
        return None
    for note in details.notes:
        problems.note(NoteKind.default, f"{details.spec.name}: {note}", "model")
    for part in details.left_out:
        problems.note(NoteKind.given, f"not planned of {details.spec.name}: {part}", "model")
    return details.spec


def _searched(
    query: Query,
    contexts: tuple[Context, ...],
    fmt: Format | None,
    narrowing: Narrowing,
    problems: Problems,
) -> tuple[Context, ...]:
    """Contexts with what a search may choose, limited to what framework and format can express."""
    if query.get("recompute_modules") is not None:
        note_idle_modules(contexts, problems)
    else:
        contexts = tuple(replace(each, module_sets=module_sets(each)) for each in contexts)
    contexts = expressible(contexts, fmt, problems)
    contexts = with_values(contexts, narrowing, problems)
    why = "how far peaks were off on published runs; --margin changes it"
    why = why if query.get("margin") is None else "--margin"
    for context in contexts:
        if context.margin_fraction:
            free = f"{context.margin_fraction:.1%} of HBM left free ({why})"
            problems.note(NoteKind.default, f"{context.traits.name}: {free}", "margin")
    return contexts


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
    gemm = accelerator.gemm
    if gemm.has_range:
        text = (
            f"GEMMs on {accelerator.name} sustain {gemm.sustained_fraction:.0%} of "
            f"peak; published machines differ, from {gemm.slowest:.0%} to {gemm.fastest:.0%}, and "
            "ranges of time hold them all; gemm_sustained_fraction in a cluster file states yours"
        )
        problems.note(NoteKind.default, text, "cluster")
    guessed = len(accelerator.assumptions) + len(node.assumptions)
    if guessed:
        text = (
            f"{guessed} figures of {accelerator.name} and {node.name} have no source; "
            "`planner show hardware` marks them assumed"
        )
        problems.note(NoteKind.default, text, "cluster")


def read_aim(query: Query, cluster: ClusterSpec | None, problems: Problems) -> Aim:
    """Read objective, limits and frontier; prices and power that they need must be known."""
    tokens, deadline, rate, budget = (
        query.get(name) for name in ("tokens", "deadline", "min_tokens_per_s", "budget")
    )
    if tokens is None:
        for option, given in (("--deadline", deadline), ("--budget", budget)):
            if given is not None:
                problems.add(option, "needs --tokens, the tokens of the whole job, such as 15T")
    limits = JobLimits(
        # Wrong tokens are a problem already; one token stands for them.
        total_tokens=None if tokens is None else problems.count("--tokens", tokens) or 1,
        deadline_s=problems.parsed("--deadline", deadline, parse_duration),
        min_tokens_per_s=problems.count("--min-tokens-per-s", rate),
        budget_usd=problems.parsed("--budget", budget, parse_usd),
    )
    name = _objective("--objective", query.get("objective"), problems) or "iteration_s"
    if OBJECTIVES[name].needs_limit and deadline is rate is budget is None:
        options = "--deadline, --min-tokens-per-s or --budget"
        problems.add("--objective", f"{OBJECTIVES[name].word} needs a limit: {options}")
    text = query.get("pareto") or ""
    if query.get("frontier"):
        if text not in ("", "time,gpus"):
            problems.add("--frontier", f"is --pareto time,gpus; given --pareto {text}")
        text = "time,gpus"
    words = [word for word in text.split(",") if word.strip()]
    traded = [_objective("--pareto", word, problems) for word in words]
    known = tuple(dict.fromkeys(one for one in traded if one))
    several = len(known) == len(traded) and 2 <= len(known) <= 3
    if text and None not in traded and not several:
        problems.add(
            "--pareto",
            f"takes two or three different objectives of {', '.join(WORDS)}; given {text!r}",
        )
    aim = Aim(objective=name, limits=limits, pareto=known)
    if cluster is not None:
        problems.read(partial(_check_figures, aim, cluster))
    return aim


def _objective(option: str, word: str, problems: Problems) -> str | None:
    name = meant(option, word, tuple(WORDS), problems)
    if name not in WORDS:
        problems.add(option, unknown("objective", word.strip(), WORDS))
    return WORDS.get(name)


def _check_figures(aim: Aim, cluster: ClusterSpec) -> None:
    """Raise where the price or the power that an objective or a limit needs is not known."""
    if aim.limits.budget_usd is not None and cluster.node.usd_per_hour is None:
        message = (
            f"{cluster.node.name} has no price; give one in its file, or as usd_per_hour under "
            "overrides of a cluster file"
        )
        raise InputError.single(COMMAND_LINE, "--budget", message)
    for option, names in {"--objective": (aim.objective,), "--pareto": aim.pareto}.items():
        for amount in (AMOUNTS[name] for name in names if name in AMOUNTS):
            if amount.of_hours(1.0, cluster) is None:
                message = f"{amount.part(cluster).name} has {amount.lacking}"
                raise InputError.single(COMMAND_LINE, option, message)


def argument_with_memory(cluster: str, given: str | None, problems: Problems) -> str:
    """Return a cluster's argument with the host memory that an option gives for its nodes."""
    num_bytes = problems.parsed("--host-memory", given, read_host_memory)
    if num_bytes is None:
        return cluster
    if split_host_memory(cluster)[1] is not None:
        problems.add("--host-memory", f"is given twice: {cluster} states it too")
        return cluster
    as_given = (given or "").replace(" ", "")
    size = as_given if as_given.endswith("B") else f"{num_bytes / GIB:.15g}GiB"
    return f"{cluster}@{size}"


def place_of(cluster: str | None, host_memory: str | None) -> str | None:
    """Return :func:`argument_with_memory` of a cluster that a file may state; raises InputError."""
    if host_memory is None:
        return cluster
    problems = Problems()
    if cluster is None:
        problems.add("--host-memory", "needs the cluster whose nodes have it")
    place = argument_with_memory(cluster or "", host_memory, problems)
    problems.finish()
    return place


def model_for_file(argument: str) -> str:
    """Return the catalog's name of a model, or the absolute path of a file."""
    return meant_name(argument) or str(given_path(argument).resolve())


def cluster_for_file(argument: str) -> str:
    """Return the catalog's name of a cluster, or the absolute path of a file."""
    machine, host_memory_bytes = split_host_memory(argument)
    if not is_path(machine):
        return normalised_machine(argument) if host_memory_bytes is None else argument
    return f"{Path(machine).resolve()}{argument[len(str(machine)) :]}"
