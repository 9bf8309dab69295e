"""Published runs of ZenFlow against the model: deepspeedai/DeepSpeed blogs/zenflow-corebinding.

Two GPUs of a DGX A100, batch 8, ZeRO 2, ratio 0.1, interval 4; sequences taken as the 512 tokens to
which DeepSpeedExamples' finetune_llama.py pads. Weights then came back in fp32 (commit 80033a8).
"""

from dataclasses import dataclass, replace
from statistics import mean

import pytest
from own_host import alone_on

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_change
from planner.plans.layout import requested, resolve
from planner.spec.job import JobSpec
from planner.spec.zenflow import NO_ZENFLOW, read_zenflow

BOUND, FREE = 0.23, 0.14
"""Of host memory's rate, with cores bound to ranks and without (docs/offload.md)."""
MEAN_PERCENT, WORST_PERCENT = 4.0, 6.0
FASTER_PERCENT = 17.0
"""Of how many times faster ZenFlow is than the same run that waits for the host: without bound
cores that run was a fifth faster than the profile's host (2.9 of 3.5 s)."""


@dataclass(frozen=True)
class Run:
    """One configuration; seconds as published, ``waiting_s`` those of ZeRO-Offload."""

    model: str
    fraction: float
    zenflow_s: float
    waiting_s: float
    is_fitted: bool = True

    def seconds(self, text: str) -> float:
        zenflow = read_zenflow(text) if text else NO_ZENFLOW
        traits = with_change(load_traits("deepspeed"), zenflow)
        returned = 4.0 if text else traits.offload.step_returned_bytes
        offload = replace(
            traits.offload,
            host_bandwidth_fraction=self.fraction,
            step_returned_bytes=returned,
        )
        context = Context(
            model=load_model(self.model),
            job=JobSpec(global_batch=8, seq_len=512, precision="bf16"),
            cluster=alone_on(load_cluster("2xa100-sxm-40")),
            traits=replace(traits, offload=offload),
        )
        layout = requested(
            zero_stage=2,
            micro_batch=4,
            global_batch=8,
            offload="optimizer:host",
            offload_percent=100,
        )
        return estimate(*resolve(context, layout)).iter_time_s


RUNS = {
    "1.5B, cores bound": Run("qwen2.5-1.5b", BOUND, 0.569, 1.365),
    "3B, cores bound": Run("qwen2.5-3b", BOUND, 1.116, 2.497),
    "3B, ZenFlow's own binding": Run("qwen2.5-3b", FREE, 1.325, 2.887, is_fitted=False),
}


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    return {name: run.seconds("zenflow") / run.zenflow_s - 1.0 for name, run in RUNS.items()}


def test_times_are_as_near_as_promised(errors: dict[str, float]) -> None:
    assert 100.0 * mean(map(abs, errors.values())) <= MEAN_PERCENT
    assert 100.0 * max(map(abs, errors.values())) <= WORST_PERCENT


def test_the_rate_of_shared_memory_was_fitted_on_the_runs_that_are_said_to_be(
    errors: dict[str, float],
) -> None:
    fitted = [errors[name] for name, run in RUNS.items() if run.is_fitted]
    assert abs(mean(fitted)) <= 0.01


@pytest.mark.parametrize("name", RUNS)
def test_it_is_as_many_times_faster_than_waiting_as_published(name: str) -> None:
    run = RUNS[name]
    modelled = run.seconds("") / run.seconds("zenflow")
    assert abs(modelled / (run.waiting_s / run.zenflow_s) - 1.0) * 100.0 <= FASTER_PERCENT
