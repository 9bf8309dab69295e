"""The smallest size that does a job: against a search at every size, and the walk between."""

from dataclasses import replace
from functools import partial

import pytest
from contexts import context_of

from planner.answers.base import Deadline, Plan
from planner.answers.nothing_fits import nothing_fits
from planner.answers.scale import fastest_on_all
from planner.answers.size import ClusterOf, Sizer, Sizing, nearest_sizes, on_cluster
from planner.catalog.clusters import load_cluster_of
from planner.errors import NothingFitsError
from planner.query.objectives import JobLimits
from planner.query.resolve import Case
from planner.spec.cluster import ClusterSpec

TOKENS = 10**11
CLUSTER_OF = partial(load_cluster_of, "dgx-h100")
ANY_TIME = JobLimits(total_tokens=TOKENS, deadline_s=1e12)


@pytest.fixture(scope="module")
def case() -> Case:
    context = context_of(model="llama3-8b", cluster="8xdgx-h100", global_batch=48, seq_len=4096)
    return Case(contexts=(replace(context, job=replace(context.job, total_tokens=TOKENS)),))


def sized(
    case: Case,
    limits: JobLimits = ANY_TIME,
    cluster_of: ClusterOf = CLUSTER_OF,
    larger: ClusterSpec | None = None,
) -> Sizing:
    sizer = Sizer(limits=limits, cluster_of=cluster_of, deadline=Deadline())
    return sizer.sizing(case, larger)


@pytest.fixture(scope="module")
def all_sizes(case: Case) -> tuple[Plan, ...]:
    return sized(case).sizes


def size_for(case: Case, size: Plan, factor: float) -> Sizing:
    """The sizing with a deadline at ``factor`` times what a size takes."""
    return sized(case, replace(ANY_TIME, deadline_s=factor * size.span_s()))


def own_plan(case: Case, num_gpus: int, cluster_of: ClusterOf) -> Plan | None:
    return fastest_on_all(on_cluster(case, cluster_of(num_gpus))).plan


@pytest.mark.parametrize("row", [-1, -3])
def test_no_smaller_cluster_keeps_the_deadline(
    row: int, case: Case, all_sizes: tuple[Plan, ...]
) -> None:
    found = size_for(case, all_sizes[row], 1.02)
    chosen = found.chosen
    assert chosen.span_s() <= (found.limits.deadline_s or 0.0)
    for gpus in range(8, chosen.num_gpus, 8):
        plan = own_plan(case, gpus, CLUSTER_OF)
        assert plan is None or found.limits.missed_by(plan)


def test_a_deadline_nobody_keeps_names_the_fastest_and_a_larger_cluster(
    case: Case, all_sizes: tuple[Plan, ...]
) -> None:
    limits = replace(ANY_TIME, deadline_s=0.9 * all_sizes[-1].span_s())
    found = sized(case, limits, larger=CLUSTER_OF(512))
    assert found.chosen is None
    assert [size.num_gpus for size in found.nearest] == [all_sizes[-1].num_gpus]
    assert found.enough.num_gpus > 64
    assert not limits.missed_by(found.enough)
    assert sized(case, limits, larger=case.context.cluster).enough is None


def fake(size: Plan, gpus: int, iteration_s: float) -> Plan:
    strategy = replace(size.strategy, dp=gpus, tp=1, pp=1, cp=1)
    assert strategy.num_gpus == gpus
    return replace(
        size, strategy=strategy, estimate=replace(size.estimate, iter_time_s=iteration_s)
    )


def test_the_nearest_give_up_one_kind_of_limit(all_sizes: tuple[Plan, ...]) -> None:
    slow, fast = fake(all_sizes[0], 8, 8.0), fake(all_sizes[0], 64, 2.0)
    cost = slow.cost_usd()
    assert cost is not None
    limits = replace(ANY_TIME, deadline_s=1.1 * fast.span_s(), budget_usd=1.1 * cost)
    assert nearest_sizes([slow, fast], limits) == (slow, fast)
    without = replace(limits, deadline_s=0.9 * fast.span_s())
    assert nearest_sizes([slow, fast], without) == (slow,)
    neither = replace(without, budget_usd=0.9 * cost)
    assert nearest_sizes([slow, fast], neither) == (fast, slow)


@pytest.mark.parametrize(
    ("slowed", "others", "found"),
    [
        pytest.param({-4: 1.1}, 1.0, -3, id="slower there: walked past"),
        pytest.param({-5: 0.1}, 0.99, -5, id="a smaller one faster there: found"),
    ],
)
def test_a_size_is_judged_in_its_own_cluster(
    slowed: dict[int, float],
    others: float,
    found: int,
    case: Case,
    all_sizes: tuple[Plan, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factors = {all_sizes[row].num_gpus: factor for row, factor in slowed.items()}

    def own(_sizer: Sizer, _case: Case, num_gpus: int) -> Plan:
        plan = next(size for size in all_sizes if size.num_gpus == num_gpus)
        seconds = factors.get(num_gpus, others) * plan.estimate.iter_time_s
        return replace(plan, estimate=replace(plan.estimate, iter_time_s=seconds))

    monkeypatch.setattr(Sizer, "own_size", own)
    chosen = size_for(case, all_sizes[-4], 1.001).chosen
    assert chosen.num_gpus == all_sizes[found].num_gpus


@pytest.mark.parametrize("node", ["dgx-h100", "gb200-tray"])
def test_switched_networks_price_a_part_as_a_cluster_of_its_own(node: str, case: Case) -> None:
    cluster_of = partial(load_cluster_of, node)
    whole = on_cluster(case, cluster_of(128))
    for size in sized(whole, cluster_of=cluster_of).sizes:
        if size.num_gpus >= size.context.cluster.node.num_accelerators:
            own = own_plan(whole, size.num_gpus, cluster_of)
            assert own.estimate.iter_time_s == pytest.approx(size.estimate.iter_time_s, rel=1e-6)


def test_a_slice_of_a_torus_is_priced_as_it_stands(case: Case) -> None:
    cluster_of = partial(load_cluster_of, "tpu-v5e-pod")
    whole = on_cluster(case, cluster_of(256))
    size = next(size for size in sized(whole, cluster_of=cluster_of).sizes if size.num_gpus == 32)
    own = own_plan(whole, 32, cluster_of)
    assert own.estimate.iter_time_s < size.estimate.iter_time_s
    limits = replace(ANY_TIME, deadline_s=0.5 * (own.span_s() + size.span_s()))
    chosen = sized(whole, limits, cluster_of).chosen
    assert chosen.num_gpus == 32


def test_where_nothing_fits_the_error_says_what_would() -> None:
    context = context_of(model="llama3.1-405b", cluster="1xdgx-h100", global_batch=64)
    result = sized(Case(contexts=(context,)))
    assert result.sizes == ()
    assert result.chosen is None
    error = nothing_fits(result.case)
    assert isinstance(error, NothingFitsError)
    assert "of HBM per GPU" in str(error)
