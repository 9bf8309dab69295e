"""A plan run to its end: what a checkpoint holds, how often it is worth it, what failures cost."""

from dataclasses import replace

import pytest
from contexts import context_of, priced, strategy_of

from planner.answers.job import Job, JobAssumptions
from planner.catalog.models import load_model
from planner.errors import InputError
from planner.frameworks.settings import with_optimizer, with_training
from planner.layers.parameters import count_parameters
from planner.spec.training import Training

STRATEGY = strategy_of(dp=16, zero_stage=3, num_micro_batches=4, layers_per_stage=(32,))


def job(framework: str = "torchtitan", *, tokens: int = 10**12, **terms: object) -> Job:
    asked = {"model": "llama3-8b", "cluster": "2xdgx-h100", "framework": framework}
    context = context_of(**asked, global_batch=64, seq_len=8192)
    context = replace(context, job=replace(context.job, total_tokens=tokens))
    return Job(plan=priced(context, STRATEGY), terms=JobAssumptions(**terms))  # type: ignore[arg-type]


def with_traits(made: Job, traits: object) -> Job:
    context = replace(made.plan.context, traits=traits)  # type: ignore[arg-type]
    return replace(made, plan=replace(made.plan, context=context))


@pytest.mark.parametrize(
    ("framework", "each"),
    [("megatron", 14), ("deepspeed", 14), ("torchtitan", 12), ("accelerate", 12)],
)
def test_a_checkpoint_holds_what_the_framework_keeps(framework: str, each: int) -> None:
    params = count_parameters(load_model("llama3-8b"))
    assert job(framework).checkpoint_bytes == pytest.approx(each * params)


def test_of_smaller_optimizer_states_less_is_saved() -> None:
    # layers: 4 + 2 bytes and scales in place of 4 + 8; embedding and head as they were
    made = job("accelerate")
    smaller = with_optimizer(made.plan.context.traits, "adam-8bit")
    share = with_traits(made, smaller).checkpoint_bytes / made.checkpoint_bytes
    assert 0.5 < share < 0.6


def test_of_adapters_only_they_are_saved_and_nothing_is_hinted() -> None:
    made = job("accelerate")
    training = Training(mode="lora", rank=16, targets=("q", "v"))
    adapters = with_traits(made, with_training(made.plan.context.traits, training))
    # q: 16 · (4096 + 4096), v: 16 · (4096 + 1024), 32 layers
    assert adapters.saved_params == 32 * 16 * (8192 + 5120)
    assert adapters.learning_rates is None
    assert made.learning_rates is not None


def test_days_are_those_of_iterations_over_the_goodput() -> None:
    made = job()
    assert made.elapsed_s == pytest.approx(made.useful_s * made.factor)
    assert made.gpu_hours == pytest.approx(16 * made.elapsed_s / 3600)
    assert made.cost_usd == pytest.approx(2 * 25.6 * made.elapsed_s / 3600)
    assert made.num_failures == pytest.approx(made.elapsed_s / made.mtbf_s)


def test_checkpoints_come_after_whole_iterations_near_dalys_interval() -> None:
    made = job()
    assert made.interval_s == made.interval_iterations * made.plan.estimate.iter_time_s
    assert made.interval_s == pytest.approx(made.daly_s, abs=made.plan.estimate.iter_time_s)
    hourly = job(interval_s=3600.0)
    assert hourly.interval_s == pytest.approx(3600, abs=hourly.plan.estimate.iter_time_s)
    assert hourly.factor > made.factor


def test_a_short_job_writes_one_checkpoint_at_its_end() -> None:
    assert job(tokens=64 * 8192 * 3).interval_iterations == 3


def test_asynchronous_checkpoints_stop_less_and_begin_when_the_last_is_written() -> None:
    slow = {"storage_bytes_per_s": 1e8, "node_mtbf_s": 86400.0}
    stopping, beside = job(**slow), job(**slow, is_async=True)
    assert beside.stop_s < stopping.stop_s / 100
    assert beside.interval_s >= beside.write_s - beside.plan.estimate.iter_time_s
    assert beside.factor < stopping.factor
    assert beside.lost_s == pytest.approx(600 + 2 * beside.write_s)


def test_a_job_that_never_ends_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="--node-mtbf: the job never ends"):
        job(node_mtbf_s=120.0).check()
    job().check()


def test_a_job_of_less_than_an_iteration_is_refused() -> None:
    batch = job().plan.context.job.tokens_per_iteration
    job(tokens=batch).check()
    with pytest.raises(InputError, match=f"--tokens: less than one batch of {batch:,} tokens"):
        job(tokens=batch - 1).check()
