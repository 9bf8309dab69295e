"""``planner why``, ``size``, ``sensitivity``, ``job``: questions beyond the fastest plan."""

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options
from planner.cli.output import fail
from planner.cli.plan import BATCHES
from planner.errors import NothingFitsError
from planner.notes import Note, NoteKind, Problems
from planner.query.query import Query
from planner.report.document import Shown

if TYPE_CHECKING:
    from planner.answers.scale import Scaling
    from planner.answers.sensitivity import Sensitivity
    from planner.answers.size import Sizing
    from planner.search.search import Progress

DEFAULT_MAX_GPUS = 65536


@options.takes(*options.OF_THE_FASTEST, refused="`why` asks for the fastest plan")
def why(*, query: Query, progress: "Progress") -> Shown:
    """``planner why``: exits with 3 where the layout asked for does not fit."""
    from planner.answers.base import Deadline
    from planner.answers.why import WhyDocument
    from planner.answers.why import why as explain
    from planner.query.narrowing import fixed
    from planner.query.resolve import resolve
    from planner.report.why import print_why

    problems = Problems()
    narrowing = (query.get(name) for name in ("fix", "limit", "where", "forbid"))
    if not (fixed(query) or any(narrowing)):
        text = "needed: what the layout is, such as tp=2; --limit, --where, --forbid will do"
        problems.add("--fix", text)
    resolved = resolve(query, problems=problems)
    answer = explain(
        resolved,
        deadline=Deadline(resolved.time_limit_s),
        progress=progress,
    )
    return Shown(
        kind="why",
        found=answer,
        body=WhyDocument.of,
        screen=print_why,
        exit_code=3 if answer.asked is None else 0,
    )


@options.takes(
    *options.OF_THE_FASTEST,
    "limits",
    refused="`size` asks for the fewest GPUs, or the fastest plan of every size",
    cluster=options.NODE,
)
def size(
    *,
    query: Query,
    max_gpus: Annotated[
        int | None,
        typer.Option(help="Largest cluster to look at [65536; without limits a few times enough]."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="Scaling over 8..65536 (doubling) or 8,24,64 GPUs instead."),
    ] = None,
    weak: Annotated[
        bool, typer.Option("--weak", help="With --gpus: let the batch grow with the GPUs.")
    ] = False,
    verbose: options.Verbose = False,
    progress: "Progress",
) -> Shown:
    """``planner size``: exits with 3 where no size is enough."""
    from planner.query.resolve import argument_with_memory
    from planner.report.size import print_scaling, print_sizing, scale_document, size_document
    from planner.report.sizing_words import no_size

    problems = Problems()
    node = argument_with_memory(query.cluster, query.get("host_memory"), Problems())
    if gpus is None:
        if weak:
            problems.add("--weak", "needs --gpus, the sizes of the scaling curve, such as 8..512")
        sizing = _fewest(query, node, max_gpus, problems, progress)

        def after() -> None:
            if sizing.chosen is None:
                raise no_size(sizing)

        return Shown(
            kind="size",
            found=sizing,
            body=size_document,
            screen=partial(print_sizing, verbose=verbose),
            after=after,
        )
    of_fewest = {
        "--max-gpus": max_gpus,
        "--budget": query.get("budget"),
        "--min-tokens-per-s": query.get("min_tokens_per_s"),
    }
    for option in (each for each, said in of_fewest.items() if said):
        problems.add(option, "not taken with --gpus, the fastest plan of every size")
    curve = _scaling(query, node, gpus, problems, progress, is_weak=weak)
    return Shown(
        kind="scale",
        found=curve,
        body=scale_document,
        screen=partial(print_scaling, verbose=verbose),
    )


def _fewest(
    query: Query, node: str, max_gpus: int | None, problems: Problems, progress: "Progress"
) -> "Sizing":
    from planner.answers.base import Deadline
    from planner.answers.nothing_fits import nothing_fits
    from planner.answers.size import Sizer
    from planner.catalog.clusters import load_cluster_of
    from planner.query.job import fixed_batch, growing_clusters, read_largest
    from planner.query.resolve import resolve

    most = max_gpus if max_gpus is not None else DEFAULT_MAX_GPUS
    largest = read_largest(node, most, problems)
    if query.get("tokens") is None and query.get("min_tokens_per_s") is not None:
        problems.add("--min-tokens-per-s", "needs --tokens, those of the whole job, such as 15T")
    if query.get("budget") and not (query.get("deadline") or query.get("min_tokens_per_s")):
        problems.add("--deadline", "needed (or --min-tokens-per-s), such as 30d; given none")
    resolved = resolve(
        query, num_gpus=largest.num_accelerators if largest else 1, problems=problems
    )
    if all(query.get(name) is None for name in BATCHES):
        resolved = resolved.with_batch(*fixed_batch(resolved.contexts[0].job.seq_len))
    limits, deadline = resolved.aim.limits, Deadline(resolved.time_limit_s)
    sizer = Sizer(
        limits=limits,
        cluster_of=partial(load_cluster_of, node),
        deadline=deadline,
        progress=progress,
    )
    if limits.is_empty and max_gpus is None:
        result = sizer.fewest(resolved, partial(growing_clusters, node, most))
    else:
        result = sizer.sizing(resolved, read_largest(node, max(most, DEFAULT_MAX_GPUS), problems))
    if not result.sizes:
        raise nothing_fits(result.case) if result.is_complete else deadline.nothing_found()
    return result


def _scaling(
    query: Query,
    node: str,
    gpus: str,
    problems: Problems,
    progress: "Progress",
    *,
    is_weak: bool,
) -> "Scaling":
    from planner.answers.base import Deadline
    from planner.answers.scale import nothing_scales, scaling
    from planner.catalog.clusters import load_cluster_of
    from planner.query.job import read_sizes, weak_batch
    from planner.query.resolve import resolve

    sized = partial(load_cluster_of, node)
    clusters = problems.read(lambda: [*map(sized, read_sizes(gpus))]) or []
    resolved = resolve(
        query, num_gpus=clusters[-1].num_accelerators if clusters else 1, problems=problems
    )
    if is_weak:
        job = resolved.contexts[0].job
        given = job.global_batch if any(query.get(name) is not None for name in BATCHES) else None
        resolved = resolved.with_batch(*weak_batch(clusters, job.seq_len, given))
    deadline, texts = Deadline(resolved.time_limit_s), resolved.narrowing.texts
    said = [Note(kind=NoteKind.given, text=f"given: {', '.join(texts)}")] if texts else []
    resolved = replace(resolved, notes=(*said, *resolved.notes))
    result = scaling(
        resolved,
        clusters,
        is_weak=is_weak,
        finish_in_s=resolved.aim.limits.deadline_s,
        deadline=deadline,
        progress=progress,
    )
    if not result.plans:
        is_late = bool(result.late_at)
        raise deadline.nothing_found() if is_late else nothing_scales(resolved.contexts[0], result)
    return result


@options.takes(
    *options.OF_THE_FASTEST,
    refused="`sensitivity` asks for the fastest plan",
    model=options.PLAN_OR_MODEL,
    cluster=options.BESIDE_MODEL,
)
def sensitivity(*, query: Query, verbose: options.Verbose = False, progress: "Progress") -> Shown:
    """``planner sensitivity``: of a question, or of a saved plan."""
    from planner.answers.base import Deadline, search_context
    from planner.answers.sensitivity import SensitivityDocument
    from planner.answers.sensitivity import sensitivity as scaled
    from planner.cli.saved import saved_plan
    from planner.query.resolve import Case, resolve
    from planner.report.sensitivity import print_sensitivity

    plan, keeps_margin, limit_s = None, True, query.get("time_limit")
    if not query.cluster:
        plan, _ = saved_plan(query, ("time_limit",))
        case: Case = Case(contexts=(search_context(plan),))
    else:
        resolved = resolve(query)
        case, keeps_margin = resolved, resolved.keeps_margin
        limit_s = resolved.time_limit_s
    deadline = Deadline(limit_s)
    result = scaled(
        case, keeps_margin=keeps_margin, deadline=deadline, plan=plan, progress=progress
    )
    if result is None and limit_s is not None:
        raise deadline.nothing_found()
    if result is None:
        raise NothingFitsError("nothing fits; `planner plan` on the same says what is missing")
    following = measuring(result, query.cluster)
    return Shown(
        kind="sensitivity",
        found=result,
        body=partial(SensitivityDocument.of, following=following),
        screen=partial(print_sensitivity, verbose=verbose, following=following),
    )


def measuring(result: "Sensitivity", cluster: str) -> str:
    """`planner calibrate` of what is worth measuring on the cluster; empty where nothing is.

    One node measures itself; between nodes stands what nccl-tests printed there.
    """
    from planner.catalog.hardware import is_path
    from planner.frameworks.registry import load_traits
    from planner.spec.cluster import PROCESSOR

    worth = {one.figure.key for one in result.worth_measuring}
    own, vendors = result.best.context.cluster, load_traits("torchtitan").support.vendors
    if not worth or own.accelerator.vendor not in (*vendors, PROCESSOR):
        return ""
    whole = (own.node.whole or own.node).name
    count = own.node.num_accelerators
    place = cluster if is_path(cluster) else f"{own.num_nodes}x{whole}"
    start = ["torchrun", "--no-python", "--nproc-per-node", str(count)] if count > 1 else []
    files = ["all_reduce_perf.txt"] if worth & {"nic_gbit_per_s", "fabric_latency_us"} else []
    words = ["planner", "calibrate", "--measure", place, *files, "--out", "mine.yaml"]
    return shlex.join([*start, *words])


@options.takes(model=options.PLAN_OR_MODEL, cluster=options.BESIDE_MODEL)
def job(
    *,
    query: Query,
    storage: Annotated[
        float | None,
        typer.Option(
            "--storage-gb-per-s",
            "--storage-gbps",
            help="GB (bytes) per second that the file system takes of all nodes together "
            "[0.12 a GPU: Llama 3's].",
        ),
    ] = None,
    node_mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Mean time between failures of one node, such as 200d [264d with 8 GPUs: "
            "Llama 3's].",
        ),
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From a failure until the checkpoint is loaded [10m]."),
    ] = None,
    checkpoint_interval: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Work between checkpoints, such as 1h [Daly's]."),
    ] = None,
    async_checkpoints: Annotated[
        bool,
        typer.Option("--async-checkpoints", help="Only the copy to host memory stops training."),
    ] = False,
    verbose: options.Verbose = False,
    progress: "Progress",
) -> Shown:
    """``planner job``."""
    from planner.answers.job import Job, JobAssumptions
    from planner.cli.saved import best_of, saved_plan
    from planner.report.job import job_document, print_job
    from planner.units import GB, parse_duration

    problems = Problems()
    times = {
        "--node-mtbf": node_mtbf,
        "--restart": restart,
        "--checkpoint-interval": checkpoint_interval,
    }
    node_mtbf_s, restart_s, interval_s = (
        problems.parsed(name, text, parse_duration) for name, text in times.items()
    )
    if storage is not None and not 1e-3 <= storage <= 1e6:
        problems.add("--storage-gb-per-s", f"must be from 0.001 to 1e+06; given {storage:g}")
    terms = JobAssumptions(
        storage_bytes_per_s=None if storage is None else storage * GB,
        node_mtbf_s=node_mtbf_s,
        restart_s=JobAssumptions().restart_s if restart_s is None else restart_s,
        interval_s=interval_s,
        is_async=async_checkpoints,
    )
    notes: tuple[Note, ...] = ()
    tokens = query.get("tokens")
    if not query.cluster:
        total = problems.count("--tokens", tokens)
        plan, _ = saved_plan(query, ("tokens",), problems)
        total = total or plan.context.job.total_tokens
        if total is None:
            fail("--tokens", f"needed: {query.model} was saved without; such as 15T")
        plan = replace(plan, context=plan.context.with_job(total_tokens=total))
    else:
        if tokens is None:
            problems.add("--tokens", "needed: tokens of the whole job, such as 15T")
        found = best_of(query, progress, problems=problems)
        plan, notes = found.plans[0], found.notes
    made = Job(plan=plan, terms=terms)
    made.check()
    return Shown(
        kind="job",
        found=made,
        body=partial(job_document, notes=notes),
        screen=partial(print_job, notes=notes, verbose=verbose),
    )
