"""The job of a question: length, batch, precision, documents; and clusters of several sizes."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import get_args

from planner.catalog.clusters import largest_cluster_of
from planner.cost.kernels import peak_flops_per_s, usual_precision
from planner.errors import InputError, unknown
from planner.limits import MAX_BATCH, MAX_COUNT_DIGITS, MAX_GPUS, MAX_SIZES, brief
from planner.notes import COMMAND_LINE, NoteKind, Problems
from planner.query.query import Query
from planner.query.software import meant
from planner.spec.cluster import ClusterSpec
from planner.spec.job import (
    FULL_PRECISIONS,
    USUAL_IMBALANCE_FRACTION,
    USUAL_SEQ_LEN,
    JobSpec,
    Precision,
    read_documents,
    usual_seq_len,
)
from planner.spec.model import ModelSpec
from planner.spec.training import Training
from planner.units import format_count, parse_batch_tokens

DEFAULT_BATCH_TOKENS = 4 * 2**20
# Fewer leave pipelines empty: Llama 3.1 405B has 1,536 sequences of 8,192 on 1,024 GPUs in
# NVIDIA's recipe, DeepSeek-V3 had 15,360 of 4,096 on 2,048.
TOKENS_PER_ACCELERATOR = {"dense": 8192, "mixture": 32768}
WEAK_TOKENS_PER_ACCELERATOR = 65536  # of the default batch: 4M tokens on 64 accelerators
SMOOTH_BATCH = 64  # batches that are no multiple of about this get a hint
GROWTH = 8  # each cluster over the one before, where the size that is enough is looked for


def read_job(
    query: Query,
    model: ModelSpec | None,
    cluster: ClusterSpec | None,
    precision: Precision,
    training: Training,
    problems: Problems,
) -> JobSpec | None:
    """Return the job, but for layers of multi-token prediction; None where something is wrong."""
    seq_len = _seq_len(query.get("seq_len"), model, problems)
    num_gpus = cluster.num_accelerators if cluster else 0
    kind = "mixture" if model and model.moe else "dense"
    usual_tokens = max(DEFAULT_BATCH_TOKENS, TOKENS_PER_ACCELERATOR[kind] * num_gpus)
    # Adapters are trained on smaller ones: 16 to 128 sequences in published recipes.
    usual_tokens = 2**17 if training.is_frozen else usual_tokens
    batch = _global_batch(query, seq_len, num_gpus, usual_tokens, problems)
    tokens = problems.count("--tokens", query.get("tokens"))
    margin = query.get("margin")
    if margin is not None and not 0.0 <= margin < 100.0:
        problems.add("--margin", f"must be from 0 to below 100 percent; given {margin}")
    imbalance = _imbalance(query.get("imbalance"), model, problems)
    if seq_len is None:
        return None
    documents = problems.parsed(
        "--documents", query.get("documents"), partial(read_documents, longest=seq_len)
    )
    if documents is not None:
        problems.note(NoteKind.default, documents.note, "documents")
    if batch is None:
        return None
    return JobSpec(
        global_batch=batch,
        seq_len=seq_len,
        precision=precision,
        total_tokens=tokens,
        imbalance_fraction=imbalance,
        documents=documents,
    )


def read_precision(text: str | None, cluster: ClusterSpec | None, problems: Problems) -> Precision:
    """Return the precision given, or the usual one of the accelerator."""
    known = get_args(Precision)
    if text is None:
        usual = usual_precision(cluster.accelerator) if cluster else "bf16"
        if cluster and usual != "bf16":
            text = f"{usual} (default: {cluster.accelerator.name} does not compute in bf16)"
            problems.note(NoteKind.default, text, "precision")
        return usual
    text = meant("--precision", text, known, problems)
    if text not in known:
        problems.add("--precision", unknown("precision", text, known))
        return "bf16"
    precision: Precision = text  # type: ignore[assignment]
    if cluster is not None:
        peak = partial(peak_flops_per_s, cluster.accelerator)
        problems.parsed("--precision", precision, peak)
    if precision in FULL_PRECISIONS:
        text = f"{precision}: no kernel tables; shares of its peak are those of 16 bits"
        problems.note(NoteKind.default, text, "precision")
    return precision


def _seq_len(given: int | None, model: ModelSpec | None, problems: Problems) -> int | None:
    if model is None:
        return given
    if given is None:
        usual = usual_seq_len(model)
        text = f"sequence length {usual} (default: the model's, at most {USUAL_SEQ_LEN})"
        problems.note(NoteKind.default, text, "seq_len")
        return usual
    if given > model.max_seq_len:
        text = f"sequence length {given}, beyond the {model.max_seq_len} {model.name} was made for"
        problems.note(NoteKind.default, text, "seq_len")
    return given


def _imbalance(percent: float | None, model: ModelSpec | None, problems: Problems) -> float:
    """Fraction of tokens beyond the mean on the busiest rank of experts; 0 for dense models."""
    if model is None or model.moe is None:
        if percent is not None and model is not None:
            problems.add("--imbalance", f"{model.name} has no experts")
        return 0.0
    if percent is not None:
        return percent / 100.0
    problems.note(
        NoteKind.default,
        f"the busiest rank of experts gets {USUAL_IMBALANCE_FRACTION:.0%} more tokens than the "
        "mean (assumed; --imbalance changes it)",
        "imbalance",
    )
    return USUAL_IMBALANCE_FRACTION


def _global_batch(
    query: Query,
    seq_len: int | None,
    num_gpus: int,
    usual_tokens: int,
    problems: Problems,
) -> int | None:
    """The batch in sequences, as given in sequences or in tokens, or the usual one."""
    sequences, text = query.get("global_batch"), query.get("global_batch_tokens")
    tokens = problems.parsed("--global-batch-tokens", text, parse_batch_tokens)
    if tokens and text and not text.strip().isdecimal():
        said = f"read {text.strip()} tokens a batch as {tokens:,}, as 8k of a length is 8,192"
        problems.note(NoteKind.given, said, "global_batch_tokens")
    if sequences is not None and text is not None:
        problems.add("--global-batch", "contradicts --global-batch-tokens; give one of them")
        return None
    if sequences is not None or seq_len is None:
        return None if sequences is None else int(sequences)
    if text is not None:
        return tokens and _batch_of_given(tokens, seq_len, max(num_gpus, 1), problems)
    batch = batch_of_tokens(usual_tokens, seq_len, num_gpus)
    said = f"{format_count(batch * seq_len)} tokens; default: about {format_count(usual_tokens)}"
    problems.note(NoteKind.default, f"global batch {batch} sequences ({said})", "global_batch")
    return batch


def _batch_of_given(num_tokens: int, seq_len: int, num_gpus: int, problems: Problems) -> int | None:
    batch = round(num_tokens / seq_len)
    if not 1 <= batch <= MAX_BATCH:
        limit = "less than one sequence" if batch < 1 else f"more than {MAX_BATCH:,} sequences"
        problems.add("--global-batch-tokens", f"{num_tokens} tokens are {limit} of {seq_len}")
        return None
    step = smooth_step(num_gpus)
    if batch >= SMOOTH_BATCH and batch % step:
        text = (
            f"hint: global batch {batch} has few layouts on {num_gpus:,} GPUs; "
            f"--global-batch {round(batch / step) * step} has more"
        )
        problems.note(NoteKind.given, text, "global_batch_tokens")
    if batch * seq_len != num_tokens:
        text = (
            f"global batch {batch} sequences: {format_count(batch * seq_len)} tokens, "
            f"the nearest to {format_count(num_tokens)}"
        )
        problems.note(NoteKind.default, text, "global_batch_tokens")
    return batch


def smooth_step(num_gpus: int) -> int:
    """Return what batches for so many GPUs are multiples of: their odd factor by powers of two."""
    odd = _odd(num_gpus)
    return odd << int(math.log2(SMOOTH_BATCH / odd)) if odd <= SMOOTH_BATCH else SMOOTH_BATCH


def _odd(num_gpus: int) -> int:
    return num_gpus // (num_gpus & -num_gpus)


def batch_of_tokens(num_tokens: int, seq_len: int, num_gpus: int = 1) -> int:
    """Return sequences of about so many tokens, at least one, that all GPUs can share.

    A power of two times the odd factor of the number of GPUs where that is small.
    """
    odd = _odd(max(num_gpus, 1))
    odd = odd if odd <= SMOOTH_BATCH else 1
    return odd << max(0, round(math.log2(num_tokens / seq_len / odd)))


def batch_at(num_gpus: int, base_gpus: int, base_batch: int, *, is_weak: bool) -> int:
    """Return the batch of a size: fixed in strong scaling, in proportion to the GPUs in weak."""
    return max(1, round(base_batch * num_gpus / base_gpus)) if is_weak else base_batch


def fixed_batch(seq_len: int) -> tuple[int, str]:
    """Return the default batch whatever the cluster's size, and what to note of it."""
    batch = batch_of_tokens(DEFAULT_BATCH_TOKENS, seq_len)
    tokens = f"{format_count(batch * seq_len)} tokens; default at any number of GPUs"
    return batch, f"global batch {batch} sequences ({tokens})"


def weak_batch(clusters: Sequence[ClusterSpec], seq_len: int, given: int | None) -> tuple[int, str]:
    """Return the batch of the fewest GPUs, as given or usual, and what to note of its growth."""
    fewest, most = clusters[0].num_accelerators, clusters[-1].num_accelerators
    base = given or max(1, round(WEAK_TOKENS_PER_ACCELERATOR * fewest / seq_len))
    largest = batch_at(most, fewest, base, is_weak=True)
    sizes = f"{base} sequences on {fewest:,} GPUs to {largest} on {most:,}"
    return base, f"global batch from {sizes}"


def read_sizes(text: str) -> tuple[int, ...]:
    """Read ``8..65536`` (doubling, the last always there), ``8,24,64`` or both, ascending."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _count(first, text)
        high = _count(last, text) if dots else low
        if high < low:
            message = f"a range ascends; given {part.strip()!r}"
            raise InputError.single(COMMAND_LINE, "--gpus", message)
        sizes.add(high)
        while low < high:
            sizes.add(low)
            low *= 2
    if len(sizes) > MAX_SIZES:
        message = f"at most {MAX_SIZES} sizes; given {len(sizes)}"
        raise InputError.single(COMMAND_LINE, "--gpus", message)
    return tuple(sorted(sizes))


def _count(part: str, text: str) -> int:
    part = part.strip()
    if len(part) <= MAX_COUNT_DIGITS and part.isdecimal() and 1 <= int(part) <= MAX_GPUS:
        return int(part)
    raise InputError.single(
        COMMAND_LINE,
        "--gpus",
        "needs a range such as 8..1024 (doubling) or numbers such as 8,24,64, "
        f"of 1 to {MAX_GPUS:,}; given {brief(text)}",
    )


def read_largest(node: str, max_gpus: int, problems: Problems) -> ClusterSpec | None:
    """Return the largest cluster of whole nodes, or note what is wrong with node or number."""
    if not 1 <= max_gpus <= MAX_GPUS:
        problems.add("--max-gpus", f"must be from 1 to {MAX_GPUS:,}; given {max_gpus}")
        return None
    return problems.read(partial(largest_cluster_of, node, max_gpus))


def growing_clusters(node: str, most: int) -> Iterator[ClusterSpec]:
    """Yield clusters of a node, each GROWTH times the one before, up to the most GPUs."""
    num_gpus = 0
    while num_gpus < most:
        cluster = largest_cluster_of(node, min(most, GROWTH * num_gpus or GROWTH))
        if cluster.num_accelerators <= num_gpus:
            return
        num_gpus = cluster.num_accelerators
        yield cluster
