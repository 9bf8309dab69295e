"""Reads numbers of GPUs: ``8..65536`` (doubling), ``8,24,64``, or both; clusters of those sizes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from planner.answers.scale import batch_at
from planner.catalog.clusters import load_cluster_of
from planner.cli.batch import DEFAULT_BATCH_TOKENS, batch_of_tokens
from planner.cli.collector import Collector
from planner.cli.inputs import Question
from planner.errors import InputError
from planner.limits import MAX_COUNT_DIGITS, MAX_GPUS, MAX_SIZES, brief
from planner.spec.cluster import ClusterSpec
from planner.units import format_count

WEAK_TOKENS_PER_ACCELERATOR = 65536
"""Of the default batch of weak scaling: the usual 4M tokens on 64 accelerators."""
ALLOWED = "a range such as 8..1024 (doubling) or numbers such as 8,24,64"


def read_sizes(text: str, option: str = "--gpus") -> tuple[int, ...]:
    """Return the sizes in ascending order; the last of a range is always among them."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _count(first, text, option)
        high = _count(last, text, option) if dots else low
        if high < low:
            message = f"a range ascends; given {part.strip()!r}"
            raise InputError.single("command line", option, message)
        sizes.add(high)
        while low < high:
            sizes.add(low)
            low *= 2
    if len(sizes) > MAX_SIZES:
        message = f"at most {MAX_SIZES} sizes; given {len(sizes)}"
        raise InputError.single("command line", option, message)
    return tuple(sorted(sizes))


def _count(part: str, text: str, option: str) -> int:
    part = part.strip()
    if len(part) <= MAX_COUNT_DIGITS and part.isdecimal() and 1 <= int(part) <= MAX_GPUS:
        return int(part)
    message = f"needs {ALLOWED}, of 1 to {MAX_GPUS:,}; given {brief(text)}"
    raise InputError.single("command line", option, message)


def read_clusters(collector: Collector, cluster: str, gpus: str) -> tuple[ClusterSpec, ...]:
    """Return the cluster of every size, or note what is wrong with the first that has none."""
    clusters: list[ClusterSpec] = []
    for size in collector.read(lambda: read_sizes(gpus)) or ():
        sized = collector.read(partial(load_cluster_of, cluster, size))
        if sized is None:
            return ()
        clusters.append(sized)
    return tuple(clusters)


def with_base_batch(
    question: Question, clusters: Sequence[ClusterSpec], *, given: bool
) -> Question:
    """The question with the batch of the fewest GPUs, from which weak scaling grows.

    Not given, it is WEAK_TOKENS_PER_ACCELERATOR on each of them.
    """
    fewest, most = clusters[0].num_accelerators, clusters[-1].num_accelerators
    job = question.contexts[0].job
    default = max(1, round(WEAK_TOKENS_PER_ACCELERATOR * fewest / job.seq_len))
    base = job.global_batch if given else default
    largest = batch_at(most, fewest, base, is_weak=True)
    note = f"global batch from {base} sequences on {fewest:,} GPUs to {largest} on {most:,}"
    return _with_batch(question, base, note)


def with_fixed_batch(question: Question) -> Question:
    """The question with the default batch of DEFAULT_BATCH_TOKENS, whatever the cluster's size."""
    seq_len = question.contexts[0].job.seq_len
    batch = batch_of_tokens(DEFAULT_BATCH_TOKENS, seq_len)
    note = (
        f"global batch {batch} sequences ({format_count(batch * seq_len)} tokens; default at any "
        "number of GPUs)"
    )
    return _with_batch(question, batch, note)


def _with_batch(question: Question, batch: int, note: str) -> Question:
    notes = [kept for kept in question.notes if not kept.startswith("global batch")]
    contexts = tuple(replace(c, job=replace(c.job, global_batch=batch)) for c in question.contexts)
    return Question(contexts=contexts, notes=(*notes, note))
