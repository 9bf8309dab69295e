"""Checkpoints: their bytes, how long they stop the job, how often they are worth it."""

import numpy as np

from planner.units import GB, Array

STORAGE_BYTES_PER_S_PER_GPU = 2000.0 * GB / 16_384
"""Of the file system: Tectonic's 2 TB/s over the 16,384 GPUs of Llama 3 (arXiv 2407.21783, section
3.3.1); NVIDIA asks 0.6 to 1.9 GB/s a node of eight (DGX SuperPOD H100, storage)."""


def checkpoint_bytes(
    num_params: Array | float,
    weight_bytes: Array | float,
    master_bytes: Array | float,
    state_bytes: Array | float,
) -> Array | float:
    """Bytes: ``parameters · (weights + master weights + optimizer states)``, each per parameter.

    ``weight_bytes`` are weights saved beside the master copy, 0 where that serves. Gradients are
    not saved; the data loader's and random generators' states are small, and left out.

    BLOOM, 176.2 billion parameters in bf16 with Adam and fp32 weights: 2.3 TB (BigScience, "The
    technology behind BLOOM training"; its units are binary):

    >>> f"{checkpoint_bytes(176.247e9, 2, 4, 8) / 2**40:.2f} TiB"
    '2.24 TiB'
    """
    return num_params * (weight_bytes + master_bytes + state_bytes)


def write_s(
    num_bytes: Array | float,
    storage_bytes_per_s: Array | float,
    num_nodes: Array | float,
    node_bytes_per_s: Array | float,
) -> Array:
    """Seconds: ``bytes / min(storage_bytes_per_s, num_nodes · node_bytes_per_s)``.

    Every rank writes its part of the states, so all nodes write at once; a node is limited by its
    ports or by the links of its GPUs to the host, whichever is slower. Excludes metadata, names
    of many files, and other jobs on the file system. Reading back takes as long.

    >>> f"{write_s(5.68e12, 2e12, 2048, 50e9):.2f} s"
    '2.84 s'
    """
    rate = np.minimum(storage_bytes_per_s, np.multiply(num_nodes, node_bytes_per_s))
    return np.asarray(num_bytes / rate)


def copy_s(
    num_bytes: Array | float, num_gpus: Array | float, host_link_bytes_per_s: Array | float
) -> Array | float:
    """Seconds that an asynchronous checkpoint stops training: the copy from device to host.

    ``bytes / (num_gpus · host_link_bytes_per_s)``: every GPU copies its part of the states, once.
    Writing goes on beside training (CheckFreq, Mohan et al., FAST 2021); what that
    takes of the network and of host memory, which holds a copy, is left out.

    >>> f"{copy_s(5.68e12, 16_384, 52e9) * 1e3:.1f} ms"
    '6.7 ms'
    """
    return num_bytes / (num_gpus * host_link_bytes_per_s)


def young_interval_s(stop_s: Array | float, mtbf_s: Array | float) -> Array:
    """Seconds of work between checkpoints: ``sqrt(2 · δ · M)``.

    δ is the stop of one, M the mean time between failures of the job. First order: right where δ is
    far below M. Source: Young, Communications of the ACM 17 (9), 1974.

    >>> f"{young_interval_s(5 * 60, 24 * 3600) / 60:.0f} min"
    '120 min'
    """
    return np.sqrt(2.0 * np.multiply(stop_s, mtbf_s))


def daly_interval_s(stop_s: Array | float, mtbf_s: Array | float) -> Array:
    """Seconds: ``sqrt(2δM) · [1 + (δ/2M)^(1/2) / 3 + (δ/2M) / 9] - δ``; M where δ is 2M or more.

    δ is the stop of one checkpoint, M the mean time between failures of the job. Source: Daly,
    Future Generation Computer Systems 22, 2006, equation 37; within 0.2 % of the exact optimum of
    time_factor below δ = M/2. His figures 3 to 5, for δ of 5 min: 117, 57 and 9.1 min.

    >>> [f"{daly_interval_s(300.0, hours * 3600) / 60:.1f} min" for hours in (24, 6, 0.25)]
    ['116.7 min', '56.7 min', '9.1 min']
    """
    stop, between = np.asarray(stop_s, dtype=float), np.asarray(mtbf_s, dtype=float)
    share = stop / (2.0 * between)
    series = young_interval_s(stop, between) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - stop
    return np.where(stop < 2.0 * between, series, between)
