"""Formulas of a job around its iterations: checkpoints and failures.

With their sources; :func:`time_factor` takes columns too.
"""

import math

import numpy as np

from planner.units import DAY_S, GB, Array

STORAGE_BYTES_PER_S_PER_GPU = 2000.0 * GB / 16_384
"""Of the file system: Tectonic's 2 TB/s over the 16,384 GPUs of Llama 3 (arXiv 2407.21783, section
3.3.1); NVIDIA asks 0.6 to 1.9 GB/s a node of eight (DGX SuperPOD H100, storage)."""
FAILURES, FAILING_GPUS = 419.0, 16_384.0
"""Unexpected interruptions of Llama 3 405B in 54 days on 16,384 H100; 47 more were planned (arXiv
2407.21783, section 3.3.4)."""
RESTART_S = 600.0
"""From a failure to loading: finding it and testing nodes took less than ten minutes on ten
thousand GPUs (MegaScale, arXiv 2402.15627)."""


def checkpoint_bytes(
    num_params: float, weight_bytes: float, master_bytes: float, state_bytes: float
) -> float:
    """Bytes: ``parameters · (weights + master weights + optimizer states)``, each per parameter.

    ``weight_bytes`` are weights saved beside the master copy, 0 where that serves. Gradients are
    not saved; the data loader's and random generators' states are small, and left out.

    BLOOM, 176.2 billion parameters in bf16 with Adam and fp32 weights: 2.24 TiB, published as 2.3
    TB (BigScience, "The technology behind BLOOM training"; its units are binary).
    """
    return num_params * (weight_bytes + master_bytes + state_bytes)


def write_s(
    num_bytes: float, storage_bytes_per_s: float, num_nodes: float, node_bytes_per_s: float
) -> float:
    """Seconds: ``bytes / min(storage_bytes_per_s, num_nodes · node_bytes_per_s)``.

    Every rank writes its part of the states, so all nodes write at once; a node is limited by its
    ports or by the links of its GPUs to the host, whichever is slower. Excludes metadata, names
    of many files, and other jobs on the file system. Reading back takes as long.
    """
    return num_bytes / min(storage_bytes_per_s, num_nodes * node_bytes_per_s)


def young_interval_s(stop_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints: ``sqrt(2 · δ · M)``.

    δ is the stop of one, M the mean time between failures of the job. First order: right where δ is
    far below M. Source: Young, Communications of the ACM 17 (9), 1974.

    >>> f"{young_interval_s(5 * 60, 24 * 3600) / 60:.0f} min"
    '120 min'
    """
    return math.sqrt(2.0 * stop_s * mtbf_s)


def daly_interval_s(stop_s: float, mtbf_s: float) -> float:
    """Seconds: ``sqrt(2δM) · [1 + (δ/2M)^(1/2) / 3 + (δ/2M) / 9] - δ``; M where δ is 2M or more.

    δ is the stop of one checkpoint, M the mean time between failures of the job. Source: Daly,
    Future Generation Computer Systems 22, 2006, equation 37; within 0.2 % of the exact optimum of
    time_factor below δ = M/2. His figures 3 to 5, for δ of 5 min: 117, 57 and 9.1 min.

    >>> [f"{daly_interval_s(300.0, hours * 3600) / 60:.1f} min" for hours in (24, 6, 0.25)]
    ['116.7 min', '56.7 min', '9.1 min']
    """
    share = stop_s / (2.0 * mtbf_s)
    if share >= 1.0:
        return mtbf_s
    series = 1.0 + math.sqrt(share) / 3.0 + share / 9.0
    return young_interval_s(stop_s, mtbf_s) * series - stop_s


def node_mtbf_s(gpus_per_node: float) -> float:
    """Mean seconds between failures of a node: ``54 d · 16,384 / 419 / gpus_per_node``.

    Failures in proportion to GPUs: three quarters of those of Llama 3 were of GPUs, their memory,
    links and network (arXiv 2407.21783, table 5). New or old machines fail several times as often.

    >>> f"{node_mtbf_s(8) / 86400:.0f} days"
    '264 days'
    """
    return 54.0 * DAY_S * FAILING_GPUS / FAILURES / gpus_per_node


def time_factor(interval_s: Array | float, stop_s: float, restart_s: float, mtbf_s: float) -> Array:
    """Elapsed over useful time: ``M · e^(R/M) · (e^((τ+δ)/M) - 1) / τ``.

    After every τ of work a checkpoint stops the job for δ. A failure, every M in the mean and also
    while it restarts or writes, throws it back to the last checkpoint after a restart of R. Exact
    for failures without memory and many checkpoints; infinite where nothing is ever done. Source:
    Daly, Future Generation Computer Systems 22, 2006, his complete cost function.

    As in his figure 4, M of 6 h, R of 10 min, δ of 5 min: at the best interval 500 h of work take

    >>> f"{500 * time_factor(57 * 60, 300, 600, 6 * 3600):.0f} h"
    '610 h'

    OPT-175B, 25.0 days of iterations (300B tokens at 147 TFLOP/s on each of 992 A100, arXiv
    2205.01068), was restarted 53 times in 56 days (a talk of its authors). Ten minutes each
    explain 25.7 days; the 56 need 20 hours each:

    >>> [f"{25 * time_factor(1900, 20, R, 56 * 86400 / 53):.1f} days" for R in (600, 20 * 3600)]
    ['25.7 days', '56.2 days']

    Llama 3 405B: an effective training time of more than 90 % (arXiv 2407.21783, section 3.3.4),
    with a failure every 3.1 h; of checkpoints of 2.8 s, restarts of ten minutes and the best
    interval

    >>> f"{1 / time_factor(252, 2.8, 603, node_mtbf_s(8) / 2048):.1%}"
    '92.6%'
    """
    with np.errstate(over="ignore"):
        again = np.expm1((np.asarray(interval_s) + stop_s) / mtbf_s)
        return np.asarray(mtbf_s * np.exp(restart_s / mtbf_s) * again / interval_s)
