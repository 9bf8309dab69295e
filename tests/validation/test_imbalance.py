"""Published runs under natural routing beside the same with the balance forced."""

from dataclasses import replace
from pathlib import Path

import pytest

from planner.cost.estimate import estimate
from tools.validation.mapping import to_run
from tools.validation.records import read_records

RECORDS = read_records(Path(__file__).parent / "published_runs.jsonl")
RATES = {"16k": (295, 237), "32k": (335, 277), "64k": (368, 320), "128k": (389, 357)}
"""TFLOP/s by length, forced and natural: Qwen3-235B on 256 H100, best_practice/qwen3/readme.md of
yanring/Megatron-MoE-ModelZoo at 020b8136."""
IMBALANCE = 0.49  # of all four together; one number, as the router and the data are the same
WORST_FRACTION = 0.015


@pytest.mark.parametrize("length", RATES)
def test_one_imbalance_explains_natural_routing_at_every_length(length: str) -> None:
    record = next(each for each in RECORDS if each.id == f"moezoo-qwen3-235b-h100-256-seq{length}")
    run = to_run(record)
    job = replace(run.context.job, imbalance_fraction=IMBALANCE)
    natural = estimate(replace(run.context, job=job), run.strategy).iter_time_s
    forced = estimate(run.context, run.strategy).iter_time_s
    rates = RATES[length]
    assert natural / forced == pytest.approx(rates[0] / rates[1], rel=WORST_FRACTION)
