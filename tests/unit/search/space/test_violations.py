"""What is said of a layout that breaks a rule names the cause, of several the one that holds."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.context import Context
from planner.search.space.legality import RULES
from planner.search.space.rule import GPUS
from planner.spec.model import MoeSpec
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES

Contexts = Callable[..., Context]
BY_NAME = {rule.name: rule for rule in RULES}
HOST, NVME = (OFFLOAD_CODES.index(code) for code in ("optimizer:host", "optimizer:nvme"))
OTHER_ORDER = PLACEMENT_NAMES.index("tp-cp-ep-pp-dp")
MOE = MoeSpec(num_experts=8, top_k=2, expert_ffn_size=512)


def said(name: str, context: Context, **row: int) -> str:
    """The words of a rule that the layout breaks indeed; degrees left out are 1."""
    rule = BY_NAME[name]
    row = {degree: 1 for degree in GPUS if degree in rule.needs} | row
    assert set(row) == set(rule.needs)
    legal = rule.is_legal(context, {key: np.array([value]) for key, value in row.items()})
    assert legal.tolist() == [False]
    return rule.words(context, row)


def under(context: Context, optimizer: dict[str, object], **support: object) -> Context:
    """The context with a framework and an optimizer that differ in this."""
    traits = context.traits
    changed = replace(
        traits,
        support=replace(traits.support, **support),
        optimizer=replace(traits.optimizer, **optimizer),
    )
    return replace(context, traits=changed)


def test_the_expert_mesh_and_the_ranks_that_it_does_not_take(context_of: Contexts) -> None:
    context = context_of(model="mixtral-8x7b")
    one = {"tp": 8, "cp": 1, "dp": 4, "ep": 64, "etp": 1}
    text = "tp 8 x dp 4 = 32 ranks of a stage: no multiple of ep 64"
    assert said("expert_mesh_fits", context, **one) == text
    two = {"tp": 2, "cp": 1, "dp": 16, "ep": 32, "etp": 2}
    text = "tp 2 x dp 16 = 32 ranks of a stage: no multiple of etp 2 x ep 32 = 64 expert ranks"
    assert said("expert_mesh_fits", context, **two) == text
    replicas = {"tp": 1, "cp": 2, "dp": 8, "ep": 8, "etp": 1, "dp_replicate": 4}
    text = "dp 8 / dp_replicate 4 leaves cp 2 x dp 2 = 4 ranks of a stage: no multiple of ep 8"
    assert said("replicas_divide_dp", context, **replicas) == text
    uneven = replicas | {"dp_replicate": 3}
    assert said("replicas_divide_dp", context, **uneven) == "dp_replicate 3 does not divide dp 8"


def test_where_a_framework_has_its_experts(context_of: Contexts, small_model: Contexts) -> None:
    def mesh(kind: str, **row: int) -> str:
        context = under(context_of(model="mixtral-8x7b"), {}, expert_mesh=kind)
        return said("expert_mesh_offered", context, **row)

    outside = mesh("inside_dp", tp=2, dp=4, ep=8, etp=2)
    assert outside == "ep 8 does not divide dp 4: the expert ranks of megatron lie inside it"
    whole = mesh("inside_dp", tp=2, dp=8, ep=8, etp=1)
    assert whole == "etp 1 with tp 2 and ep 8: megatron splits experts as the rest, etp 2"
    split = mesh("folded_whole", tp=2, dp=8, ep=8, etp=2)
    assert split == "etp 2 with ep 8: experts of megatron are whole there, etp 1"
    alone = mesh("folded_whole", tp=2, dp=8, ep=1, etp=1)
    assert alone == "etp 1 with tp 2: megatron splits experts as the rest, etp 2"
    dense = said("expert_mesh_offered", context_of(), tp=2, dp=8, ep=1, etp=1)
    assert dense == "etp 1 with tp 2: small has no experts, so that etp is tp"


def test_what_splits_experts_or_does_not(context_of: Contexts, small_model: Contexts) -> None:
    needs = {"mixtures_need_sequence_parallel": True, "splits_experts": "unbiased"}
    plain = under(context_of(model=small_model(moe=MOE)), {}, **needs)
    row = {"tp": 2, "etp": 2}
    text = "tp 2 without sequence parallelism: megatron splits mixtures only with it"
    assert said("tp_splits_experts", plain, **row, sequence_parallel=0) == text
    moe = replace(MOE, expert_bias=True)
    biased = under(context_of(model=small_model(moe=moe)), {}, **needs)
    text = "etp 2: the experts of small have biases, which megatron does not split"
    assert said("tp_splits_experts", biased, **row, sequence_parallel=1) == text
    whole = under(context_of(model=small_model(moe=MOE)), {}, **{**needs, "splits_experts": "no"})
    text = "etp 2: megatron splits no experts"
    assert said("tp_splits_experts", whole, **row, sequence_parallel=1) == text


def test_families_and_heads_that_are_not_split(context_of: Contexts, small_model: Contexts) -> None:
    context = context_of(model=small_model(num_heads=8, num_kv_heads=2, family="opt"))
    other = under(context, {}, tp_families=("llama3", "qwen3"))
    assert said("tp_fits_model", other, tp=2) == "tp 2 of opt: megatron splits llama3, qwen3"
    few = under(context, {}, tp_families=("any",), replicates_kv_heads=False)
    text = "tp 4 does not divide 2 key/value heads, and megatron does not replicate them"
    assert said("tp_fits_model", few, tp=4) == text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sliding_window": 512}, "has a window of 512 tokens"),
        ({"architecture": "encoder"}, "is an encoder"),
        ({"num_heads": 8, "num_kv_heads": 8, "extra_params_per_layer": 8}, "has attention sinks"),
    ],
)
def test_attention_that_is_not_plain(
    changes: dict[str, object], why: str, context_of: Contexts, small_model: Contexts
) -> None:
    context = under(context_of(model=small_model(**changes)), {}, cp_attention="causal")
    text = f"cp 2: megatron runs plain causal attention alone, and small {why}"
    assert said("cp_fits_attention", context, cp=2) == text


def test_biased_attention_is_not_split(context_of: Contexts, small_model: Contexts) -> None:
    context = under(context_of(model=small_model(position="alibi")), {}, cp_attention="any")
    text = "cp 2: megatron runs no biased attention, and small has alibi positions"
    assert said("cp_fits_attention", context, cp=2) == text


def test_tensor_parallelism_alone(context_of: Contexts) -> None:
    row = {"tp": 2, "cp": 1, "dp": 1, "dp_replicate": 1, "offload": HOST}
    never = under(context_of(), {}, tp_alone="no")
    given = "tp 2 with dp 1 and cp 1: one rank to shard states over, and megatron"
    assert said("states_have_ranks", never, **row) == f"{given} needs several beside tp"
    bare = under(context_of(), {}, tp_alone="without offload")
    text = f"{given} runs that only with nothing offloaded; given optimizer:host"
    assert said("states_have_ranks", bare, **row) == text
    given = "tp 2 with dp 2 / dp_replicate 2 and cp 1: one rank to shard states over, and megatron"
    replicas = row | {"dp": 2, "dp_replicate": 2, "offload": 0}
    assert said("states_have_ranks", bare, **replicas) == f"{given} runs that only with dp 1"


def test_what_is_not_offloaded(context_of: Contexts) -> None:
    context = context_of(framework="deepspeed")
    row = {"zero_stage": 1, "pp": 1, "offload": NVME}
    disk = under(context, {}, nvme_zero_stages=(3,))
    text = "offload optimizer:nvme under ZeRO 1: deepspeed offloads to NVMe under ZeRO 3"
    assert said("offload_offered", disk, **row) == text
    stays = under(context, {"offload": "no"})
    text = "offload optimizer:host: adam under deepspeed cannot be offloaded"
    assert said("offload_offered", stays, **row | {"offload": HOST}) == text
    unsharded = row | {"offload": HOST, "zero_stage": 0}
    text = "offload optimizer:host under ZeRO 0: it needs stage 1"
    assert said("offload_offered", context, **unsharded) == text


def test_parts_that_are_not_offloaded(context_of: Contexts) -> None:
    context = under(context_of(framework="deepspeed"), {}, partial_offload_zero_stages=(3,))
    row = {"zero_stage": 3, "offload": HOST, "offload_percent": 50}
    given = "offload_percent 50 with offload optimizer:host under ZeRO"
    whole = under(context, {"offload": "whole"})
    text = f"{given} 3: adam under deepspeed is not offloaded in part"
    assert said("offload_percent_offered", whole, **row) == text
    text = f"{given} 1: deepspeed offloads a part under ZeRO 3"
    assert said("offload_percent_offered", context, **row | {"zero_stage": 1}) == text
    nothing = row | {"offload": 0}
    text = "offload_percent 50 with offload none under ZeRO 3: there is no optimizer state to"
    assert said("offload_percent_offered", context, **nothing).startswith(text)


def test_sharding_inside_replicas_that_is_not_offered(context_of: Contexts) -> None:
    row = {"zero_stage": 1, "dp_replicate": 2}
    without = under(context_of(), {}, hybrid_sharding=False)
    text = "dp_replicate 2: megatron has no hybrid sharding"
    assert said("hybrid_sharding_offered", without, **row) == text
    optimizer = under(context_of(), {"hybrid_sharding": False}, hybrid_sharding=True)
    text = "dp_replicate 2: adam under megatron has no hybrid sharding"
    assert said("hybrid_sharding_offered", optimizer, **row) == text
    offered = under(context_of(), {}, hybrid_sharding=True)
    text = "dp_replicate 2 under ZeRO 0: nothing is sharded there"
    assert said("hybrid_sharding_offered", offered, **row | {"zero_stage": 0}) == text


def test_axes_that_an_order_excludes(context_of: Contexts) -> None:
    row = {"tp": 2, "cp": 1, "pp": 2, "ep": 1, "etp": 1, "placement": OTHER_ORDER}
    text = "placement tp-cp-ep-pp-dp with etp 1 and tp 2: they must be the same"
    assert said("placement_offered", context_of(), **row) == text
    text = "placement tp-cp-ep-pp-dp with ep 4 and cp 1: both must be 1"
    assert said("placement_offered", context_of(), **row | {"ep": 4, "etp": 2}) == text


def test_ranks_of_a_second_copy_of_the_weights(context_of: Contexts) -> None:
    context = context_of(framework="deepspeed", profile="zero++")
    copy = "deepspeed (zero++) keeps a second copy of the weights over each node"
    row = {"tp": 2, "cp": 1, "pp": 1, "dp": 4, "zero_stage": 3}
    text = f"ZeRO 3 with tp 2 and cp 1: {copy}, whose ranks must be neighbours: both 1"
    assert said("secondary_partition_fits", context, **row) == text
    part = row | {"tp": 1, "dp": 12}
    text = f"dp 12 under ZeRO 3: {copy}, and the last of 8 is not full"
    assert said("secondary_partition_fits", context, **part) == text
