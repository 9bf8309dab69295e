"""The global batch: given in sequences, in tokens, or by default."""

import math

from planner.cli.collector import Collector
from planner.limits import MAX_BATCH
from planner.spec.cluster import ClusterSpec
from planner.units import format_count, parse_batch_tokens

DEFAULT_BATCH_TOKENS = 4 * 2**20
ADAPTER_BATCH_TOKENS = 2**17
"""Adapters are trained on smaller ones: 16 to 128 sequences in published recipes."""
DEFAULT_TOKENS_PER_ACCELERATOR = 1024
"""Clusters beyond 4,096 accelerators get a larger default batch, as their runs have."""
SMOOTH_BATCH = 64
"""Batches that are no multiple of about this get a hint."""


def read_global_batch(
    collector: Collector,
    notes: list[str],
    sequences: int | None,
    tokens: str | None,
    *,
    seq_len: int | None,
    cluster: ClusterSpec | None,
    usual_tokens: int = DEFAULT_BATCH_TOKENS,
) -> int | None:
    """Return the batch in sequences; None when something was noted as wrong."""
    num_tokens = collector.parsed("--global-batch-tokens", tokens, parse_batch_tokens)
    if num_tokens and tokens and not tokens.strip().isdecimal():
        notes.append(
            f"read {tokens.strip()} tokens a batch as {num_tokens:,}, as 8k of a length is 8,192"
        )
    if sequences is not None and tokens is not None:
        collector.add("--global-batch", "contradicts --global-batch-tokens; give one of them")
        return None
    if sequences is not None:
        return _checked(collector, sequences)
    if seq_len is None:
        return None
    if tokens is not None:
        gpus = cluster.num_accelerators if cluster else 1
        return num_tokens and _from_tokens(collector, notes, num_tokens, seq_len, gpus)
    return _default(notes, seq_len, cluster, usual_tokens)


def _checked(collector: Collector, sequences: int) -> int | None:
    if 1 <= sequences <= MAX_BATCH:
        return sequences
    allowed = "at least 1 sequence" if sequences < 1 else f"at most {MAX_BATCH:,} sequences"
    collector.add("--global-batch", f"must be {allowed}; given {sequences}")
    return None


def _from_tokens(
    collector: Collector, notes: list[str], num_tokens: int, seq_len: int, num_gpus: int
) -> int | None:
    batch = round(num_tokens / seq_len)
    if not 1 <= batch <= MAX_BATCH:
        limit = "less than one sequence" if batch < 1 else f"more than {MAX_BATCH:,} sequences"
        collector.add("--global-batch-tokens", f"{num_tokens} tokens are {limit} of {seq_len}")
        return None
    step = smooth_step(num_gpus)
    if batch >= SMOOTH_BATCH and batch % step:
        rounder = round(batch / step) * step
        notes.append(
            f"hint: global batch {batch} has few layouts on {num_gpus:,} GPUs; "
            f"--global-batch {rounder} has more"
        )
    if batch * seq_len != num_tokens:
        notes.append(
            f"global batch {batch} sequences: {format_count(batch * seq_len)} tokens, "
            f"the nearest to {format_count(num_tokens)}"
        )
    return batch


def smooth_step(num_gpus: int) -> int:
    """What batches for so many GPUs are multiples of: their odd factor times a power of two."""
    odd = num_gpus // (num_gpus & -num_gpus)
    return odd << int(math.log2(SMOOTH_BATCH / odd)) if odd <= SMOOTH_BATCH else SMOOTH_BATCH


def batch_of_tokens(num_tokens: int, seq_len: int) -> int:
    """The power of two of sequences that holds about so many tokens, at least one."""
    return 1 << max(0, round(math.log2(num_tokens / seq_len)))


def _default(notes: list[str], seq_len: int, cluster: ClusterSpec | None, usual_tokens: int) -> int:
    num_accelerators = cluster.num_accelerators if cluster else 0
    target = max(usual_tokens, DEFAULT_TOKENS_PER_ACCELERATOR * num_accelerators)
    batch = batch_of_tokens(target, seq_len)
    notes.append(
        f"global batch {batch} sequences ({format_count(batch * seq_len)} tokens; default: about "
        f"{format_count(target)})"
    )
    return batch
