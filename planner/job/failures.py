"""Failures of a job, and what of its time is useful work."""

import numpy as np

from planner.units import DAY_S, Array

FAILURES, SPAN_S, FAILING_GPUS = 419.0, 54.0 * DAY_S, 16_384.0
"""Unexpected interruptions of Llama 3 405B in 54 days on 16,384 H100; 47 more were planned (arXiv
2407.21783, section 3.3.4)."""
GPU_MTBF_S = SPAN_S * FAILING_GPUS / FAILURES
"""Between failures that one GPU, with its share of node and network, brings about."""
RESTART_S = 600.0
"""From a failure to loading: finding it and testing nodes took less than ten minutes on ten
thousand GPUs (MegaScale, arXiv 2402.15627)."""


def node_mtbf_s(gpus_per_node: Array | float) -> Array | float:
    """Mean seconds between failures of a node: ``54 d · 16,384 / 419 / gpus_per_node``.

    Failures in proportion to GPUs: three quarters of those of Llama 3 were of GPUs, their memory,
    links and network (arXiv 2407.21783, table 5). New or old machines fail several times as often.

    >>> f"{node_mtbf_s(8) / 86400:.0f} days"
    '264 days'
    """
    return GPU_MTBF_S / gpus_per_node


def job_mtbf_s(node_s: Array | float, num_nodes: Array | float) -> Array | float:
    """Mean seconds between failures of a job: ``node_s / num_nodes``; any node's failure stops it.

    Failures are independent and come at one rate all the time.

    >>> f"{job_mtbf_s(node_mtbf_s(8), 2048) / 3600:.1f} h"
    '3.1 h'
    """
    return node_s / num_nodes


def time_factor(
    interval_s: Array | float,
    stop_s: Array | float,
    restart_s: Array | float,
    mtbf_s: Array | float,
) -> Array:
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
    """
    between = np.asarray(mtbf_s, dtype=float)
    with np.errstate(over="ignore"):
        again = np.expm1((np.asarray(interval_s) + stop_s) / between)
        return np.asarray(between * np.exp(restart_s / between) * again / interval_s)


def first_order_factor(
    interval_s: Array | float,
    stop_s: Array | float,
    restart_s: Array | float,
    mtbf_s: Array | float,
) -> Array | float:
    """The same to first order: ``(1 + δ/τ) · (1 + (R + (τ+δ)/2) / M)``.

    Checkpoints lengthen the work, and every failure costs a restart and half an interval. Right
    where R and τ are far below M; too small elsewhere. Source: as young_interval_s.

    >>> f"{first_order_factor(57 * 60, 300, 600, 6 * 3600):.3f}"
    '1.212'
    >>> f"{time_factor(57 * 60, 300, 600, 6 * 3600):.3f}"
    '1.220'
    """
    lost_s = restart_s + (interval_s + stop_s) / 2.0
    return (1.0 + stop_s / interval_s) * (1.0 + lost_s / mtbf_s)


def goodput(factor: Array | float) -> Array | float:
    """Useful over elapsed time: ``1 / factor``.

    Llama 3 405B: an effective training time of more than 90 % (arXiv 2407.21783, section 3.3.4),
    with a failure every 3.1 h; of checkpoints of 2.8 s, restarts of ten minutes and the best
    interval the formula says

    >>> between_s = job_mtbf_s(node_mtbf_s(8), 2048)
    >>> f"{goodput(time_factor(252, 2.8, 603, between_s)):.1%}"
    '92.6%'
    """
    return 1.0 / factor
