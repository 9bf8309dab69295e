"""Full fine-tuning on one node: what the model reaches on published runs."""

from pathlib import Path

import pytest

from tools.validation.compare import Comparison, compare_all
from tools.validation.records import Record, read_runs

RUNS = Path(__file__).parent / "fine_tuning_runs.jsonl"
OTHER_VENDORS = ("ascend", "gaudi", "mi", "trainium")
TIME_PERCENT = 9.0
MEMORY_PERCENT = 8.5
STACKS_PERCENT = {
    "hf-trainer + fms-acceleration": (5.0, 2.0),
    "torchtune": (7.0, 7.0),
    "hf trainer + peft + deepspeed": (25.0, 6.0),
    "prime-rl (FSDP2)": (15.0, 20.0),
}
"""Mean errors of time and memory by stack."""


def is_full_fine_tuning(record: Record) -> bool:
    parallel = record.parallel
    return (
        record.is_scored
        and record.task in ("sft", "rl-trainer")
        and record.model.moe is None
        and (parallel.offload or "none") == "none"
        and (record.hardware.gpus or 9) <= 8
        and not record.hardware.gpu.startswith(OTHER_VENDORS)
    )


@pytest.fixture(scope="module")
def rows() -> list[Comparison]:
    found = compare_all(filter(is_full_fine_tuning, read_runs(RUNS).records))
    return [row for row in found if row.predicted is not None]


def mean_percent(errors: list[float | None]) -> float:
    known = [abs(error) for error in errors if error is not None]
    assert known
    return 100.0 * sum(known) / len(known)


def test_times_and_memory_are_as_near_as_promised(rows: list[Comparison]) -> None:
    assert len(rows) >= 34
    assert mean_percent([row.time_error for row in rows]) <= TIME_PERCENT
    assert mean_percent([row.first_memory_error for row in rows]) <= MEMORY_PERCENT


@pytest.mark.parametrize(("framework", "most"), STACKS_PERCENT.items())
def test_times_and_memory_of_a_stack_are_as_near_as_promised(
    rows: list[Comparison], framework: str, most: tuple[float, float]
) -> None:
    own = [row for row in rows if row.record.framework == framework]
    assert mean_percent([row.time_error for row in own]) <= most[0]
    assert mean_percent([row.first_memory_error for row in own]) <= most[1]


def test_no_line_of_the_file_is_refused() -> None:
    assert not read_runs(RUNS).unread
