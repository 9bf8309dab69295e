"""Exchanges between replicas: torch's hooks and averager over gloo against what they are priced at.

Sizes of all-reduces are compared exactly, as are PowerSGD's states.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cost.exchange import low_rank_elements

WORKER = Path(__file__).with_name("exchange_worker.py")
WIDTH, LAYERS, RANK, EVERY = 128, 6, 4, 5
RANKS = 2
SHAPES = [shape for _ in range(LAYERS) for shape in ((WIDTH, WIDTH), (WIDTH,))]
PARAMS = LAYERS * (WIDTH * WIDTH + WIDTH)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("exchanges")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", str(WORKER), str(folder)]
    command += map(str, (WIDTH, LAYERS, RANK, EVERY))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, timeout=300, env=environment, capture_output=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_the_fp16_hook_sends_two_bytes_a_gradient(ranks: list[dict[str, Any]]) -> None:
    assert all(sum(rank["fp16"]) == 2 * PARAMS for rank in ranks)


def test_powersgd_sends_its_factors_and_what_stays_whole(ranks: list[dict[str, Any]]) -> None:
    kept = sum(low_rank_elements(shape, RANK) for shape in SHAPES)
    assert kept < PARAMS / 4
    assert all(sum(rank["powersgd"]) == 4 * kept for rank in ranks)


def test_powersgd_reduces_three_times_a_bucket(ranks: list[dict[str, Any]]) -> None:
    assert all(len(rank["powersgd"]) % 3 == 0 for rank in ranks)


def test_powersgd_keeps_its_error_and_its_factors(ranks: list[dict[str, Any]]) -> None:
    factors = LAYERS * 2 * WIDTH * RANK
    for rank in ranks:
        assert rank["error"] == 4 * PARAMS
        assert rank["factors"] == 4 * factors


def test_local_sgd_sends_all_weights_every_so_many_steps(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        sent = rank["averaged"]
        assert [size for size in sent if size] == [4 * PARAMS] * (len(sent) // EVERY)
        assert all(bool(size) == (step % EVERY == 0) for step, size in enumerate(sent))
