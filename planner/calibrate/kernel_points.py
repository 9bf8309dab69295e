"""Points of kernels, of the host and of disks: what each is by the model, and what cannot be."""

from typing import Literal

import numpy as np

from planner.calibrate.points import DISKS, ROUNDING, Point, too_fast
from planner.cost.attention_kernels import (
    attention_peak_flops_per_s,
    flash_attention_backward_s,
    flash_attention_forward_s,
)
from planner.cost.kernels import element_wise_s
from planner.errors import InputError
from planner.layers.op import FlashAttention
from planner.spec.cluster import ClusterSpec
from planner.spec.job import Precision
from planner.units import GB

BACKWARD_FLOPS = 2.5
"""Of forward's, scores recomputed (arXiv 2307.08691, section 4)."""
HOST_ADAM_BYTES = 28.0
"""Read and written per parameter by a fused Adam (docs/offload.md)."""
FUSED_HOST_FRACTION = 0.45
"""Of the memory's rate that all ranks' fused Adam reach together
(traits.offload.host_bandwidth_fraction of frameworks that use it)."""


def attention_work(
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    kernel: Literal["fused", "flash2"] = "flash2",
    *,
    is_causal: bool = True,
) -> FlashAttention:
    """Attention as people measure it, as the model's kernel."""
    return FlashAttention(
        kernel=kernel,
        square_flops=np.array(4.0 * float(seq_len) ** 2 * batch * heads * head_dim),
        causal_fraction=0.5 if is_causal else 1.0,
        seq_len=seq_len,
        head_dim=head_dim,
        num_tiles=batch * heads * seq_len / 128.0,
    )


def attention_point(
    path: str,
    line: int,
    work: FlashAttention,
    precision: Precision,
    measured_s: float,
    cluster: ClusterSpec,
    *,
    is_backward: bool,
) -> Point:
    """Fused attention, one pass; raises InputError where it is above the peak."""
    try:
        peak = attention_peak_flops_per_s(cluster.accelerator, precision)
    except ValueError as error:
        raise InputError.single(path, f"line {line}", str(error)) from None
    flops = float(np.sum(work.flops)) * (BACKWARD_FLOPS if is_backward else 1.0)
    if flops > ROUNDING * peak * measured_s:
        given, most = f"{flops / measured_s / 1e12:,.3g} TFLOP/s", f"the peak is {peak / 1e12:,.3g}"
        raise too_fast(path, line, "attention", given, f"{most} TFLOP/s")
    seconds = flash_attention_backward_s if is_backward else flash_attention_forward_s

    def predict(machine: ClusterSpec) -> float:
        return float(np.sum(seconds(work, machine.accelerator, precision)))

    return Point(kind="attention", path=path, line=line, measured=measured_s, predict=predict)


def memory_point(
    path: str, line: int, num_bytes: float, measured_s: float, cluster: ClusterSpec
) -> Point:
    """An element-wise kernel; raises InputError where it is faster than the memory."""
    rate = cluster.accelerator.hbm_bytes_per_s
    if num_bytes > ROUNDING * rate * measured_s:
        given = f"{num_bytes / measured_s / GB:,.0f} GB/s"
        raise too_fast(path, line, "memory traffic", given, f"memory moves {rate / GB:,.0f} GB/s")

    def predict(machine: ClusterSpec) -> float:
        return float(element_wise_s(np.asarray(num_bytes), machine.accelerator))

    return Point(kind="memory-bound", path=path, line=line, measured=measured_s, predict=predict)


def host_adam_point(
    path: str,
    line: int,
    params: float,
    threads: int,
    ranks: int,
    measured_s: float,
    cluster: ClusterSpec,
) -> Point:
    """A step of a fused Adam on the host by so many threads of each of the ranks of a node.

    ``28 bytes · params / min(threads · core, 0.45 · memory / ranks)``, as plans have it of one
    thread or more (planner.cost.offload.host_bytes_per_s). Raises InputError where that is more
    than the host's memory moves.
    """
    moved, most = HOST_ADAM_BYTES * params * ranks, cluster.node.host_memory_bytes_per_s
    if moved > ROUNDING * most * measured_s:
        given = f"{moved / measured_s / GB:,.0f} GB/s"
        limit = f"the host's memory moves {most / GB:,.0f} GB/s"
        raise too_fast(path, line, "traffic of Adam", given, limit)

    def predict(machine: ClusterSpec) -> float:
        node = machine.node
        shared = FUSED_HOST_FRACTION * node.host_memory_bytes_per_s / ranks
        return HOST_ADAM_BYTES * params / min(threads * node.host_core_bytes_per_s, shared)

    return Point(kind="host Adam", path=path, line=line, measured=measured_s, predict=predict)


def disk_point(
    path: str, line: int, bytes_per_s: float, cluster: ClusterSpec, *, is_write: bool
) -> Point:
    """What a disk of the node wrote or read; raises InputError where memory was, not a disk."""
    most = cluster.node.host_memory_bytes_per_s
    if bytes_per_s > ROUNDING * most:
        given = f"{bytes_per_s / GB:,.0f} GB/s"
        limit = f"the host's memory moves {most / GB:,.0f} GB/s"
        raise too_fast(path, line, "a disk's rate", given, limit)

    def predict(machine: ClusterSpec) -> float:
        node = machine.node
        known = node.nvme_write_bytes_per_s if is_write else node.nvme_read_bytes_per_s
        return known or bytes_per_s

    key = DISKS[0] if is_write else DISKS[1]
    return Point(kind="disk", path=path, line=line, measured=bytes_per_s, predict=predict, key=key)
