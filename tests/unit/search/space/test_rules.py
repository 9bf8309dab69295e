"""Every rule by itself: columns it allows and columns it forbids."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.search.space.expressions import DIMENSIONS
from planner.search.space.legality import RULES, THEMES, whole_cluster
from planner.search.space.rule import GPUS, Rule
from planner.spec.model import MoeSpec
from planner.spec.strategy import OFFLOAD_CODES, SCHEDULES
from planner.spec.training import Mode, Training

Contexts = Callable[..., Context]
ALL_RULES = (*RULES, whole_cluster)
BY_NAME = {rule.name: rule for rule in ALL_RULES}
F1B, GPIPE, ZB_H1, ZB_H2, ZB_INTERLEAVED, ZB_V, DUALPIPE_V = range(len(SCHEDULES))
NONE, HOST, HOST_PARAMS, NVME, NVME_PARAMS = range(len(OFFLOAD_CODES))


def verdicts(name: str, context: Context, **columns: list[int]) -> list[bool]:
    """What the rule says row by row; every column it needs is given, but for degrees of one."""
    rule = BY_NAME[name]
    num_rows = max(map(np.size, columns.values()))
    ones = {degree: [1] * num_rows for degree in GPUS if degree in rule.needs}
    given, columns = columns, ones | columns
    assert set(columns) == set(rule.needs)
    legal = rule.is_legal(context, {key: np.array(value) for key, value in columns.items()})
    assert legal.dtype == bool
    for position in np.flatnonzero(~legal):
        row = {
            key: int(np.broadcast_to(column, legal.shape)[position])
            for key, column in columns.items()
        }
        said = rule.words(context, row)
        assert said.isprintable()
        shown = {DIMENSIONS[key].shown(row[key]) for key in given} - {"off", "on"}
        assert any(re.search(rf"\b{re.escape(value)}\b", said) for value in shown), said
    return legal.tolist()


def supporting(context: Context, **support: object) -> Context:
    """The context under a framework that supports something else."""
    changed = replace(context.traits.support, **support)
    return replace(context, traits=replace(context.traits, support=changed))


def test_every_rule_of_a_theme_is_asked_once_with_a_sentence_and_words() -> None:
    names = [rule.name for rule in ALL_RULES]
    assert len(set(names)) == len(names)
    assert all(rule.message.endswith(".") for rule in ALL_RULES)
    for theme in THEMES:
        unmarked = [name for name, _ in inspect.getmembers(theme, inspect.isfunction)]
        own = [name for name in unmarked if getattr(theme, name).__module__ == theme.__name__]
        assert not [name for name in own if not name.startswith("_")], "a rule without @rule"


def test_rules_are_asked_in_the_order_of_themes_and_of_their_lines() -> None:
    made = [rule for rule in RULES if not rule.name.endswith("_supported")]
    lines = [(THEMES.index(inspect.getmodule(rule.check)), line(rule)) for rule in made]
    assert lines == sorted(lines)
    assert {theme for theme, _ in lines} == set(range(len(THEMES)))


def line(rule: Rule) -> int:
    return inspect.getsourcelines(rule.check)[1]


def test_within_cluster(context_of: Contexts) -> None:
    # 8 GPUs: 2·2·2·1 = 8, 2·2·2·2 = 16.
    columns = {"tp": [2, 2], "cp": [1, 2], "pp": [2, 2], "dp": [2, 2]}
    assert verdicts("within_cluster", context_of(), **columns) == [True, False]


def test_whole_cluster(context_of: Contexts) -> None:
    # 8 GPUs: 2·1·2·1 = 4, 2·1·2·2 = 8, 2·2·2·2 = 16.
    columns = {"tp": [2, 2, 2], "cp": [1, 1, 2], "pp": [2, 2, 2], "dp": [1, 2, 2]}
    assert verdicts("whole_cluster", context_of(), **columns) == [False, True, False]


def test_whole_nodes(context_of: Contexts) -> None:
    # Nodes of 8: 1, 2, 4, 3, 6 inside one; 8, 16, 24 whole; 12, 20 not.
    gpus = [1, 2, 4, 8, 16, 24, 3, 6, 12, 20]
    one = [1] * len(gpus)
    context = context_of(cluster="4xdgx-h100")
    legal = verdicts("whole_nodes", context, tp=one, cp=one, pp=one, dp=gpus)
    assert legal == [True] * 8 + [False] * 2


def test_whole_nodes_of_one_gpu_each_allow_any_number(context_of: Contexts) -> None:
    context = context_of()
    node = replace(context.cluster.node, num_accelerators=1)
    single = replace(context, cluster=replace(context.cluster, node=node, num_nodes=7))
    one = [1] * 3
    assert verdicts("whole_nodes", single, tp=one, cp=one, pp=one, dp=[1, 3, 7]) == [True] * 3


def test_batch_divisible(context_of: Contexts) -> None:
    assert verdicts("batch_divisible", context_of(global_batch=12), dp=[1, 4, 5, 8, 12, 24]) == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_micro_batch_divisible(context_of: Contexts) -> None:
    # 12 / dp 2 = 6 sequences per replica: micro-batches of 1, 2, 3, 6 but not 4.
    legal = verdicts(
        "micro_batch_divisible",
        context_of(global_batch=12),
        dp=[2, 2, 2, 2],
        micro_batch=[2, 3, 6, 4],
    )
    assert legal == [True, True, True, False]


def test_tp_divides_heads(context_of: Contexts, small_model: Callable[..., object]) -> None:
    context = context_of(model=small_model(num_heads=12, num_kv_heads=12))
    assert verdicts("tp_divides_heads", context, tp=[1, 2, 3, 12, 8, 24]) == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]


def test_tp_divides_kv_heads(context_of: Contexts, small_model: Callable[..., object]) -> None:
    # 4 key/value heads: split over 2 and 4, copied over 8; 3 and 6 fit neither way.
    context = context_of(model=small_model(num_kv_heads=4))
    assert verdicts("tp_divides_kv_heads", context, tp=[2, 4, 8, 3, 6]) == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_tp_divides_ffn(context_of: Contexts, small_model: Callable[..., object]) -> None:
    context = context_of(model=small_model(ffn_size=4 * 1025))
    assert verdicts("tp_divides_ffn", context, tp=[1, 4, 8]) == [True, True, False]


def test_tp_divides_shared_experts_and_etp_the_routed_ones(
    context_of: Contexts, small_model: Callable[..., object]
) -> None:
    moe = MoeSpec(num_experts=8, top_k=2, expert_ffn_size=4 * 100, shared_ffn_size=4 * 96)
    context = context_of(model=small_model(ffn_size=4096, moe=moe))
    assert verdicts("tp_divides_ffn", context, tp=[4, 32, 256]) == [True, True, False]
    assert verdicts("etp_divides_expert_ffn", context, etp=[4, 16, 32]) == [True, True, False]


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "ep", "vpp"])
def test_an_axis_needs_the_frameworks_support(axis: str, context_of: Contexts) -> None:
    context = context_of()
    for supported in (True, False):
        given = supporting(context, **{axis: supported})
        assert verdicts(f"{axis}_supported", given, **{axis: [1, 2]}) == [True, supported]


def test_tp_within_scale_up_domain(context_of: Contexts) -> None:
    context = context_of(cluster="4xdgx-h100")
    assert verdicts("tp_within_scale_up_domain", context, tp=[8, 16]) == [True, False]


def test_sequence_divisible(context_of: Contexts) -> None:
    # Sequence parallelism: 2·cp·tp pieces when cp > 1, tp pieces otherwise. s = 96:
    # (cp 1, tp 32) 32 | 96; (cp 4, tp 4) 32 | 96; (cp 8, tp 4) 64 does not; (cp 1, tp 64) neither.
    context = context_of(seq_len=96)
    columns = {"cp": [1, 4, 8, 1], "tp": [32, 4, 4, 64]}
    on, off = ({"sequence_parallel": [value] * 4} for value in (1, 0))
    assert verdicts("sequence_divisible", context, **columns, **on) == [True, True, False, False]
    # (cp 8: 16 pieces divide 96).
    assert verdicts("sequence_divisible", context, **columns, **off) == [True, True, True, True]


def test_pp_at_most_layers(context_of: Contexts) -> None:
    assert verdicts("pp_at_most_layers", context_of(), pp=[1, 4, 5]) == [True, True, False]


def test_ep_divides_experts(context_of: Contexts) -> None:
    # Mixtral's 8 experts.
    context = context_of(model="mixtral-8x7b")
    assert verdicts("ep_divides_experts", context, ep=[1, 4, 8, 3]) == [True, True, True, False]


def test_a_dense_model_has_no_expert_parallelism(context_of: Contexts) -> None:
    assert verdicts("ep_divides_experts", context_of(), ep=[1, 2]) == [True, False]
    columns = {"tp": [1, 2, 2], "etp": [1, 2, 1], "dp": 1, "ep": 1}
    assert verdicts("expert_mesh_offered", context_of(), **columns) == [True, True, False]


def test_the_expert_mesh_takes_the_ranks_of_tp_cp_and_dp(context_of: Contexts) -> None:
    # Qwen3-235B on 256 GPUs, pp 8: 2 x 1 x 16 = 32 ranks a stage, ep 32 with whole experts.
    # Kimi K2, tp 8: 64 ranks for ep 64 need dp x cp 8. etp 2 x ep 32 would need 64 of 32.
    columns = {"tp": [2, 8, 8, 2, 2], "cp": [1, 2, 1, 1, 3], "dp": [16, 4, 4, 16, 16]}
    columns |= {"ep": [32, 64, 64, 32, 32], "etp": [1, 1, 1, 2, 3]}
    legal = [True, True, False, False, True]
    assert verdicts("expert_mesh_fits", context_of(), **columns) == legal


def test_what_expert_meshes_frameworks_offer(context_of: Contexts) -> None:
    # tp 2: whole experts, ep beyond dp; split as the rest, ep in dp, beyond it; whole without ep.
    columns = {"tp": [2, 2, 2, 2], "dp": [4, 4, 4, 4], "ep": [8, 4, 8, 1], "etp": [1, 2, 2, 1]}

    def offered(framework: str, profile: str = "current") -> list[bool]:
        context = context_of(model="mixtral-8x7b", framework=framework, profile=profile)
        return verdicts("expert_mesh_offered", context, **columns)

    assert offered("megatron") == [True] * 4
    assert offered("megatron", "zero-bubble") == [False, True, False, False]
    assert offered("torchtitan") == [True, False, False, False]


def test_folded_experts_need_sequence_parallelism(context_of: Contexts) -> None:
    columns = {"tp": [2, 2, 2, 1], "etp": [1, 1, 2, 2], "sequence_parallel": [0, 1, 0, 0]}
    legal = [False, True, True, True]
    assert verdicts("folded_experts_need_slices", context_of(), **columns) == legal


def test_layers_fill_chunks(context_of: Contexts, small_model: Callable[..., object]) -> None:
    # 12 layers: 3 stages of 2 chunks; 7 of 2 need 12 and embedding and head fill two; 8 of 2 need
    # 14; one stage has nothing to interleave.
    context = context_of(model=small_model(num_layers=12))
    columns = {"pp": [3, 7, 8, 1, 1, 5], "vpp": [2, 2, 2, 2, 1, 1], "schedule": [F1B] * 6}
    legal = [True, True, False, False, True, True]
    assert verdicts("layers_fill_chunks", context, **columns) == legal


def test_v_shapes_need_equal_chunks(
    context_of: Contexts, small_model: Callable[..., object]
) -> None:
    # 11 layers on 3 stages of 2 chunks: stages may differ under 1F1B, but not in a V.
    context = context_of(model=small_model(num_layers=11))
    columns = {"pp": [3, 3, 3], "vpp": [2, 2, 2], "schedule": [F1B, ZB_V, DUALPIPE_V]}
    assert verdicts("layers_fill_chunks", context, **columns) == [True, False, False]


def test_schedules_need_the_frameworks_support(context_of: Contexts) -> None:
    columns = {"schedule": [F1B, GPIPE, ZB_H1, ZB_V]}
    assert verdicts("schedule_offered", context_of(), **columns) == [True, False, False, False]
    fork = context_of(framework="megatron", profile="zero-bubble")
    assert verdicts("schedule_offered", fork, **columns) == [True, False, True, True]
    eager = context_of(framework="torchtitan", profile="eager")
    assert verdicts("schedule_offered", eager, **columns) == [True, True, False, True]


def test_one_stage_has_no_schedule_but_the_default(context_of: Contexts) -> None:
    columns = {"pp": [1, 1, 2], "schedule": [F1B, GPIPE, GPIPE]}
    assert verdicts("schedule_needs_stages", context_of(), **columns) == [True, False, True]


def test_schedules_fit_their_number_of_chunks(context_of: Contexts) -> None:
    allowed = {
        F1B: [True, True, True],
        GPIPE: [True, False, False],
        ZB_H1: [True, False, False],
        ZB_H2: [True, False, False],
        ZB_INTERLEAVED: [False, True, True],
        ZB_V: [False, True, False],
        DUALPIPE_V: [False, True, False],
    }
    for schedule, legal in allowed.items():
        columns = {"schedule": [schedule] * 3, "vpp": [1, 2, 3]}
        assert verdicts("schedule_fits_chunks", context_of(), **columns) == legal


def test_split_backwards_need_enough_micro_batches(context_of: Contexts) -> None:
    # 4 stages: zb-h1 4 micro-batches, zb-h2 and zb-v 7, dualpipe-v 8.
    for batch, legal in {
        3: [True, False, False, False, False],
        4: [True, True, False, False, False],
        7: [True, True, True, True, False],
        8: [True, True, True, True, True],
    }.items():
        columns = {"schedule": [F1B, ZB_H1, ZB_H2, ZB_V, DUALPIPE_V]}
        columns |= {"pp": [4] * 5, "dp": [1] * 5, "micro_batch": [1] * 5}
        assert verdicts("schedule_fills", context_of(global_batch=batch), **columns) == legal


def test_vpp_micro_batches(context_of: Contexts) -> None:
    # Batch 24, dp 2, micro-batch 2: 6 micro-batches, a multiple of 3 but not of 4.
    legal = verdicts(
        "vpp_micro_batches",
        context_of(global_batch=24),
        pp=[3, 4, 4, 4],
        vpp=[2, 2, 1, 2],
        schedule=[F1B, F1B, F1B, ZB_V],
        dp=[2, 2, 2, 2],
        micro_batch=[2, 2, 2, 2],
    )
    assert legal == [True, False, True, True]


def test_zero_stage_offered(context_of: Contexts) -> None:
    # DeepSpeed and Megatron: 0-3 alone, 0 and 1 under pipelining. Older Megatron: 0 and 1.
    older = supporting(context_of(), zero_stages=(0, 1))
    columns = {"zero_stage": [0, 1, 2, 3, 1, 2], "pp": [1, 1, 1, 1, 2, 2]}
    assert verdicts("zero_stage_offered", context_of(framework="deepspeed"), **columns) == [
        True,
        True,
        True,
        True,
        True,
        False,
    ]
    assert verdicts("zero_stage_offered", older, **columns) == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_zero_needs_replicas(context_of: Contexts) -> None:
    columns = {
        "zero_stage": [0, 1, 1, 1, 1],
        "dp": [1, 1, 2, 1, 1],
        "cp": [1, 1, 1, 2, 1],
        "pp": [1] * 5,
        "offload": [NONE, NONE, NONE, NONE, HOST],
    }
    whole = {"tp": 1, "ep": 1, "etp": 1}
    legal = [True, False, True, True, True]
    assert verdicts("zero_needs_replicas", context_of(), **columns, **whole) == legal
    # torchtitan's lowest stage is 2.
    columns = {"zero_stage": [2, 3], "dp": [1, 1], "cp": [1, 1], "pp": [1, 1]}
    columns["offload"] = [NONE, NONE]
    context = context_of(framework="torchtitan")
    assert verdicts("zero_needs_replicas", context, **columns, **whole) == [True, False]
    # Whole experts on 4 tp ranks: 2 with the same ones where ep is 2, none where it is 4.
    columns = {"zero_stage": [1, 1], "dp": 1, "cp": 1, "pp": 1, "offload": NONE}
    folded = {"tp": 4, "ep": [2, 4], "etp": 1}
    assert verdicts("zero_needs_replicas", context_of(), **columns, **folded) == [True, False]


def test_offload_offered(context_of: Contexts) -> None:
    # Optimizers from stage 1 on, parameters and NVMe at stage 3 only.
    columns = {
        "offload": [NONE, HOST, HOST, HOST_PARAMS, HOST_PARAMS, NVME, NVME_PARAMS],
        "zero_stage": [0, 0, 1, 2, 3, 2, 3],
        "pp": [1] * 7,
    }
    assert verdicts("offload_offered", context_of(framework="deepspeed"), **columns) == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    # Of these Megatron offers the optimizer in host memory only.
    assert verdicts("offload_offered", context_of(), **columns) == [
        True,
        False,
        True,
        False,
        False,
        False,
        False,
    ]


def test_host_holds_loading(context_of: Contexts) -> None:
    # Llama-2 7B: 8 ranks * 6.74e9 * 2 bytes = 100.4 GiB; 90 % of 112 GiB are 100.8, of 111 99.9.
    context = context_of(model="llama2-7b", framework="deepspeed")

    def verdicts_with(num_gib: float) -> list[bool]:
        node = replace(context.cluster.node, host_memory_bytes=num_gib * 2**30)
        small = replace(context, cluster=replace(context.cluster, node=node))
        columns = {"offload": [NONE, HOST, HOST, HOST_PARAMS], "zero_stage": [2, 1, 2, 3]}
        return verdicts("host_holds_loading", small, **columns)

    assert verdicts_with(112) == [True] * 4
    assert verdicts_with(111) == [True, False, False, True]


def test_offload_has_room(context_of: Contexts) -> None:
    codes = [NONE, HOST, HOST_PARAMS, NVME, NVME_PARAMS]
    context = context_of()

    def with_node(**changes: object) -> Context:
        node = replace(context.cluster.node, **changes)
        return replace(context, cluster=replace(context.cluster, node=node))

    everything = [True] * 5
    assert verdicts("offload_has_room", context, offload=codes) == everything
    no_host = with_node(host_memory_bytes=None)
    assert verdicts("offload_has_room", no_host, offload=codes) == [True, False, False, True, True]
    for missing in ("nvme_bytes", "nvme_read_bytes_per_s", "nvme_write_bytes_per_s"):
        diskless = with_node(**{missing: None})
        legal = verdicts("offload_has_room", diskless, offload=codes)
        assert legal == [True, True, True, False, False]


def test_placement_offered(context_of: Contexts) -> None:
    context = context_of()
    columns = {"pp": [1, 2, 2, 2, 2], "ep": [8, 1, 8, 1, 1], "cp": [1, 1, 1, 2, 1]}
    columns |= {"tp": 2, "etp": [2, 2, 2, 2, 1]}
    inside, usual = {"placement": [1] * 5}, {"placement": [0] * 5}
    legal = [True, True, False, False, False]
    assert verdicts("placement_offered", context, **columns, **inside) == legal
    assert verdicts("placement_offered", context, **columns, **usual) == [True] * 5
    only_usual = supporting(context, placements=context.traits.support.placements[:1])
    assert verdicts("placement_offered", only_usual, **columns, **inside) == [False] * 5


def test_placement_matters(context_of: Contexts) -> None:
    # Nodes of 8: inside one, beside whole ones, without dp or pp the order is all the same.
    context = context_of(cluster="4xdgx-h100")
    columns = {"tp": [1, 8, 2, 2, 2], "cp": 1, "dp": [2, 2, 16, 1, 4], "pp": [4, 2, 1, 16, 4]}
    other = verdicts("placement_matters", context, **columns, placement=[1] * 5)
    assert other == [False, False, False, False, True]
    assert verdicts("placement_matters", context, **columns, placement=[0] * 5) == [True] * 5


# Bounds of the software: what a framework, and its way to run a mechanism, asks for.


def test_tp_fits_model(context_of: Contexts, small_model: Callable[..., object]) -> None:
    model = small_model(num_heads=8, num_kv_heads=2, family="opt")
    known, replicating = {"tp_families": ("any",)}, {"replicates_kv_heads": True}
    whole = {"replicates_kv_heads": False}
    named = {"tp_families": ("llama3", "opt"), **whole}
    other = {"tp_families": ("llama3",), **replicating}
    columns = {"tp": [1, 2, 4]}
    for support, expected in (
        ({**known, **replicating}, [True, True, True]),
        ({**known, **whole}, [True, True, False]),
        (named, [True, True, False]),
        (other, [True, False, False]),
    ):
        context = supporting(context_of(model=model), **support)
        assert verdicts("tp_fits_model", context, **columns) == expected
    unnamed = supporting(context_of(model=small_model(family="")), **other)
    assert verdicts("tp_fits_model", unnamed, tp=[2]) == [True]


def test_tp_splits_experts(context_of: Contexts, small_model: Callable[..., object]) -> None:
    columns = {"tp": [1, 2, 2, 2], "etp": [1, 2, 2, 1], "sequence_parallel": [0, 0, 1, 1]}
    moe = MoeSpec(num_experts=8, top_k=2, expert_ffn_size=512)
    needing = {"mixtures_need_sequence_parallel": True, "splits_experts": "unbiased"}
    free = {"mixtures_need_sequence_parallel": False, "splits_experts": "any"}
    for mixture, support, expected in (
        (None, needing, [True, True, True, True]),
        (moe, needing, [True, False, True, True]),
        (moe, free, [True, True, True, True]),
        (replace(moe, expert_bias=True), needing, [True, False, False, True]),
        (replace(moe, expert_bias=True), free, [True, True, True, True]),
        (moe, {**free, "splits_experts": "no"}, [True, False, False, True]),
    ):
        context = supporting(context_of(model=small_model(moe=mixture)), **support)
        assert verdicts("tp_splits_experts", context, **columns) == expected


def test_cp_fits_attention(context_of: Contexts, small_model: Callable[..., object]) -> None:
    for changes, is_plain in (
        ({}, True),
        ({"position": "alibi"}, False),
        ({"sliding_window": 512}, False),
        ({"num_heads": 8, "extra_params_per_layer": 8}, False),
        ({"architecture": "encoder"}, False),
    ):
        context = context_of(model=small_model(**changes))
        causal = supporting(context, cp_attention="causal")
        assert verdicts("cp_fits_attention", causal, cp=[1, 2]) == [True, is_plain]
        free = supporting(context, cp_attention="any")
        is_biased = changes.get("position") == "alibi"
        assert verdicts("cp_fits_attention", free, cp=[1, 2]) == [True, not is_biased]


def test_pp_ties_embeddings(context_of: Contexts, small_model: Callable[..., object]) -> None:
    for tied in (True, False):
        context = context_of(model=small_model(tied_embeddings=tied))
        for ties in (True, False):
            found = verdicts(
                "pp_ties_embeddings", supporting(context, pipelines_tied_embeddings=ties), pp=[1, 2]
            )
            assert found == [True, ties or not tied]


def waiting(context: Context, **overlap: object) -> Context:
    """The context under other overlaps."""
    changed = replace(context.traits.overlap, **overlap)
    return replace(context, traits=replace(context.traits, overlap=changed))


def test_chunks_hide_transfers(context_of: Contexts) -> None:
    context = supporting(context_of(), fewest_waiting_chunked_stages=3)
    columns = {"pp": [2, 2, 3], "vpp": [1, 2, 2]}
    waits = waiting(context, pipeline_p2p_overlap="none")
    assert verdicts("chunks_hide_transfers", waits, **columns) == [True, False, True]
    overlaps = waiting(context, pipeline_p2p_overlap="interleaved")
    assert verdicts("chunks_hide_transfers", overlaps, **columns) == [True, True, True]


def test_exchange_overlap_has_chunks(context_of: Contexts) -> None:
    columns = {"pp": [1, 2, 2, 2], "vpp": [1, 1, 2, 1], "ep": [2, 2, 2, 1]}
    asked = supporting(context_of(), batch_overlap_needs_chunks=True)
    batches = waiting(asked, expert_all_to_all_overlap="batches")
    assert verdicts("exchange_overlap_has_chunks", batches, **columns) == [True, False, True, True]
    without = waiting(asked, expert_all_to_all_overlap="none")
    assert all(verdicts("exchange_overlap_has_chunks", without, **columns))


def test_exchange_overlap_has_graphs(context_of: Contexts) -> None:
    columns = {"ep": [2, 2, 1], "zero_stage": [1, 2, 2]}
    asked = supporting(context_of(), paired_graph_zero_stages=(0, 1))
    for fraction, beside, expected in (
        (0.1, "batches", [True, False, True]),
        (0.0, "batches", [True, True, True]),
        (1.0, "batches", [True, True, True]),
        (0.1, "none", [True, True, True]),
    ):
        waits = waiting(asked, expert_all_to_all_overlap=beside)
        kernels = replace(waits.traits.kernels, cuda_graph_fraction=fraction)
        context = replace(waits, traits=replace(waits.traits, kernels=kernels))
        assert verdicts("exchange_overlap_has_graphs", context, **columns) == expected


def test_mtp_trained(context_of: Contexts) -> None:
    columns = {"ep": [1, 2]}
    for number, beside, trains, expected in (
        (0, "batches", False, [True, True]),
        (1, "batches", True, [True, True]),
        (2, "batches", True, [True, False]),
        (2, "none", True, [True, True]),
        (1, "none", False, [False, False]),
    ):
        context = supporting(context_of(mtp_layers=number), trains_mtp=trains)
        asked = waiting(context, expert_all_to_all_overlap=beside)
        assert verdicts("mtp_trained", asked, **columns) == expected


def test_micro_batches_fill_stages(context_of: Contexts) -> None:
    # A global batch of 64: 64 / (dp 16 x 1) = 4 micro-batches, 64 / (16 x 2) = 2.
    context = context_of(global_batch=64)
    columns = {
        "pp": [4, 4, 4, 4],
        "schedule": [F1B, F1B, F1B, GPIPE],
        "vpp": [1, 1, 2, 1],
        "dp": [16, 16, 16, 16],
        "micro_batch": [1, 2, 2, 2],
    }
    asked = supporting(context, fills_pipeline=True)
    assert verdicts("micro_batches_fill_stages", asked, **columns) == [True, False, True, True]
    free = supporting(context, fills_pipeline=False)
    assert all(verdicts("micro_batches_fill_stages", free, **columns))


def test_states_have_ranks(context_of: Contexts) -> None:
    columns = {
        "tp": [1, 2, 2, 2, 2],
        "cp": [1, 1, 1, 2, 1],
        "dp": [1, 1, 1, 1, 2],
        "dp_replicate": [1, 1, 1, 1, 2],
        "offload": [HOST_PARAMS, NONE, HOST_PARAMS, HOST_PARAMS, NONE],
    }
    for kind, expected in (
        ("yes", [True, True, True, True, True]),
        ("without offload", [True, True, False, True, False]),
        ("no", [True, False, False, True, False]),
    ):
        context = supporting(context_of(), tp_alone=kind)
        assert verdicts("states_have_ranks", context, **columns) == expected


def test_secondary_partition_fits(context_of: Contexts) -> None:
    # Nodes of 8: groups of 8 neighbours, of all where fewer are used.
    columns = {
        "tp": [1, 2, 1, 1, 1],
        "cp": [1, 1, 1, 1, 1],
        "pp": [1, 1, 1, 1, 1],
        "dp": [8, 4, 4, 12, 12],
        "zero_stage": [3, 3, 3, 3, 2],
    }
    context = context_of(framework="deepspeed", profile="zero++")
    found = verdicts("secondary_partition_fits", context, **columns)
    assert found == [True, False, True, False, True]
    assert all(verdicts("secondary_partition_fits", context_of(), **columns))


def test_what_an_optimizer_rules_out(context_of: Contexts) -> None:
    def under(**figures: object) -> Context:
        context = context_of(framework="deepspeed")
        optimizer = replace(context.traits.optimizer, **figures)
        return replace(context, traits=replace(context.traits, optimizer=optimizer))

    part = {"zero_stage": [3, 3], "offload": [HOST, HOST], "offload_percent": [50, 100]}
    assert verdicts("offload_percent_offered", under(offload="part"), **part) == [True, True]
    assert verdicts("offload_percent_offered", under(offload="whole"), **part) == [False, True]
    offloads = {"zero_stage": [3, 3], "pp": [1, 1], "offload": [NONE, HOST]}
    assert verdicts("offload_offered", under(offload="no"), **offloads) == [True, False]
    hybrid = supporting(under(hybrid_sharding=False), hybrid_sharding=True)
    columns = {"zero_stage": [1, 1], "dp_replicate": [1, 2]}
    assert verdicts("hybrid_sharding_offered", hybrid, **columns) == [True, False]


def training_adapters(context: Context, mode: Mode) -> Context:
    training = Training(mode=mode, rank=8, targets=("q",))
    return replace(context, traits=replace(context.traits, training=training))


@pytest.mark.parametrize("mode", ["lora", "qlora"])
def test_no_frozen_matrix_is_split(context_of: Contexts, mode: Mode) -> None:
    context = context_of()
    assert verdicts("adapters_can_be_split", context, tp=[1, 2]) == [True, True]
    frozen = training_adapters(context, mode)
    assert verdicts("adapters_can_be_split", frozen, tp=[1, 2]) == [True, False]


def test_whole_replicas_with_adapters_take_whole_sequences(context_of: Contexts) -> None:
    rows = {"cp": [1, 2, 2], "zero_stage": [0, 0, 2]}
    name = "replicas_take_whole_sequences"
    assert verdicts(name, context_of(), **rows) == [True, True, True]
    frozen = training_adapters(context_of(), "lora")
    assert verdicts(name, frozen, **rows) == [True, False, True]


def of_model(context: Context, name: str) -> Context:
    return replace(context, model=load_model(name))


def test_a_mixer_is_split_by_whole_groups(context_of: Contexts) -> None:
    nemotron = of_model(context_of(), "nemotron-3-nano-30b-a3b")  # 64 heads in 8 groups
    assert verdicts("tp_divides_mixer_heads", nemotron, tp=[1, 8, 16]) == [True, True, False]
    granite = of_model(context_of(), "granite-4.0-h-tiny")  # one group
    assert verdicts("tp_divides_mixer_heads", granite, tp=[1, 2]) == [True, False]
    assert verdicts("tp_divides_mixer_heads", context_of(), tp=[1, 64]) == [True, True]


def test_a_mixer_has_whole_heads_under_context_parallelism(context_of: Contexts) -> None:
    rows = {"tp": [1, 8, 8, 8], "cp": [1, 2, 8, 16]}
    name = "cp_divides_mixer_heads"
    qwen = of_model(context_of(), "qwen3.5-27b")  # 16 key heads
    assert verdicts(name, qwen, **rows) == [True, True, False, False]
    nemotron = of_model(context_of(), "nemotron-3-nano-30b-a3b")  # 64 heads of values
    assert verdicts(name, nemotron, **rows) == [True, True, True, False]
    kimi = of_model(context_of(), "kimi-linear-48b-a3b")
    assert verdicts(name, kimi, **rows) == [True, False, False, False]
    assert verdicts(name, context_of(), **rows) == [True] * 4
