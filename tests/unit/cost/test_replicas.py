"""Whole replicas, weights trained in 16 bits, and the moment the optimizer steps."""

import numpy as np
import pytest
from contexts import columns_of, strategy_of

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.data_parallel import bucket_elements
from planner.cost.ledger import RESERVED, StageLedger, stage_ledgers
from planner.cost.stage_model import price
from planner.cost.states import state_bytes
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec, Precision
from planner.spec.traits import traits_at_precision

MODEL = load_model("llama3.2-1b")
PARAMS = 1_235_814_400


@pytest.mark.parametrize(
    ("precision", "dp", "num_bytes"),
    [
        ("bf16", 1, 2 + 4 + 4 + 8),
        ("bf16", 2, 2 + 4 + 4 + 8 + 4),
        ("fp32", 2, 4 + 4 + 8 + 4),
    ],
)
def test_replicas_keep_fp32_weights_and_buckets_beside_gradients(
    precision: Precision, dp: int, num_bytes: float
) -> None:
    states = traits_at_precision(load_traits("accelerate", "ddp"), precision).states
    found = state_bytes(columns_of(zero_stage=0, dp=dp), states, np.array([1.0]))
    assert float(found.device[0]) == num_bytes


def test_buckets_hold_25_mib_of_fp32() -> None:
    context = context_of("ddp")
    found = bucket_elements(context, columns_of(dp=2), np.array([1e9]), np.array([6e7]))
    assert float(found[0]) * 4 == 25 * 2**20


def context_of(profile: str) -> Context:
    job = JobSpec(global_batch=2, seq_len=128)
    traits = load_traits("accelerate", profile)
    return Context(model=MODEL, job=job, cluster=load_cluster("2xa100-sxm-80"), traits=traits)


def ledger_of(profile: str, micro_batches: int = 1) -> StageLedger:
    strategy = strategy_of(
        dp=2 // micro_batches,
        zero_stage=0,
        num_micro_batches=micro_batches,
        layers_per_stage=(16,),
        recompute_layers_per_stage=(16,),
    )
    return stage_ledgers(price(context_of(profile), strategy))[0]


def test_gradients_of_one_micro_batch_are_not_there_at_the_loss() -> None:
    def lifetime(ledger: StageLedger) -> str:
        return next(item.lifetime for item in ledger.items if item.name == "gradients")

    assert lifetime(ledger_of("ddp")) == RESERVED
    assert lifetime(ledger_of("ddp", micro_batches=2)) == "whole run"


def test_an_optimizer_over_many_tensors_has_temporaries_of_its_own() -> None:
    """Weights, gradients, two moments and a square root in 2 bytes each: 10 of every parameter."""
    found = ledger_of("pure-bf16", micro_batches=2).allocated_bytes
    assert found == pytest.approx(10.0 * PARAMS, rel=0.01)
