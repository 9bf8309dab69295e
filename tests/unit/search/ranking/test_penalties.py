"""Penalties and steps of simplicity: factors of at least 1, over what a strategy uses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contexts import context_of, strategy_of

from planner.cost.context import Context
from planner.frameworks.registry import FRAMEWORKS
from planner.search.ranking.penalties import (
    PENALTIES,
    SIMPLICITY,
    TIE_FRACTION,
    UNPUBLISHED,
    degree_uses,
    evidence_penalty,
    factor_of,
    penalties_of,
    policy_penalty,
    uneven_penalty,
)
from planner.spec.strategy import LAYER_POLICY_NAMES


def context_for(model: str = "llama3-8b", cluster: str = "2xdgx-h100", **given: Any) -> Context:
    given = {"global_batch": 512, "seq_len": 4096, **given}
    context = context_of(model=model, cluster=cluster, **given)
    return replace(context, ranking="simplicity")


def factor(name: str) -> float:
    """Of the penalty and the steps of a mechanism."""
    return factor_of(context_for(), name)


PLAIN = strategy_of(dp=16, num_micro_batches=32, layers_per_stage=(32,))


def of(context: Context, **changes: object) -> float:
    return float(evidence_penalty(context, replace(PLAIN, **changes).columns())[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_plain_data_parallelism_has_none(framework: str) -> None:
    context = context_for(framework=framework)
    stage = min(context.traits.support.zero_stages)
    assert of(context, zero_stage=stage) == 1.0


def test_every_entry_counts_and_says_why() -> None:
    for name, penalty in PENALTIES.items():
        assert penalty.factor > 1.0, name
        assert penalty.reason, name
        # What has been run has its own figure; all else the error of published ratios.
        assert penalty.factor == UNPUBLISHED or penalty.num_runs, name
    for name, simplicity in SIMPLICITY.items():
        assert simplicity.steps > 0.0, name
        assert simplicity.reason, name


def test_the_three_rankings_weigh_nothing_penalties_and_simplicity() -> None:
    context = context_for()
    by_time, by_evidence = (replace(context, ranking=each) for each in ("time", "evidence"))
    assert factor_of(by_time, "optimizer_offload") == 1.0
    penalty = PENALTIES["optimizer_offload"].factor
    assert factor_of(by_evidence, "optimizer_offload") == pytest.approx(penalty)
    steps = SIMPLICITY["optimizer_offload"].steps
    expected = penalty * (1.0 + TIE_FRACTION) ** steps
    assert factor_of(context, "optimizer_offload") == pytest.approx(expected)
    assert factor_of(by_evidence, "uneven_stages") == 1.0


SHARDED, TITAN, SPEED = {"zero_stage": 3}, {"framework": "torchtitan"}, {"framework": "deepspeed"}
# Where it is asked, what differs from PLAIN, and how often each mechanism counts.
USES: tuple[tuple[dict[str, Any], dict[str, object], dict[str, int]], ...] = (
    ({}, {"offload": "optimizer:host"}, {"optimizer_offload": 1}),
    ({}, {"offload": "optimizer:host", "offload_percent": 25}, {"optimizer_offload": 1}),
    (
        {},
        {"offload": "optimizer+parameters:nvme", **SHARDED},
        {
            "optimizer_offload": 1,
            "parameter_offload": 1,
            "nvme": 1,
            "sharded_weights": 1,
            "weights_across_domains": 1,
        },
    ),
    ({}, {"dp": 8, **SHARDED}, {"sharded_weights": 1}),
    (SPEED, {**SHARDED, "dp_replicate": 2}, {"sharded_weights": 1, "hybrid_sharding": 1}),
    ({}, {"zero_stage": 2}, {"sharded_gradients": 1}),
    ({}, {"pp": 2, "vpp": 8}, {"virtual_stages": 3, "pipeline_parallel": 1}),
    ({}, {"tp": 8, "sequence_parallel": True}, {"tensor_parallel": 3}),
    ({}, {"tp": 2}, {"tensor_parallel": 1, "no_sequence_parallel": 1}),
    (
        {},
        {"tp": 16, "sequence_parallel": True},
        {"tensor_parallel": 4, "tensor_parallel_across_domains": 1},
    ),
    # 4,096 tokens in pieces of 1,024: half of 16,384 four times, of 4,096 twice.
    ({}, {"cp": 4}, {"context_parallel": 2, "small_context_pieces": 4, "short_context_pieces": 2}),
    # Long pieces cost their ranks alone.
    ({"seq_len": 65536}, {"cp": 4}, {"context_parallel": 2}),
    ({}, {"micro_batch": 8}, {}),
    ({}, {"micro_batch": 32}, {"large_micro_batch": 2}),
    # A long sequence is no large micro-batch.
    ({"seq_len": 131072}, {"micro_batch": 1}, {}),
    ({"seq_len": 131072}, {"micro_batch": 2}, {"large_micro_batch": 3}),
    ({}, {"dp_replicate": 2}, {"hybrid_sharding": 1}),
    ({}, {"placement": "tp-cp-ep-pp-dp"}, {"other_placement": 1}),
    ({}, {"pp": 4, "schedule": "zb-h1"}, {"split_backward": 1, "pipeline_parallel": 2}),
    ({}, {"pp": 4, "schedule": "gpipe"}, {"pipeline_parallel": 2}),
    ({}, {"pp": 8}, {"pipeline_parallel": 3}),
    # 16 ranks are two H100 nodes, and a part of one NVL72 rack; the domain holds the tp ranks too.
    ({"cluster": "4xgb200-nvl72"}, SHARDED, {"sharded_weights": 1}),
    ({}, SHARDED, {"sharded_weights": 1, "weights_across_domains": 1}),
    (
        {},
        {"dp": 4, "tp": 4, "sequence_parallel": True, **SHARDED},
        {
            "sharded_weights": 1,
            "weights_across_domains": 1,
            "tensor_parallel": 2,
            "tensor_parallel_beside_zero": 1,
        },
    ),
    # Weights shared by many ranks; frameworks that always share them are not charged for it.
    (SPEED, {"dp": 192, **SHARDED}, {"sharded_weights": 1}),
    (SPEED, {"dp": 768, **SHARDED}, {"sharded_weights": 1, "weights_over_many_ranks": 2}),
    (SPEED, {"dp": 2048}, {}),
    (TITAN, {"dp": 512, **SHARDED}, {}),
    (TITAN, {"dp": 2048, **SHARDED}, {"full_sharding_over_many_ranks": 2}),
    (TITAN, {"dp": 2048, **SHARDED, "dp_replicate": 4}, {"hybrid_sharding": 1}),
    # 128 experts over ep ranks, 32 of them are the most in a recipe.
    *(
        ({"model": "qwen3-30b-a3b"}, {"ep": ep}, {"many_local_experts": doublings, **beside})
        for ep, doublings, beside in (
            (1, 2, {"experts_not_spread": 1, "few_expert_ranks": 3}),
            (2, 1, {"few_expert_ranks": 2}),
            (8, 0, {}),
            (64, 0, {}),
        )
    ),
    ({"model": "deepseek-v3"}, {"ep": 256}, {"many_expert_ranks": 2}),
    ({"seq_len": 2**19}, {"cp": 32}, {"context_parallel": 5, "many_context_ranks": 1}),
    (
        {},
        {"pp": 32, "tp": 4, "sequence_parallel": True},
        {
            "pipeline_parallel": 5,
            "tensor_parallel": 2,
            "deep_pipeline": 1,
            "deep_pipeline_with_small_tensor_parallel": 1,
        },
    ),
    (
        TITAN,
        {"tp": 8, "sequence_parallel": True, **SHARDED},
        {"tensor_parallel": 3, "tensor_parallel_under_fsdp": 1},
    ),
)


@pytest.mark.parametrize(("where", "changes", "parts"), USES)
def test_what_a_strategy_uses_is_multiplied(
    where: dict[str, Any], changes: dict[str, object], parts: dict[str, int]
) -> None:
    expected = np.prod([factor(name) ** times for name, times in parts.items()])
    assert of(context_for(**where), **changes) == pytest.approx(expected)


def test_nobody_cuts_short_sequences_or_weights_under_frameworks_that_shard_them() -> None:
    titan, deepspeed = (context_for(framework=name) for name in ("torchtitan", "deepspeed"))
    penalties = penalties_of(titan, replace(PLAIN, cp=2, dp=8, zero_stage=3))
    assert set(penalties) == {"context_parallel_under_fsdp", "short_context_pieces"}
    long = replace(titan, job=replace(titan.job, seq_len=16384))
    assert penalties_of(long, replace(PLAIN, cp=2, dp=8, zero_stage=3)) == {}
    beside = {"tensor_parallel_beside_zero": UNPUBLISHED}
    assert penalties_of(deepspeed, replace(PLAIN, tp=2, dp=8)) == pytest.approx(beside)
    half = penalties_of(titan, replace(PLAIN, tp=2, dp=8, zero_stage=3))
    assert half == pytest.approx({"small_tensor_parallel_under_fsdp": UNPUBLISHED})
    assert penalties_of(titan, replace(PLAIN, tp=8, dp=2, zero_stage=3)) == {}
    assert penalties_of(context_for(), replace(PLAIN, cp=2, dp=4, zero_stage=3)) == penalties


def test_offloaded_activations_are_cheap_on_a_fast_host_link_only() -> None:
    over_pcie = policy_penalty("offloaded", None, context_for(), partial=True)
    coherent = context_for(cluster="2xgb200-nvl72")
    over_c2c = policy_penalty("offloaded", None, coherent, partial=True)
    assert over_pcie == factor("activation_offload")
    assert over_c2c == factor("activation_offload_fast_link") < over_pcie
    assert policy_penalty("offloaded", None, coherent) > over_c2c


def test_policies_are_ordered_by_simplicity() -> None:
    context = context_for()

    def factor_under(
        kind: str, modules: tuple[str, ...] | None = None, *, partial: bool = False
    ) -> float:
        return policy_penalty(kind, modules, context, partial=partial)

    own = context.traits.recompute.selected
    assert factor_under("none") == 1.0
    assert factor_under("selective") == factor_under("selective", own)
    assert factor_under("selective", own) < factor_under("selective", ("mlp",))
    assert factor_under("selective", ("mlp",)) < factor_under("selective", ("mlp", "layernorm"))
    assert factor_under("full", partial=True) < factor_under("full")
    assert all(factor_under(kind) >= 1.0 for kind in LAYER_POLICY_NAMES)


def test_stages_of_different_numbers_of_layers_count_but_of_a_prime_number() -> None:
    context = context_for()
    assert uneven_penalty(context, 32) == factor("uneven_stages")
    assert uneven_penalty(context, 61) == 1.0


def test_stages_of_no_power_of_two_count_less_where_they_divide_gpus_and_layers() -> None:
    for nodes, pp, times in ((2, 6, 1.0), (3, 6, 0.3), (5, 5, 1.0), (3, 4, 0.0)):
        context = context_for(model="gpt3-175b", cluster=f"{nodes}xdgx-h100")  # 96 layers
        uses = dict(degree_uses(context, replace(PLAIN, pp=pp).columns()))
        assert float(uses["odd_degrees"][0]) == times


def test_what_a_plan_uses_makes_up_its_penalty() -> None:
    context = context_for()
    plan = replace(
        PLAIN,
        dp=4,
        tp=2,
        cp=2,
        zero_stage=3,
        dp_replicate=2,
        offload="optimizer:host",
        micro_batch=32,
    )
    found = penalties_of(context, plan)
    assert min(found.values()) > 1.0
    assert "replicated_shards" in found
    by_evidence = replace(context, ranking="evidence")
    assert np.prod(list(found.values())) == pytest.approx(
        float(evidence_penalty(by_evidence, plan.columns())[0])
    )
    assert penalties_of(context, PLAIN) == {}
    # Recomputation is a matter of simplicity; sending activations over PCIe is not.
    assert penalties_of(context, replace(PLAIN, recompute_layers_per_stage=(32,))) == {}
    offloaded = replace(PLAIN, offloaded_layers_per_stage=(5,))
    assert penalties_of(context, offloaded) == pytest.approx({"activation_offload": UNPUBLISHED})
