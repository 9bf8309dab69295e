"""Small models on one node, where the host that launches kernels decides the time."""

from pathlib import Path

import pytest

from tools.validation.compare import compare_all
from tools.validation.records import read_records
from tools.validation.summary import Summary, summary

RUNS = Path(__file__).parent / "single_node_runs.jsonl"
MEAN_PERCENT = 8.0
BIAS_PERCENT = 2.0
MIN_TAU = 0.88
MAX_REGRET_PERCENT = 4.0


@pytest.fixture(scope="module")
def found() -> Summary:
    return summary(compare_all(read_records(RUNS)))


def test_times_of_small_models_are_as_near_as_promised(found: Summary) -> None:
    assert found.time.n == 540
    assert 100.0 * (found.time.mape or 1.0) <= MEAN_PERCENT
    assert abs(100.0 * (found.time.bias or 1.0)) <= BIAS_PERCENT


def test_their_layouts_are_ranked_as_promised(found: Summary) -> None:
    assert (found.mean_tau or 0.0) >= MIN_TAU
    assert 100.0 * (found.mean_regret or 1.0) <= MAX_REGRET_PERCENT
