"""Why a layout is not chosen: verdicts, items that add up."""

from dataclasses import replace

import pytest
from contexts import context_of, plan_of

from planner.answers.evidence import ratio_error
from planner.answers.plan import answer
from planner.answers.why import WhyAnswer, speed, usd_per_token, why
from planner.cost.context import Context
from planner.query.resolve import Case
from planner.search.ranking.penalties import PENALTIES
from planner.search.space.narrow import read_narrowing
from planner.units import GIB


def asked(context: Context, **options: list[str]) -> WhyAnswer:
    return why(Case(contexts=(context,), narrowing=read_narrowing(**options)))


@pytest.fixture(scope="module")
def context() -> Context:
    return context_of(global_batch=16, hbm_bytes=8.0 * GIB)


@pytest.fixture(scope="module")
def slower(context: Context) -> WhyAnswer:
    return asked(context, fix=["tp=8"])


def test_both_plans_are_those_of_the_search(context: Context, slower: WhyAnswer) -> None:
    assert slower.verdict == "slower"
    assert slower.best.strategy == answer([context], top=1).plans[0].strategy
    assert slower.asked.strategy.tp == 8
    assert slower.comparison.slower_by > 0.0
    assert slower.comparison.layout["tp"] == ("8", str(slower.best.strategy.tp))


def test_items_add_up_to_the_difference_and_descend(slower: WhyAnswer) -> None:
    items = slower.comparison.time
    total = slower.asked.estimate.iter_time_s - slower.best.estimate.iter_time_s
    assert sum(item.difference_s for item in items) == pytest.approx(total)
    assert sum(item.asked_s for item in items) == pytest.approx(slower.asked.estimate.iter_time_s)
    differences = [item.difference_s for item in items]
    assert differences == sorted(differences, reverse=True)


def changed(answer: WhyAnswer, factor: float, **strategy: object) -> WhyAnswer:
    estimate = answer.best.estimate
    made = replace(estimate, iter_time_s=estimate.iter_time_s * factor)
    layout = replace(answer.best.strategy, **(strategy or {"placement": "other"}))  # type: ignore[arg-type]
    return replace(
        answer, asked=replace(answer.best, strategy=layout, estimate=made, weighed_s=None)
    )


def test_times_within_rounding_tie(slower: WhyAnswer) -> None:
    made = [changed(slower, factor).verdict for factor in (1.0 + 1e-6, 1.0 + 1e-3, 1.0 - 1e-3)]
    assert made == ["ties", "slower", "faster"]


def test_the_sign_is_that_of_the_times_whatever_the_gpus(slower: WhyAnswer) -> None:
    # 499 ms on 8 GPUs against 906 ms on 16 was "44.85 % slower".
    half = changed(slower, 499.0 / 906.0, dp=slower.best.strategy.dp // 2)
    assert half.verdict == "faster"
    assert half.comparison.slower_by == pytest.approx(-0.4492, abs=1e-4)
    assert half.comparison.gpu_time_factor == pytest.approx(0.5 * 499.0 / 906.0)
    longer = changed(slower, 1.9, dp=slower.best.strategy.dp // 2)
    assert longer.verdict == "slower"
    assert longer.comparison.gpu_time_factor == pytest.approx(0.95)


def test_what_evidence_weighs_down_is_ranked_behind_though_faster(slower: WhyAnswer) -> None:
    made = changed(slower, 0.97)
    assert made.asked is not None
    assert made.best is not None
    asked, best = made.asked, replace(made.best, weighed_s=None)

    def weighed(factor: float) -> WhyAnswer:
        ranked = replace(asked, weighed_s=factor * asked.estimate.iter_time_s)
        return replace(made, best=best, asked=ranked)

    assert weighed(1.05).verdict == "ranked behind"
    assert weighed(1.02).verdict == "faster"
    offloaded = changed(slower, 0.97, offload="optimizer:host")
    (penalty,) = [one for one in offloaded.comparison.penalties if one.name == "optimizer_offload"]
    assert (penalty.asked, penalty.best) == (PENALTIES["optimizer_offload"].factor, 1.0)


def test_differences_within_the_model_s_error_are_none(slower: WhyAnswer) -> None:
    error = changed(slower, 1.0, micro_batch=64).comparison.ratio_error
    assert (error.kind, 0.0 < error.typical < error.widest) == ("micro-batch", True)
    for factor in (1.0 + error.typical, 1.0 / (1.0 + error.typical)):
        nearer = 1.0 + 0.99 * (factor - 1.0)
        assert changed(slower, nearer, micro_batch=64).comparison.within_error
        farther = 1.0 + 1.01 * (factor - 1.0)
        assert not changed(slower, farther, micro_batch=64).comparison.within_error
    assert error.may_reverse(1.0 + 0.99 * error.widest)
    assert not error.may_reverse(1.0 + 1.01 * error.widest)


@pytest.fixture(scope="module")
def piped() -> WhyAnswer:
    """Two pipelines of four stages of a model with a large head."""
    model = replace(context_of(seq_len=1024).model, num_layers=16, vocab_size=128_000)
    context = context_of(model=model, global_batch=32)
    return asked(context, fix=["pp=4,tp=2"])


def with_pp(answer: WhyAnswer, fixed: str) -> WhyAnswer:
    other = asked(answer.case.context, fix=[fixed])
    return replace(answer, best=other.asked)


def test_whole_pipelines_are_compared_not_their_slowest_stages(piped: WhyAnswer) -> None:
    # The head is the same work in both: its share of a pipeline's mean stage cannot differ by
    # more than the stages do; the slowest stage of one may hold it and that of the other not.
    other = with_pp(piped, "pp=2,tp=2")
    assert (other.asked.strategy.pp, other.best.strategy.pp) == (4, 2)
    assert other.comparison.stages == ()
    items = {item.name: item for item in other.comparison.time}
    head = items["compute.head_and_loss"]
    gpu_time = head.asked_s * other.asked.strategy.num_gpus
    assert gpu_time == pytest.approx(head.best_s * other.best.strategy.num_gpus, rel=0.05)
    total = other.asked.estimate.iter_time_s - other.best.estimate.iter_time_s
    assert sum(item.difference_s for item in items.values()) == pytest.approx(total)


def test_a_stage_is_set_against_the_same_stage(piped: WhyAnswer) -> None:
    other = with_pp(piped, "pp=4,tp=1")
    shown = {stage.stage: stage for stage in other.comparison.stages}
    assert {0, 3} <= set(shown)
    assert {other.asked.estimate.slowest_stage, other.best.estimate.slowest_stage} <= set(shown)
    for number, stage in shown.items():
        assert stage.asked_layers == other.asked.strategy.layers_per_stage[number]
        names = {item.name: item for item in stage.items}
        assert ("compute.head_and_loss" in names) == (number == 3)
        assert ("compute.embedding" in names) == (number == 0)
        own = sum(item.exposed_s for item in other.asked.estimate.stage_time(number).values())
        assert stage.asked_s == pytest.approx(own)
        assert stage.asked_s <= other.asked.estimate.iter_time_s


def test_what_does_not_fit_and_what_is_illegal_is_explained() -> None:
    context = context_of(global_batch=8, hbm_bytes=2.5 * GIB)
    found = asked(context, fix=["tp=1,pp=1,zero=0"], forbid=["offload"])
    assert found.verdict == "does not fit"
    assert found.best is not None
    assert found.nothing.missing is not None
    illegal = asked(context, fix=["tp=3"])
    assert illegal.verdict == "illegal"
    said = illegal.nothing.forbidding.violations["tp_divides_heads"]
    assert said == ("tp 3 does not divide 16 heads",)
    remedies = {one.change.words: one for one in illegal.nothing.remedies}
    dropped = remedies["without --fix tp=3"]
    assert dropped.plan.strategy == illegal.best.strategy


def test_layouts_of_one_job_are_known_as_published_pairs_are() -> None:
    context = context_of(model="llama3-8b", cluster="1xdgx-h100", global_batch=64)
    first, second = plan_of(context, tp=2), plan_of(context, tp=2, micro_batch=2)
    found = speed(first, second)
    width = 1.0 + ratio_error(("micro-batch",)).widest
    assert found.value == pytest.approx(first.estimate.iter_time_s / second.estimate.iter_time_s)
    assert (found.lower, found.upper) == pytest.approx((found.value / width, found.value * width))
    back = speed(second, first)
    assert back.value * found.value == pytest.approx(1.0)
    assert back.lower * found.upper == pytest.approx(1.0)


def test_other_jobs_are_compared_by_tokens_and_err_independently() -> None:
    context = context_of(model="llama3-8b", cluster="1xdgx-h100", global_batch=64)
    doubled = replace(context, job=replace(context.job, seq_len=2 * context.job.seq_len))
    first, second = plan_of(context, tp=2), plan_of(doubled, tp=2)
    found = speed(first, second)
    rates = [plan.estimate.tokens_per_s for plan in (first, second)]
    assert found.value == pytest.approx(rates[1] / rates[0])
    alone = first.estimate.iter_time_s_upper / first.estimate.iter_time_s
    assert alone < found.upper / found.value < alone * alone


def test_a_token_costs_its_share_of_the_nodes() -> None:
    plan = plan_of(context_of(model="llama3-8b", cluster="2xdgx-h100", global_batch=64), tp=2)
    per_hour = plan.context.cluster.node.usd_per_hour
    assert per_hour
    found = usd_per_token(plan)
    assert found == pytest.approx(2 * per_hour / 3600.0 / plan.estimate.tokens_per_s)
