"""Exposed part of a communication that runs alongside computation.

Two effects only: a communication can hide no longer than the computation beside it lasts, and
while it runs its kernels hold multiprocessors of the computation. Sections are recalled.
"""

from typing import Literal

import numpy as np

from planner.cost.kernels import memory_bound_s
from planner.spec.cluster import AcceleratorSpec
from planner.spec.items import item
from planner.spec.traits import ExpertOverlap, StateTraits
from planner.units import Array

TensorParallelOverlap = Literal["none", "bulk", "ring"]


def interference_fraction(
    communication_multiprocessors: float, accelerator: AcceleratorSpec
) -> float:
    """``c / SM``, at most 1: share of the computation rate that a running collective takes.

    A collective holds one multiprocessor per channel while it runs; GEMMs and attention
    fill all of them otherwise. Source: an all-gather holds 24 of an H100's 132 multiprocessors
    (NVIDIA developer forum, topic 337991), DeepSeek-V3's kernels 20 (arXiv 2412.19437, section
    3.2.2). Excludes HBM and L2 contention, products whose last wave no longer fits, copy engines
    and networks that reduce by themselves (they take none).
    """
    # A100's number, where hwdb does not know the accelerator's.
    total = accelerator.gemm.num_multiprocessors or 108.0
    return min(communication_multiprocessors / total, 1.0)


def exposed_beside_s(compute_s: Array, comm_s: Array, interference: float) -> Array:
    """``max(i · comm, comm - compute)``: growth of a computation by a communication beside it.

    While the communication runs, computation advances at ``1 - i`` of its rate, so both end
    after ``max(compute + i · comm, comm)``. Seconds; shapes broadcast. Source: derived; i is
    :func:`interference_fraction`. Excludes slower communication beside busy kernels.
    """
    return np.maximum(interference * comm_s, comm_s - compute_s)


def prefetch_fill_s(compute_s: Array, comm_s: Array, interference: float) -> Array:
    """``min(compute, (1 - i) · comm)``: what prefetching one layer ahead cannot hide in a pass.

    n layers of which each is fetched while the one before computes take
    ``comm + (n - 1) · max(compute + i · comm, comm) + compute``; this is the excess over n equal
    terms. Source: prefetch of the next unit only, arXiv 2304.11277, section 3.3.2; derived.
    """
    return np.minimum(compute_s, (1.0 - interference) * comm_s)


def bucketed_overlap_pieces(
    reduce_s: Array, window_s: Array, bucket_fraction: Array, interference: float
) -> tuple[Array, Array]:
    """Two functions whose larger one is the exposed time of bucketed gradient reduction.

    Gradients come at an even pace through the window W (the last backward). A bucket, fraction f
    of them, is sent once it is full and the one before is through; R is all of the reduction:
    ``f R + i (R - f R)``, only the last bucket shows and the others slow computation; and
    ``R - (1 - f) W``, the network is busy from the first full bucket to the end. Both are R for
    one bucket, and linear in R and W. The all-gather of weights in the next forward is the mirror
    image: its first bucket shows. Source: wait-free back-propagation, arXiv 1706.03292, section
    3; buckets, arXiv 2006.15704, section 3.2.3. Excludes layers of unequal pace.
    """
    last = bucket_fraction * reduce_s
    fits = last + interference * (reduce_s - last)
    return fits, reduce_s - (1.0 - bucket_fraction) * window_s


def exposed_tensor_parallel_s(
    compute_s: Array,
    comm_s: Array,
    chunk_s: Array,
    num_chunks: Array,
    overlap: TensorParallelOverlap,
    interference: float,
    achieved_fraction: float,
) -> Array:
    """Exposed seconds of a collective before or after a GEMM that takes ``compute_s``.

    none: all. bulk: beside a product that does not need it (:func:`exposed_beside_s`). ring: the
    product is cut into c chunks, as many as ranks; all but the own one travel, each while another
    computes: ``max(comm, (c - 1) · chunk) + chunk - compute``, where c chunks take longer than
    one product. Of what that hides only ``achieved_fraction`` is hidden (synchronisation between
    chunks, slower single exchanges). Never more than none: such products are left whole. Ring
    exchange uses copy engines or one multiprocessor, hence no interference. Source: Wang et al.,
    ASPLOS 2023, section 4; Transformer Engine, comm_gemm_overlap (num_sm 1); derived.
    """
    if overlap == "none":
        return np.asarray(comm_s)
    if overlap == "bulk":
        return exposed_beside_s(compute_s, comm_s, interference)
    chunks = np.maximum(num_chunks, 1.0)
    ring_s = np.maximum(comm_s, (chunks - 1.0) * chunk_s) + chunk_s
    shown = np.clip(ring_s - compute_s, 0.0, comm_s)
    return np.asarray(comm_s - achieved_fraction * (comm_s - shown))


def exposed_all_to_all_s(
    comm_s: Array,
    shared_expert_s: Array,
    other_batch_s: Array,
    overlap: ExpertOverlap,
    interference: float,
) -> Array:
    """Exposed seconds of expert dispatch and combine in one layer and pass.

    none: all. shared_expert: beside the shared expert's products. batches: a forward of one
    micro-batch beside the backward of another, so the all-to-all of one hides behind attention
    and experts of the other (weight gradients included where they are delayed).
    :func:`exposed_beside_s` with the computation that is beside. Source: Megatron-Core
    ``--moe-shared-expert-overlap``, ``--overlap-moe-expert-parallel-comm``; DualPipe, arXiv
    2412.19437, section 3.2.1. Excludes :func:`unpaired_micro_batches`.
    """
    if overlap == "none":
        return np.asarray(comm_s)
    beside = shared_expert_s if overlap == "shared_expert" else other_batch_s
    return exposed_beside_s(beside, comm_s, interference)


def unpaired_micro_batches(num_micro_batches: Array, pp: Array, vpp: Array) -> Array:
    """``min(((v - 1) p + 1) / v, m)``: those whose forward, and as many whose backward, run alone.

    On the last stage, which is busy from its first forward on, an interleaved pipeline starts with
    (v - 1) p forwards of a chunk, and with one more where a forward of one micro-batch runs beside
    the backward of another; it ends with as many backwards. Source: Megatron-Core
    megatron/core/pipeline_parallel/schedules.py (get_pp_rank_microbatches), combined_1f1b.py.
    """
    return np.minimum(((vpp - 1.0) * pp + 1.0) / vpp, num_micro_batches)


def gradient_pass_bytes(states: StateTraits, *, clips: bool) -> tuple[float, float]:
    """HBM traffic of gradients of g bytes outside backward, per one held and per one updated.

    Held: zeroed g and scaled by the number of replicas 2 g, where backward does not make them anew.
    Updated, in the width u of master weights (g where there are none): cast to it ``g + u`` where
    narrower, the norm u and clipping 2 u where ``clips``, new weights in 16 bits ``u + 2`` where
    they lie beside the master's. Source: counted in megatron/core/optimizer/optimizer.py,
    distributed/param_and_grad_buffer.py, deepspeed/runtime/zero/stage_1_and_2.py,
    torchtitan/distributed/utils.py. Excludes a check for overflow of its own.
    """
    gradient = min(states.gradient_bytes, 4.0)
    held = 0.0 if states.gradients_made_in_backward else 3.0 * gradient
    has_master = states.master_weight_bytes > 0
    width = 4.0 if has_master else gradient
    cast = (gradient + width) * (gradient < width)
    copied = (width + 2.0) * (has_master and states.zero3_weight_bytes > 0)
    return held, cast + 3.0 * width * clips + copied


def gradient_pass_s(
    held: Array,
    owned: Array,
    held_bytes: Array | float,
    owned_bytes: float,
    accelerator: AcceleratorSpec,
) -> Array:
    """Passes over gradients outside backward and the optimizer's own kernel.

    ``(held · a + owned · b) / HBM``, a and b by :func:`gradient_pass_bytes`. Excludes the norm's
    all-reduce of one number, some tens of microseconds.
    """
    return memory_bound_s(held * held_bytes + owned * owned_bytes, accelerator)


@item(
    "time.synchronisation",
    title="waiting for the slowest accelerator",
    inputs=("strategy.dp",),
)
def straggler_slowdown(num_ranks: Array) -> Array:
    """``1 + σ √(2 ln N)``, σ 0.5 %: the slowest of N accelerators sets the pace.

    Expected maximum of N normal times of mean 1 and deviation σ, leading term (Cramér 1946,
    section 28.6). Published spread between equal GPUs: 8 % of the median, outliers apart (arXiv
    2208.11035, abstract), σ about 1.5 % if that is the width of a box plot's whiskers; 14 % on
    products and 9 % of GPU time at 64,000 GPUs (arXiv 2510.15596, abstract). Published runs allow
    half of what they grow by, 0.2 % per doubling from 64 to 1,024 GPUs; plausible 0-1.5 %.
    Excludes failing accelerators. One rank waits for nobody: 1.
    """
    ranks = np.maximum(np.asarray(num_ranks, dtype=float), 1.0)
    return np.asarray(1.0 + 0.005 * np.sqrt(2.0 * np.log(ranks)))
