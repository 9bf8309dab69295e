"""Fitted collectives against what they were made from, and against other published curves."""

from pathlib import Path

import numpy as np
import pytest

from planner.units import MIB
from tools.nccl import measured_points
from tools.nccl_docs import (
    LIMIT,
    TABLE_ACCELERATORS,
    curves,
    published_error,
    table_errors,
)

FOLDER = Path(__file__).parent / "nccl"
UNEXPLAINED = {("l40s", "all_gather", 8, 256 * MIB), ("l40s", "all_gather", 8, 512 * MIB)}
"""116 ms and 400 ms, after 99 ms for 128 MiB: no line passes within 15 % of all three."""
OTHERWISE = {
    ("a100-8gpu-allreduce-mleng", MIB),
    ("a100-8gpu-allreduce-mleng", 2 * MIB),
    ("h100-azure-8gpu-allreduce", MIB),
}
"""nccl-tests results that differ from NVIDIA's table of the same GPU by more than a third."""


def test_every_table_has_its_accelerator() -> None:
    assert set(measured_points(FOLDER)) == set(TABLE_ACCELERATORS)


@pytest.mark.parametrize("table", TABLE_ACCELERATORS)
def test_every_measured_point_from_1_mib_is_within_15_percent(table: str) -> None:
    points, errors = table_errors(FOLDER, table)
    off = {
        (table, point.collective, point.num_gpus, point.num_bytes)
        for point, error in zip(points, errors, strict=True)
        if abs(error) > LIMIT
    }
    assert off == {key for key in UNEXPLAINED if key[0] == table}


def test_the_mean_error_is_3_percent() -> None:
    errors = [e for table in TABLE_ACCELERATORS for e in table_errors(FOLDER, table)[1]]
    assert len(errors) == 880
    assert np.abs(errors).mean() < 0.03
    assert np.percentile(np.abs(errors), 90) < 0.08


def test_published_nccl_tests_curves_of_one_node_are_within_15_percent() -> None:
    off, count = set(), 0
    for points in curves(FOLDER).values():
        for point in points:
            if point.num_nodes == 1 and point.tool.startswith("nccl-tests"):
                count += 1
                if abs(published_error(point)) > LIMIT:
                    off.add((point.curve, point.num_bytes))
    assert count == 57
    assert off == OTHERWISE


def test_large_messages_of_the_pytorch_benchmark_are_within_15_percent() -> None:
    errors = [
        published_error(point)
        for points in curves(FOLDER).values()
        for point in points
        if point.num_nodes == 1 and point.tool.startswith("all_reduce_bench")
        if point.num_bytes >= 16 * MIB
    ]
    assert len(errors) == 22
    assert max(map(abs, errors)) <= LIMIT
