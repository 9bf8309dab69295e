"""Ways to keep replicas in step, for plans; two sites joined by a slow link."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.clusters import load_cluster
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.frameworks.settings import with_change
from planner.plans.exchange import Exchanges, Way, exchanges
from planner.plans.plan import Plan
from planner.spec.exchange import METHODS, read_exchange
from planner.spec.strategy import NEUTRAL, Strategy, split_values

Contexts = Callable[..., Context]
SITES = """
node: dgx-h100
count: 16
levels:
- {name: site, num_nodes: 8}
- {name: wan, oversubscription: 2560, latency_us: 10000}
"""
"""64 ports of 400 Gbit/s a site, and 10 Gbit/s between two sites."""


def plan_of(context: Context, **fields: object) -> Plan:
    layers = (context.model.num_blocks,)
    strategy = Strategy(**{**NEUTRAL, **fields, **split_values(layers, ((0,), (0,), (0,)))})
    found = estimate(context, strategy)
    return Plan(context=context, strategy=strategy, estimate=found, is_optimal=False)


@pytest.fixture
def replicas(context_of: Contexts) -> Exchanges:
    context = context_of(
        framework="accelerate", profile="ddp", cluster="4xaws-p3dn.24xlarge", precision="fp16"
    )
    context = replace(context, job=replace(context.job, global_batch=32))
    return exchanges(plan_of(context, dp=32))


def way_of(found: Exchanges, name: str) -> Way:
    return next(way for way in found.ways if way.exchange.name == name)


def test_every_way_is_priced_beside_the_plans_own(replicas: Exchanges) -> None:
    assert [way.exchange.name for way in replicas.ways] == ["plain", *METHODS]
    assert replicas.num_replicas == 32
    for way in replicas.ways:
        assert way.iter_time_s is not None
        assert way.sent_bytes is not None
        assert not way.why_not


def test_the_plans_own_way_has_the_plans_time(replicas: Exchanges) -> None:
    assert replicas.ways[0].iter_time_s == replicas.plan.estimate.iter_time_s


def test_starts_are_profiles_that_have_the_way_and_the_stage(replicas: Exchanges) -> None:
    assert ("accelerate", "ddp") in way_of(replicas, "powersgd").starts
    assert ("accelerate", "ddp") in way_of(replicas, "local").starts
    assert ("deepspeed", "trainer-2023") in way_of(replicas, "onebit-adam").starts
    for name in ("topk", "int8", "async-server", "diloco"):
        assert way_of(replicas, name).starts == ()


def test_an_asynchronous_server_hides_behind_computation_or_is_the_pace(
    replicas: Exchanges,
) -> None:
    way, plain = way_of(replicas, "async-server"), replicas.ways[0]
    assert way.iter_time_s is not None
    assert plain.iter_time_s is not None
    alone_s = plain.iter_time_s - (plain.exposed_s or 0.0)
    assert way.iter_time_s == pytest.approx(alone_s + (way.exposed_s or 0.0))


def test_states_sharded_over_all_of_dp_have_no_other_exchange(context_of: Contexts) -> None:
    context = context_of(framework="torchtitan", cluster="1xdgx-h100")
    context = replace(context, job=replace(context.job, global_batch=8))
    found = exchanges(plan_of(context, dp=8, zero_stage=3))
    assert all(way.why_not for way in found.ways[1:])
    assert found.ways[0].why_not == ""


@pytest.fixture
def sites(context_of: Contexts, tmp_path: Path) -> Context:
    file = tmp_path / "sites.yaml"
    file.write_text(SITES)
    context = context_of(model="llama3-8b", framework="torchtitan", seq_len=8192)
    job = replace(context.job, global_batch=1024)
    return replace(context, job=job, cluster=load_cluster(str(file)))


def test_two_sites_are_a_tenth_of_a_gigabit_a_gpu_apart(sites: Context) -> None:
    between = sites.cluster.levels[-1].achieved_bytes_per_s
    of_link = 10e9 / 8 * sites.cluster.levels[-1].efficiency_fraction
    assert 64 * between == pytest.approx(of_link)


@pytest.mark.parametrize("every", [100, 500])
def test_diloco_between_sites_divides_what_crosses_the_link(sites: Context, every: int) -> None:
    layout = {"dp": 128, "dp_replicate": 2, "zero_stage": 2, "num_micro_batches": 8}
    plain = plan_of(sites, **layout).estimate
    traits = with_change(sites.traits, read_exchange(f"diloco:every={every}"))
    diloco = plan_of(replace(sites, traits=traits), **layout).estimate
    shard_bytes = 8.03e9 * 4 / 64
    rate = sites.cluster.levels[-1].achieved_bytes_per_s
    latency_s = 291 * 2 * 10e-3  # of every tensor, there and back
    expected_s = (shard_bytes / rate + latency_s) / every
    assert diloco.time["gradient_exchange"].exposed_s == pytest.approx(expected_s, rel=0.01)
    assert diloco.iter_time_s < plain.iter_time_s - 0.5 * shard_bytes / rate
    grown = diloco.memory.items["optimizer.gradient_exchange"]
    assert grown == pytest.approx(8.03e9 * 8 / 64, rel=0.01)
