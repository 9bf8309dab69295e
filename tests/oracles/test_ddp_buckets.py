"""Plain data parallelism: torch's DDP over gloo against the profile's buckets."""

import sys
from pathlib import Path
from typing import Any

import pytest
from starts import of_ranks, run_worker

from planner.frameworks.registry import load_traits

WORKER = Path(__file__).with_name("ddp_worker.py")
WIDTH, LAYERS = 1024, 24
RANKS = 2
PARAMS = LAYERS * WIDTH * WIDTH


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", str(WORKER), str(folder), str(WIDTH), str(LAYERS)]
    run_worker(command, folder, {}, 300)
    return of_ranks(folder, RANKS)


def test_every_gradient_is_reduced_once_in_its_own_type(ranks: list[dict[str, Any]]) -> None:
    states = load_traits("accelerate", "ddp").states
    for rank in ranks:
        assert sum(rank["sizes"]) == PARAMS * states.gradient_reduce_bytes


def test_buckets_are_as_large_as_the_profile_says(ranks: list[dict[str, Any]]) -> None:
    traits = load_traits("accelerate", "ddp")
    full = traits.overlap.gradient_bucket_elements * traits.states.gradient_reduce_bytes
    tensor = WIDTH * WIDTH * traits.states.gradient_reduce_bytes
    for rank in ranks:
        *filled, _ = rank["sizes"][1:]  # the first is small, so that reduction starts early
        assert filled
        assert all(full <= size < full + tensor for size in filled)


def test_gradients_lie_beside_their_buckets(ranks: list[dict[str, Any]]) -> None:
    states = load_traits("accelerate", "ddp").states
    for rank in ranks:
        assert not rank["gradients_are_buckets"]
        assert rank["gradient_bytes"] == PARAMS * states.gradient_bytes
        assert sum(rank["sizes"]) == PARAMS * states.replica_bucket_bytes


def test_nothing_is_reduced_before_the_last_micro_batch(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["unsynchronised"] == 0 for rank in ranks)
