"""Fine-tuning on one node, whole models and adapters: what is reached on published runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.validation.compare import Comparison, compare_all
from tools.validation.records import Record, read_runs

RUNS = Path(__file__).parent / "fine_tuning_runs.jsonl"
OTHER_VENDORS = ("ascend", "gaudi", "mi", "trainium")
FULL = -1  # in place of the bits of a quantised base
STACKS_PERCENT = {
    ("hf-trainer + fms-acceleration", FULL): (5.0, 2.0),
    ("torchtune", FULL): (7.0, 7.0),
    ("hf trainer + peft + deepspeed", FULL): (25.0, 6.0),
    ("prime-rl (FSDP2)", FULL): (15.0, 20.0),
    ("hf-trainer + fms-acceleration", None): (5.0, 1.1),
    ("hf-trainer + fms-acceleration", 4): (3.6, 1.2),
    ("hf trainer + peft + deepspeed", None): (18.7, 7.6),
    ("hf trainer + peft + deepspeed", 4): (16.0, 2.5),
    ("prime-rl (FSDP2)", None): (13.8, 5.8),
    ("fsdp_qlora (FSDP1)", None): (38.6, 8.0),
    ("fsdp_qlora (FSDP1)", 4): (22.5, 9.3),
}
"""Mean errors of time and memory by stack and bits of a quantised base; None: 16 bits."""
SLOW = "b200"  # Adapters of an older build, half as fast as predicted: their source warns of them
PADDED = "hf peft"  # Its peaks are of the longest batch, its stated length is the mean


def is_full(record: Record) -> bool:
    return (
        record.task in ("sft", "rl-trainer")
        and record.model.moe is None
        and (record.parallel.offload or "none") == "none"
        and (record.hardware.gpus or 9) <= 8
        and not record.hardware.gpu.startswith(OTHER_VENDORS)
    )


def has_adapters(record: Record) -> bool:
    """On NVIDIA's accelerators; others are with test_other_runs.py."""
    return record.lora is not None and not record.hardware.gpu.startswith("gaudi")


def has_adapters_alone(record: Record) -> bool:
    return record.lora is not None and not record.lora.modules_to_save


@pytest.fixture(scope="module")
def rows() -> list[Comparison]:
    scored = (record for record in read_runs(RUNS).records if record.is_scored)
    found = compare_all(record for record in scored if is_full(record) or has_adapters(record))
    return [row for row in found if row.predicted is not None]


def of(rows: list[Comparison], belongs: Callable[[Record], bool]) -> list[Comparison]:
    return [row for row in rows if belongs(row.record)]


def mean_percent(errors: list[float | None]) -> float:
    known = [abs(error) for error in errors if error is not None]
    return 100.0 * sum(known) / len(known)


def check(times: list[Comparison], peaks: list[Comparison], most: tuple[float, float]) -> None:
    assert mean_percent([row.time_error for row in times]) <= most[0]
    assert mean_percent([row.first_memory_error for row in peaks]) <= most[1]


def is_fast(row: Comparison) -> bool:
    return not row.record.hardware.gpu.startswith(SLOW)


def test_full_fine_tuning_is_as_near_as_promised(rows: list[Comparison]) -> None:
    own = of(rows, is_full)
    assert len(own) >= 34
    check(own, own, (9.0, 8.5))


def test_adapters_are_as_near_as_promised(rows: list[Comparison]) -> None:
    own = of(rows, has_adapters_alone)
    assert len(own) >= 99
    peaks = [row for row in own if row.record.framework != PADDED]
    check(list(filter(is_fast, own)), peaks, (14.0, 5.0))


def test_embedding_and_head_beside_adapters_are_as_near_as_promised(rows: list[Comparison]) -> None:
    own = of(rows, lambda record: record.lora is not None and not has_adapters_alone(record))
    assert len(own) >= 12
    check(own, own, (7.0, 11.0))


@pytest.mark.parametrize(("stack", "most"), STACKS_PERCENT.items())
def test_a_stack_is_as_near_as_promised(
    rows: list[Comparison], stack: tuple[str, int | None], most: tuple[float, float]
) -> None:
    name, bits = stack
    own = [row for row in rows if row.record.framework == name]
    if bits == FULL:
        own = of(own, is_full)
        check(own, own, most)
    else:
        own = of(own, has_adapters_alone)
        own = [r for r in own if r.record.lora and r.record.lora.quantized_base_bits == bits]
        check(list(filter(is_fast, own)), own, most)


def test_casts_of_a_widened_base_cost_what_was_measured(rows: list[Comparison]) -> None:
    found = {row.record.id: row for row in rows}
    for batch in (4, 8):
        end = f"peft-bnb-b{batch}-1xa100"
        pair = [
            found[f"fms-main-mistral-7b-lora-{kind}-{end}"] for kind in ("baseline", "accelerated")
        ]
        predicted = [row.predicted for row in pair]
        assert all(predicted)
        for figure in ("iter_time_s", "allocated_gib"):
            measured = getattr(pair[0].measured, figure) / getattr(pair[1].measured, figure)
            ratio = getattr(predicted[0], figure) / getattr(predicted[1], figure)
            assert ratio == pytest.approx(measured, rel=0.065)


def test_no_line_of_the_file_is_refused() -> None:
    assert not read_runs(RUNS).unread
