"""InternLM-7B under InternEvo on 8 to 1,024 A100: published by its authors, no constant fitted."""

from pathlib import Path

import pytest

from tools.validation.compare import Comparison, compare_all
from tools.validation.records import read_runs
from tools.validation.summary import summarize, time_errors

RUNS = Path(__file__).parent / "internevo_runs.jsonl"
GROUPS_PERCENT = {("",): (46, 7.5), ("zero8", "zero4", "ckpt-mb8"): (24, 5.5)}
"""All, and states shared inside a node, or four micro-batches and more that hide the exchange."""
FAST, SLOW = "internevo-7b-1024xa100-tp1-zero8", "internevo-7b-1024xa100-tp1-zeroall"


@pytest.fixture(scope="module")
def rows() -> list[Comparison]:
    return [row for row in compare_all(read_runs(RUNS).records) if row.predicted is not None]


@pytest.mark.parametrize(("ends", "promised"), GROUPS_PERCENT.items())
def test_runs_are_as_near_as_promised(
    rows: list[Comparison], ends: tuple[str, ...], promised: tuple[int, float]
) -> None:
    found = summarize(time_errors(row for row in rows if row.record.id.endswith(ends)))
    assert found.n == promised[0]
    assert 100.0 * (found.mape or 1.0) <= promised[1]


def test_broadcasts_over_all_ranks_cost_more_the_more_there_are(rows: list[Comparison]) -> None:
    found = {row.record.id: row.predicted for row in rows}
    slow, fast = found[SLOW], found[FAST]
    assert slow is not None
    assert fast is not None
    # 7.21 and 4.52 s are published
    assert 1.2 < (slow.iter_time_s or 0.0) / (fast.iter_time_s or 1.0) < 1.6
