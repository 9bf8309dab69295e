"""Penalties: factors of at least 1, multiplied over what a strategy uses."""

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.frameworks.registry import FRAMEWORKS, load_traits
from planner.search.ranking.penalties import (
    PENALTIES,
    degree_penalty,
    evidence_penalty,
    factor_of,
    penalties_of,
    policy_penalty,
    split_penalty,
)
from planner.spec.job import JobSpec
from planner.spec.strategy import LAYER_POLICY_NAMES, OFFLOAD_CODES, Strategy, StrategyColumns


def context_for(
    model: str = "llama3-8b", cluster: str = "2xdgx-h100", framework: str = "megatron"
) -> Context:
    return Context(
        model=load_model(model),
        job=JobSpec(global_batch=512, seq_len=4096, precision="bf16"),
        cluster=load_cluster(cluster),
        traits=load_traits(framework),
    )


PLAIN = Strategy(
    dp=16,
    tp=1,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=1,
    zero_stage=1,
    micro_batch=1,
    num_micro_batches=32,
    sequence_parallel=False,
    offload="none",
    layers_per_stage=(32,),
    selective_layers_per_stage=(0,),
    recompute_layers_per_stage=(0,),
)


def of(context: Context, **changes: object) -> float:
    return float(evidence_penalty(context, replace(PLAIN, **changes).columns())[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_plain_data_parallelism_has_none(framework: str) -> None:
    context = context_for(framework=framework)
    stage = min(context.traits.support.zero_stages)
    assert of(context, zero_stage=stage) == 1.0


def test_every_factor_is_at_least_one_and_says_why() -> None:
    for name, entry in PENALTIES.items():
        assert entry.factor >= 1.0, name
        assert entry.reason, name
        assert (entry.basis == "prior") == (not entry.kind), name


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"offload": "optimizer:host"}, {"optimizer_offload": 1}),
        ({"offload": "optimizer:host", "offload_percent": 25}, {"optimizer_offload": 1}),
        (
            {"offload": "optimizer+parameters:nvme", "zero_stage": 3},
            {
                "optimizer_offload": 1,
                "parameter_offload": 1,
                "nvme": 1,
                "sharded_weights": 1,
                "weights_across_domains": 1,
            },
        ),
        ({"dp": 8, "zero_stage": 3}, {"sharded_weights": 1}),
        ({"zero_stage": 3, "dp_replicate": 2}, {"sharded_weights": 1, "hybrid_sharding": 1}),
        ({"zero_stage": 2}, {"sharded_gradients": 1}),
        ({"pp": 2, "vpp": 8}, {"virtual_stages": 3}),
        ({"tp": 8, "sequence_parallel": True}, {"tensor_parallel": 3}),
        ({"tp": 2}, {"tensor_parallel": 1, "no_sequence_parallel": 1}),
        (
            {"tp": 16, "sequence_parallel": True},
            {"tensor_parallel": 4, "tensor_parallel_across_domains": 1},
        ),
        # 4,096 tokens in pieces of 1,024: half of 4,096 twice.
        ({"cp": 4}, {"context_parallel": 2, "short_context_pieces": 2}),
        ({"micro_batch": 8}, {}),
        ({"micro_batch": 32}, {"large_micro_batch": 2}),
        ({"dp_replicate": 2}, {"hybrid_sharding": 1}),
        ({"placement": "tp-cp-ep-pp-dp"}, {"other_placement": 1}),
        ({"pp": 4, "schedule": "zb-h1"}, {"split_backward": 1}),
        ({"pp": 4, "schedule": "gpipe"}, {}),
    ],
)
def test_what_a_strategy_uses_is_multiplied(
    changes: dict[str, object], parts: dict[str, int]
) -> None:
    expected = np.prod([factor_of(name) ** times for name, times in parts.items()])
    assert of(context_for(), **changes) == pytest.approx(expected)


def test_a_long_sequence_is_no_large_micro_batch() -> None:
    context = context_for()
    context = replace(context, job=replace(context.job, seq_len=131072))
    assert of(context, micro_batch=1) == 1.0
    assert of(context, micro_batch=2) == pytest.approx(factor_of("large_micro_batch") ** 3)


def test_long_pieces_of_context_cost_their_ranks_alone() -> None:
    context = context_for()
    context = replace(context, job=replace(context.job, seq_len=16384))
    ranks = factor_of("context_parallel")
    assert of(context, cp=4) == pytest.approx(ranks**2)
    assert of(context, cp=8) == pytest.approx(ranks**3 * factor_of("short_context_pieces"))


def test_weights_inside_one_domain_do_not_cross_it() -> None:
    """16 ranks are two H100 nodes, and a part of one NVL72 rack."""
    sharded = factor_of("sharded_weights")
    assert of(context_for(cluster="4xgb200-nvl72"), zero_stage=3) == pytest.approx(sharded)
    across = sharded * factor_of("weights_across_domains")
    assert of(context_for(), zero_stage=3) == pytest.approx(across)
    # The domain holds the tp ranks beside them.
    beside = of(context_for(), dp=4, tp=4, sequence_parallel=True, zero_stage=3)
    assert beside == pytest.approx(across * factor_of("tensor_parallel") ** 2)


def test_fully_sharded_frameworks_are_not_charged_for_what_they_are() -> None:
    titan = context_for(framework="torchtitan")
    assert of(titan, zero_stage=3) == 1.0
    assert of(context_for(framework="deepspeed"), zero_stage=3) > 1.0


def test_weights_shared_by_many_ranks_count_more() -> None:
    deepspeed, titan = (context_for(framework=name) for name in ("deepspeed", "torchtitan"))
    sharded = factor_of("sharded_weights")
    assert of(deepspeed, dp=192, zero_stage=3) == pytest.approx(sharded)
    assert of(deepspeed, dp=768, zero_stage=3) == pytest.approx(
        sharded * factor_of("weights_over_many_ranks") ** 2
    )
    assert of(deepspeed, dp=2048, zero_stage=1) == 1.0
    most = factor_of("full_sharding_over_many_ranks")
    assert of(titan, dp=512, zero_stage=3) == 1.0
    assert of(titan, dp=2048, zero_stage=3) == pytest.approx(most**2)
    hybrid = of(titan, dp=2048, zero_stage=3, dp_replicate=4)
    assert hybrid == pytest.approx(factor_of("hybrid_sharding"))


@pytest.mark.parametrize(("ep", "doublings"), [(1, 2), (2, 1), (4, 0), (16, 0), (64, 0)])
def test_experts_of_a_rank_beyond_any_recipe_count(ep: int, doublings: int) -> None:
    # 128 experts over ep ranks, 32 of them are the most in a recipe.
    expected = factor_of("many_local_experts") ** doublings
    assert of(context_for("qwen3-30b-a3b"), ep=ep) == pytest.approx(expected)


def test_expert_ranks_beyond_any_run_count_once_per_doubling() -> None:
    found = of(context_for("deepseek-v3"), ep=256)
    assert found == pytest.approx(factor_of("many_expert_ranks") ** 2)


def test_columns_are_the_same_as_one_by_one() -> None:
    context = context_for()
    strategies = [
        replace(PLAIN, tp=tp, vpp=vpp, offload=offload)
        for tp in (1, 8)
        for vpp in (1, 4)
        for offload in OFFLOAD_CODES
    ]
    together = evidence_penalty(
        context, StrategyColumns.concatenate([s.columns() for s in strategies])
    )
    alone = [float(evidence_penalty(context, s.columns())[0]) for s in strategies]
    assert together.tolist() == pytest.approx(alone)
    assert (together >= 1.0).all()
    degrees = degree_penalty(
        context, StrategyColumns.concatenate([s.columns() for s in strategies])
    )
    assert (degrees <= together).all()
    assert degrees[0] == together[0] == 1.0
    assert degrees[-1] == pytest.approx(
        factor_of("tensor_parallel") ** 3
        * factor_of("virtual_stages") ** 2
        * factor_of("no_sequence_parallel")
    )


def test_offloaded_activations_are_cheap_on_a_fast_host_link_only() -> None:
    over_pcie = policy_penalty("offloaded", None, context_for())
    over_c2c = policy_penalty("offloaded", None, context_for(cluster="2xgb200-nvl72"))
    assert over_pcie == factor_of("activation_offload")
    assert over_c2c == factor_of("activation_offload_fast_link") < over_pcie


def test_policies_are_ordered_by_simplicity() -> None:
    context = context_for()

    def factor(
        kind: str, modules: tuple[str, ...] | None = None, *, partial: bool = False
    ) -> float:
        return policy_penalty(kind, modules, context, partial=partial)

    own = context.traits.recompute.selected
    assert factor("none") == 1.0
    assert factor("selective") == factor("selective", own)
    assert factor("selective", own) < factor("selective", ("mlp",))
    assert factor("selective", ("mlp",)) < factor("selective", ("mlp", "layernorm"))
    assert factor("full") < factor("full", partial=True)
    assert all(factor(kind) >= 1.0 for kind in LAYER_POLICY_NAMES)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed are none, selective, full, offloaded"):
        policy_penalty("some", None, context_for())


def test_stages_of_different_numbers_of_layers_count() -> None:
    assert split_penalty((8, 8, 8)) == 1.0
    assert split_penalty((8,)) == 1.0
    assert split_penalty((8, 7)) == split_penalty((7, 8, 7)) == 1.0
    assert split_penalty((8, 8, 7, 7), vpp=1) == factor_of("uneven_stages")
    assert split_penalty((7, 8)) == split_penalty((8, 7, 8)) == factor_of("uneven_stages")
    assert split_penalty((3, 3), vpp=2) == factor_of("uneven_stages")


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
    assert np.prod(list(found.values())) == pytest.approx(
        float(evidence_penalty(context, plan.columns())[0])
    )
    assert penalties_of(context, PLAIN) == {}
    assert penalties_of(context, replace(PLAIN, recompute_layers_per_stage=(32,))) == {
        "full": policy_penalty("full", None, context)
    }
    assert penalties_of(context, replace(PLAIN, recompute_layers_per_stage=(5,))) == {
        "full": policy_penalty("full", None, context, partial=True)
    }
