"""Every rule by itself: columns it allows and columns it forbids, and what it says of these."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contexts import context_of, small_model, with_traits

from planner.cost.context import Context
from planner.search.space.expressions import DIMENSIONS
from planner.search.space.legality import RULES, THEMES, whole_cluster
from planner.search.space.rule import GPUS, Rule
from planner.spec.model import MoeSpec
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES
from planner.spec.training import Training

ALL_RULES = (*RULES, whole_cluster)
BY_NAME = {rule.name: rule for rule in ALL_RULES}
F1B, GPIPE, ZB_H1, ZB_H2, ZB_INTERLEAVED, ZB_V, DUALPIPE_V = range(len(SCHEDULES))
NONE, HOST, HOST_PARAMS, NVME, NVME_PARAMS = range(len(OFFLOAD_CODES))
MOE = MoeSpec(num_experts=8, top_k=2, expert_ffn_size=512)
BIASED = replace(MOE, expert_bias=True)
PARTS = ("support", "overlap", "kernels", "optimizer", "states")
Where = Mapping[str, Any]


def at(where: Where) -> Context:
    """The context of keywords of context_of, with parts of traits, a node or adapters beside."""
    given = dict(where)
    parts = {name: given.pop(name) for name in PARTS if name in given}
    node, mode = given.pop("node", {}), given.pop("train", None)
    context = with_traits(context_of(**given), **parts).with_node(**node)
    if mode is None:
        return context
    training = Training(mode=mode, rank=8, targets=("q",))
    return replace(context, traits=replace(context.traits, training=training))


def small(**changes: object) -> dict[str, object]:
    return {"model": small_model(**changes)}


def verdicts(name: str, context: Context, **columns: Any) -> str:
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
    return "".join("+" if each else "-" for each in legal)


def line(rule: Rule) -> int:
    return inspect.getsourcelines(rule.check)[1]


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


NODES, NODES_OF_1 = {"cluster": "4xdgx-h100"}, {"cluster": "7xh100-sxm"}
MIXTRAL, SPEED = {"model": "mixtral-8x7b"}, {"framework": "deepspeed"}
TITAN, NEMOTRON = {"framework": "torchtitan"}, {"model": "nemotron-3-nano-30b-a3b"}
EAGER, FORK = TITAN | {"profile": "eager"}, {"profile": "zero-bubble"}
SHARED = replace(MOE, expert_ffn_size=4 * 100, shared_ffn_size=4 * 96)
SPLIT_EXPERTS = {"tp": [1, 2, 2, 2], "etp": [1, 2, 2, 1], "sequence_parallel": [0, 0, 1, 1]}
NEEDING = {"mixtures_need_sequence_parallel": True, "splits_experts": "unbiased"}
FREE = {"mixtures_need_sequence_parallel": False, "splits_experts": "any"}
KNOWN, WHOLE = {"tp_families": ("any",)}, {"replicates_kv_heads": False}
OPT = small(num_heads=8, num_kv_heads=2, family="opt")
# tp 2: whole experts, ep beyond dp; split as the rest, ep in dp, beyond it; whole without ep.
MESHES = {"tp": 2, "dp": 4, "ep": [8, 4, 8, 1], "etp": [1, 2, 2, 1]}
FILLS = {"schedule": [F1B, ZB_H1, ZB_H2, ZB_V, DUALPIPE_V], "pp": 4, "dp": 1, "micro_batch": 1}
OFFLOADS = {
    "offload": [NONE, HOST, HOST, HOST_PARAMS, HOST_PARAMS, NVME, NVME_PARAMS],
    "zero_stage": [0, 0, 1, 2, 3, 2, 3],
    "pp": [1] * 7,
}
ORDERS = {"pp": [1, 2, 2, 2, 2], "ep": [8, 1, 8, 1, 1], "cp": [1, 1, 1, 2, 1]}
ORDERS |= {"tp": 2, "etp": [2, 2, 2, 2, 1]}
PLACES = {"tp": [1, 8, 2, 2, 2], "cp": 1, "dp": [2, 2, 16, 1, 4], "pp": [4, 2, 1, 16, 4]}
ALONE = {"tp": [1, 2, 2, 2, 2], "cp": [1, 1, 1, 2, 1], "dp": [1, 1, 1, 1, 2]}
ALONE |= {"dp_replicate": [1, 1, 1, 1, 2], "offload": [HOST_PARAMS, NONE, *[HOST_PARAMS] * 2, NONE]}
SECOND = {"tp": [1, 2, 1, 1, 1], "cp": 1, "pp": 1, "dp": [8, 4, 4, 12, 12]}
SECOND |= {"zero_stage": [3, 3, 3, 3, 2]}
CUT = {"dp": [2, 4, 8, 8, 8], "ep": [1, 4, 4, 4, 4], "etp": 1, "zero_stage": [1, 1, 0, 2, 1]}
CUT |= {"dp_replicate": [1, 1, 1, 1, 2]}
CUTS = (
    ({}, "+++++"),
    ({"states": {"weight_shards": 4.0, "expert_weight_shards": 2.0}}, "--+--"),
)
LOADS = {"offload": [NONE, HOST, HOST, HOST_PARAMS], "zero_stage": [2, 1, 2, 3]}
FULL_PIPES = {"pp": 4, "schedule": [F1B, F1B, F1B, GPIPE], "vpp": [1, 1, 2, 1], "dp": 16}
FULL_PIPES |= {"micro_batch": [1, 2, 2, 2]}
BATCHES = {"expert_all_to_all_overlap": "batches"}
APART = {"expert_all_to_all_overlap": "none"}
CHUNKS = {"batch_overlap_needs_chunks": True}
GRAPHS = {"support": {"paired_graph_zero_stages": (0, 1)}}
LLAMA = {"model": "llama2-7b", **SPEED}
CODES = [NONE, HOST, HOST_PARAMS, NVME, NVME_PARAMS]
PIECES = {"cp": [1, 4, 8, 1], "tp": [32, 4, 4, 64]}
HEADS = {"tp": [1, 8, 8, 8], "cp": [1, 2, 8, 16]}
OVER_16 = {"model": small_model(num_heads=8, extra_params_per_layer=8)}

# Rule, where it is asked, columns, and which rows keep it.
BY_HAND: tuple[tuple[str, Where, Where, str], ...] = (
    # 8 GPUs: 2·2·2·1 = 8, 2·2·2·2 = 16; 2·1·2·1 = 4.
    ("within_cluster", {}, {"tp": 2, "cp": [1, 2], "pp": 2, "dp": 2}, "+-"),
    ("whole_cluster", {}, {"tp": 2, "cp": [1, 1, 2], "pp": 2, "dp": [1, 2, 2]}, "-+-"),
    # Nodes of 8: 1, 2, 4, 3, 6 inside one; 8, 16, 24 whole; 12, 20 not.
    ("whole_nodes", NODES, {"dp": [1, 2, 4, 8, 16, 24, 3, 6, 12, 20]}, "++++++++--"),
    ("whole_nodes", NODES_OF_1, {"dp": [1, 3, 7]}, "+++"),
    ("batch_divisible", {"global_batch": 12}, {"dp": [1, 4, 5, 8, 12, 24]}, "++--+-"),
    # 12 / dp 2 = 6 sequences per replica: micro-batches of 1, 2, 3, 6 but not 4.
    (
        "micro_batch_divisible",
        {"global_batch": 12},
        {"dp": 2, "micro_batch": [2, 3, 6, 4]},
        "+++-",
    ),
    (
        "tp_divides_heads",
        small(num_heads=12, num_kv_heads=12),
        {"tp": [1, 2, 3, 12, 8, 24]},
        "++++--",
    ),
    # 4 key/value heads: split over 2 and 4, copied over 8; 3 and 6 fit neither way.
    ("tp_divides_kv_heads", small(num_kv_heads=4), {"tp": [2, 4, 8, 3, 6]}, "+++--"),
    ("tp_divides_ffn", small(ffn_size=4 * 1025), {"tp": [1, 4, 8]}, "++-"),
    ("tp_divides_ffn", small(moe=SHARED), {"tp": [4, 32, 256]}, "++-"),
    ("etp_divides_expert_ffn", small(moe=SHARED), {"etp": [4, 16, 32]}, "++-"),
    ("tp_within_scale_up_domain", NODES, {"tp": [8, 16]}, "+-"),
    # Sequence parallelism: 2·cp·tp pieces when cp > 1, tp pieces otherwise. s = 96:
    # (cp 1, tp 32) 32 | 96; (cp 4, tp 4) 32 | 96; (cp 8, tp 4) 64 does not; (cp 1, tp 64) neither.
    ("sequence_divisible", {"seq_len": 96}, {**PIECES, "sequence_parallel": 1}, "++--"),
    # Without it cp 8: 16 pieces divide 96.
    ("sequence_divisible", {"seq_len": 96}, {**PIECES, "sequence_parallel": 0}, "++++"),
    ("pp_at_most_layers", {}, {"pp": [1, 4, 5]}, "++-"),
    # Mixtral's 8 experts; a dense model has none.
    ("ep_divides_experts", MIXTRAL, {"ep": [1, 4, 8, 3]}, "+++-"),
    ("ep_divides_experts", {}, {"ep": [1, 2]}, "+-"),
    ("expert_mesh_offered", {}, {"tp": [1, 2, 2], "etp": [1, 2, 1], "dp": 1, "ep": 1}, "++-"),
    ("expert_mesh_offered", MIXTRAL, MESHES, "++++"),
    ("expert_mesh_offered", MIXTRAL | FORK, MESHES, "-+--"),
    ("expert_mesh_offered", MIXTRAL | TITAN, MESHES, "+---"),
    # Qwen3-235B on 256 GPUs, pp 8: 2 x 1 x 16 = 32 ranks a stage, ep 32 with whole experts.
    # Kimi K2, tp 8: 64 ranks for ep 64 need dp x cp 8. etp 2 x ep 32 would need 64 of 32.
    (
        "expert_mesh_fits",
        {},
        {
            "tp": [2, 8, 8, 2, 2],
            "cp": [1, 2, 1, 1, 3],
            "dp": [16, 4, 4, 16, 16],
            "ep": [32, 64, 64, 32, 32],
            "etp": [1, 1, 1, 2, 3],
        },
        "++--+",
    ),
    (
        "folded_experts_need_slices",
        {},
        {"tp": [2, 2, 2, 1], "etp": [1, 1, 2, 2], "sequence_parallel": [0, 1, 0, 0]},
        "-+++",
    ),
    # 12 layers: 3 stages of 2 chunks; 7 of 2 need 12 and embedding and head fill two; 8 of 2 need
    # 14; one stage has nothing to interleave.
    (
        "layers_fill_chunks",
        small(num_layers=12),
        {"pp": [3, 7, 8, 1, 1, 5], "vpp": [2, 2, 2, 2, 1, 1], "schedule": F1B},
        "++--++",
    ),
    # 11 layers on 3 stages of 2 chunks: stages may differ under 1F1B, but not in a V.
    (
        "layers_fill_chunks",
        small(num_layers=11),
        {"pp": 3, "vpp": 2, "schedule": [F1B, ZB_V, DUALPIPE_V]},
        "+--",
    ),
    ("schedule_offered", {}, {"schedule": [F1B, GPIPE, ZB_H1, ZB_V]}, "+---"),
    ("schedule_offered", FORK, {"schedule": [F1B, GPIPE, ZB_H1, ZB_V]}, "+-++"),
    ("schedule_offered", EAGER, {"schedule": [F1B, GPIPE, ZB_H1, ZB_V]}, "++-+"),
    ("schedule_needs_stages", {}, {"pp": [1, 1, 2], "schedule": [F1B, GPIPE, GPIPE]}, "+-+"),
    *(
        ("schedule_fits_chunks", {}, {"schedule": schedule, "vpp": [1, 2, 3]}, legal)
        for schedule, legal in (
            *((F1B, "+++"), (GPIPE, "+--"), (ZB_H1, "+--"), (ZB_H2, "+--")),
            *((ZB_INTERLEAVED, "-++"), (ZB_V, "-+-"), (DUALPIPE_V, "-+-")),
        )
    ),
    # 4 stages: zb-h1 4 micro-batches, zb-h2 and zb-v 7, dualpipe-v 8.
    *(
        ("schedule_fills", {"global_batch": batch}, FILLS, legal)
        for batch, legal in {3: "+----", 4: "++---", 7: "++++-", 8: "+++++"}.items()
    ),
    # Batch 24, dp 2, micro-batch 2: 6 micro-batches, a multiple of 3 but not of 4.
    (
        "vpp_micro_batches",
        {"global_batch": 24},
        {
            "pp": [3, 4, 4, 4],
            "vpp": [2, 2, 1, 2],
            "schedule": [F1B, F1B, F1B, ZB_V],
            "dp": 2,
            "micro_batch": 2,
        },
        "+-++",
    ),
    # DeepSpeed: 0-3 alone, 0 and 1 under pipelining. Older Megatron: 0 and 1.
    *(
        (
            "zero_stage_offered",
            where,
            {"zero_stage": [0, 1, 2, 3, 1, 2], "pp": [1] * 4 + [2] * 2},
            v,
        )
        for where, v in ((SPEED, "+++++-"), ({"support": {"zero_stages": (0, 1)}}, "++--+-"))
    ),
    (
        "zero_needs_replicas",
        {},
        {
            "zero_stage": [0, 1, 1, 1, 1],
            "dp": [1, 1, 2, 1, 1],
            "cp": [1, 1, 1, 2, 1],
            "offload": [NONE, NONE, NONE, NONE, HOST],
            "ep": 1,
            "etp": 1,
        },
        "+-+++",
    ),
    # torchtitan's lowest stage is 2.
    (
        "zero_needs_replicas",
        TITAN,
        {"zero_stage": [2, 3], "offload": NONE, "ep": 1, "etp": 1},
        "+-",
    ),
    # Whole experts on 4 tp ranks: 2 with the same ones where ep is 2, none where it is 4.
    (
        "zero_needs_replicas",
        {},
        {"zero_stage": [1, 1], "offload": NONE, "tp": 4, "ep": [2, 4], "etp": 1},
        "+-",
    ),
    # Optimizers from stage 1 on, parameters and NVMe at stage 3 only; Megatron has the first.
    ("offload_offered", SPEED, OFFLOADS, "+-+-+-+"),
    ("offload_offered", {}, OFFLOADS, "+-+----"),
    # Llama-2 7B: 8 ranks * 6.74e9 * 2 bytes = 100.4 GiB; 90 % of 112 GiB are 100.8, of 111 99.9.
    ("host_holds_loading", LLAMA | {"node": {"host_memory_bytes": 112 * 2**30}}, LOADS, "++++"),
    ("host_holds_loading", LLAMA | {"node": {"host_memory_bytes": 111 * 2**30}}, LOADS, "+--+"),
    ("offload_has_room", {}, {"offload": CODES}, "+++++"),
    ("offload_has_room", {"node": {"host_memory_bytes": None}}, {"offload": CODES}, "+--++"),
    *(
        ("offload_has_room", {"node": {missing: None}}, {"offload": CODES}, "+++--")
        for missing in ("nvme_bytes", "nvme_read_bytes_per_s", "nvme_write_bytes_per_s")
    ),
    ("placement_offered", {}, {**ORDERS, "placement": 1}, "++---"),
    ("placement_offered", {}, {**ORDERS, "placement": 0}, "+++++"),
    (
        "placement_offered",
        {"support": {"placements": context_of().traits.support.placements[:1]}},
        {**ORDERS, "placement": 1},
        "-----",
    ),
    # Nodes of 8: inside one, beside whole ones, without dp or pp the order is all the same.
    ("placement_matters", NODES, {**PLACES, "placement": 1}, "----+"),
    ("placement_matters", NODES, {**PLACES, "placement": 0}, "+++++"),
    # Bounds of the software: what a framework, and its way to run a mechanism, asks for.
    *(
        ("tp_fits_model", OPT | {"support": support}, {"tp": [1, 2, 4]}, legal)
        for support, legal in (
            ({**KNOWN, "replicates_kv_heads": True}, "+++"),
            ({**KNOWN, **WHOLE}, "++-"),
            ({"tp_families": ("llama3", "opt"), **WHOLE}, "++-"),
            ({"tp_families": ("llama3",), "replicates_kv_heads": True}, "+--"),
        )
    ),
    (
        "tp_fits_model",
        small(family="") | {"support": {"tp_families": ("llama3",)}},
        {"tp": [2]},
        "+",
    ),
    *(
        ("tp_splits_experts", small(moe=moe) | {"support": support}, SPLIT_EXPERTS, legal)
        for moe, support, legal in (
            (None, NEEDING, "++++"),
            (MOE, NEEDING, "+-++"),
            (MOE, FREE, "++++"),
            (BIASED, NEEDING, "+--+"),
            (BIASED, FREE, "++++"),
            (MOE, {**FREE, "splits_experts": "no"}, "+--+"),
        )
    ),
    *(
        ("cp_fits_attention", model | {"support": {"cp_attention": kind}}, {"cp": [1, 2]}, legal)
        for model, causal, free in (
            ({}, "++", "++"),
            (small(position="alibi"), "+-", "+-"),
            (small(sliding_window=512), "+-", "++"),
            (OVER_16, "+-", "++"),
            (small(architecture="encoder"), "+-", "++"),
            ({"model": "qwen3.5-27b"}, "+-", "++"),
        )
        for kind, legal in (("causal", causal), ("any", free))
    ),
    *(
        (
            "pp_ties_embeddings",
            small(tied_embeddings=tied) | {"support": {"pipelines_tied_embeddings": ties}},
            {"pp": [1, 2]},
            "++" if ties or not tied else "+-",
        )
        for tied in (True, False)
        for ties in (True, False)
    ),
    *(
        (
            "chunks_hide_transfers",
            {
                "support": {"fewest_waiting_chunked_stages": 3},
                "overlap": {"pipeline_p2p_overlap": how},
            },
            {"pp": [2, 2, 3], "vpp": [1, 2, 2]},
            legal,
        )
        for how, legal in (("none", "+-+"), ("interleaved", "+++"))
    ),
    *(
        (
            "exchange_overlap_has_chunks",
            {"support": CHUNKS, "overlap": overlap},
            {"pp": [1, 2, 2, 2], "vpp": [1, 1, 2, 1], "ep": [2, 2, 2, 1]},
            legal,
        )
        for overlap, legal in ((BATCHES, "+-++"), (APART, "++++"))
    ),
    *(
        (
            "exchange_overlap_has_graphs",
            {**GRAPHS, "overlap": overlap, "kernels": {"cuda_graph_fraction": fraction}},
            {"ep": [2, 2, 1], "zero_stage": [1, 2, 2]},
            legal,
        )
        for fraction, overlap, legal in (
            *((0.1, BATCHES, "+-+"), (0.0, BATCHES, "+++")),
            *((1.0, BATCHES, "+++"), (0.1, APART, "+++")),
        )
    ),
    *(
        (
            "mtp_trained",
            {"mtp_layers": number, "overlap": overlap, "support": {"trains_mtp": trains}},
            {"ep": [1, 2]},
            legal,
        )
        for number, overlap, trains, legal in (
            *((0, BATCHES, False, "++"), (1, BATCHES, True, "++"), (2, BATCHES, True, "+-")),
            *((2, APART, True, "++"), (1, APART, False, "--")),
        )
    ),
    # A global batch of 64: 64 / (dp 16 x 1) = 4 micro-batches, 64 / (16 x 2) = 2.
    *(
        (
            "micro_batches_fill_stages",
            {"global_batch": 64, "support": {"fills_pipeline": fills}},
            FULL_PIPES,
            legal,
        )
        for fills, legal in ((True, "+-++"), (False, "++++"))
    ),
    *(
        ("states_have_ranks", {"support": {"tp_alone": kind}}, ALONE, legal)
        for kind, legal in {"yes": "+++++", "without offload": "++-+-", "no": "+--+-"}.items()
    ),
    # Nodes of 8: groups of 8 neighbours, of all where fewer are used.
    ("secondary_partition_fits", SPEED | {"profile": "zero++"}, SECOND, "+-+-+"),
    ("secondary_partition_fits", {}, SECOND, "+++++"),
    # What an optimizer rules out.
    *(
        (
            "offload_percent_offered",
            SPEED | {"optimizer": {"offload": offload}},
            {"zero_stage": 3, "offload": HOST, "offload_percent": [50, 100]},
            legal,
        )
        for offload, legal in (("part", "++"), ("whole", "-+"))
    ),
    (
        "offload_offered",
        SPEED | {"optimizer": {"offload": "no"}},
        {"zero_stage": 3, "pp": 1, "offload": [NONE, HOST]},
        "+-",
    ),
    (
        "hybrid_sharding_offered",
        SPEED | {"optimizer": {"hybrid_sharding": False}, "support": {"hybrid_sharding": True}},
        {"zero_stage": 1, "dp_replicate": [1, 2]},
        "+-",
    ),
    # Weights over 4 of dp, experts over 2 of dp / ep; not under ZeRO 2, and in no replicas.
    *(("cut_weights_have_ranks", MIXTRAL | cut, CUT, legal) for cut, legal in CUTS),
    ("adapters_can_be_split", {}, {"tp": [1, 2]}, "++"),
    ("adapters_can_be_split", {"train": "lora"}, {"tp": [1, 2]}, "+-"),
    ("adapters_can_be_split", {"train": "qlora"}, {"tp": [1, 2]}, "+-"),
    ("replicas_take_whole_sequences", {}, {"cp": [1, 2, 2], "zero_stage": [0, 0, 2]}, "+++"),
    (
        "replicas_take_whole_sequences",
        {"train": "lora"},
        {"cp": [1, 2, 2], "zero_stage": [0, 0, 2]},
        "+-+",
    ),
    # 64 heads in 8 groups; one group; none.
    ("tp_divides_mixer_heads", NEMOTRON, {"tp": [1, 8, 16]}, "++-"),
    ("tp_divides_mixer_heads", {"model": "granite-4.0-h-tiny"}, {"tp": [1, 2]}, "+-"),
    ("tp_divides_mixer_heads", {}, {"tp": [1, 64]}, "++"),
    ("tp_divides_heads", {"model": "deepseek-v4-flash"}, {"tp": [1, 8, 16]}, "++-"),
    # 16 key heads; 64 heads of values.
    ("cp_divides_mixer_heads", {"model": "qwen3.5-27b"}, HEADS, "++--"),
    ("cp_divides_mixer_heads", NEMOTRON, HEADS, "+++-"),
    ("cp_divides_mixer_heads", {"model": "kimi-linear-48b-a3b"}, HEADS, "+---"),
    ("cp_divides_mixer_heads", {}, HEADS, "++++"),
    *(
        (f"{axis}_supported", {"support": {axis: has}}, {axis: [1, 2]}, "++" if has else "+-")
        for axis in ("tp", "pp", "cp", "ep", "vpp")
        for has in (True, False)
    ),
)


@pytest.mark.parametrize(("name", "where", "columns", "legal"), BY_HAND)
def test_a_rule_keeps_and_forbids(name: str, where: Where, columns: Where, legal: str) -> None:
    assert verdicts(name, at(where), **columns) == legal


SHARDING = {"support": {"hybrid_sharding": True}}
COPY = "deepspeed (zero++) keeps a second copy of the weights over each node"
GIVEN = "tp 2 with dp {} and cp 1: one rank to shard states over, and megatron"
PART = "offload_percent 50 with offload {} under ZeRO {}: "
REPLICAS = {"tp": 1, "cp": 2, "dp": 8, "ep": 8, "etp": 1, "dp_replicate": 4}
MESH = {"tp": 2, "dp": 8, "ep": 8, "etp": 2}
LAST = {"tp": 2, "cp": 1, "dp": 1, "dp_replicate": 1, "offload": HOST}
BARE = {"support": {"tp_alone": "without offload"}}
HALF = {"zero_stage": 3, "offload": HOST, "offload_percent": 50}
PARTIAL = SPEED | {"support": {"partial_offload_zero_stages": (3,)}}
ON_DISK = {"zero_stage": 1, "pp": 1, "offload": NVME}
OTHER_ORDER = PLACEMENT_NAMES.index("tp-cp-ep-pp-dp")
ORDER = {"tp": 2, "cp": 1, "pp": 2, "ep": 1, "etp": 1, "placement": OTHER_ORDER}


def meshed(kind: str) -> Where:
    return MIXTRAL | {"support": {"expert_mesh": kind}}


def causal(**changes: object) -> Where:
    return small(**changes) | {"support": {"cp_attention": "causal"}}


# Rule, where it is asked, a layout that breaks it (degrees left out are 1), what is said of it:
# the cause, of several the one that holds.
SAID: tuple[tuple[str, Where, dict[str, int], str], ...] = (
    (
        "expert_mesh_fits",
        MIXTRAL,
        {"tp": 8, "dp": 4, "ep": 64, "etp": 1},
        "tp 8 x dp 4 = 32 ranks of a stage: no multiple of ep 64",
    ),
    (
        "expert_mesh_fits",
        MIXTRAL,
        {"tp": 2, "dp": 16, "ep": 32, "etp": 2},
        "tp 2 x dp 16 = 32 ranks of a stage: no multiple of etp 2 x ep 32 = 64 expert ranks",
    ),
    (
        "replicas_divide_dp",
        MIXTRAL,
        REPLICAS,
        "dp 8 / dp_replicate 4 leaves cp 2 x dp 2 = 4 ranks of a stage: no multiple of ep 8",
    ),
    (
        "replicas_divide_dp",
        MIXTRAL,
        REPLICAS | {"dp_replicate": 3},
        "dp_replicate 3 does not divide dp 8",
    ),
    (
        "expert_mesh_offered",
        meshed("inside_dp"),
        MESH | {"dp": 4},
        "ep 8 does not divide dp 4: the expert ranks of megatron lie inside it",
    ),
    (
        "expert_mesh_offered",
        meshed("inside_dp"),
        MESH | {"etp": 1},
        "etp 1 with tp 2 and ep 8: megatron splits experts as the rest, etp 2",
    ),
    (
        "expert_mesh_offered",
        meshed("folded_whole"),
        MESH,
        "etp 2 with ep 8: experts of megatron are whole there, etp 1",
    ),
    (
        "expert_mesh_offered",
        meshed("folded_whole"),
        MESH | {"ep": 1, "etp": 1},
        "etp 1 with tp 2: megatron splits experts as the rest, etp 2",
    ),
    (
        "expert_mesh_offered",
        {},
        MESH | {"ep": 1, "etp": 1},
        "etp 1 with tp 2: small has no experts, so that etp is tp",
    ),
    (
        "tp_splits_experts",
        small(moe=MOE) | {"support": NEEDING},
        {"tp": 2, "etp": 2, "sequence_parallel": 0},
        "tp 2 without sequence parallelism: megatron splits mixtures only with it",
    ),
    (
        "tp_splits_experts",
        small(moe=BIASED) | {"support": NEEDING},
        {"tp": 2, "etp": 2, "sequence_parallel": 1},
        "etp 2: the experts of small have biases, which megatron does not split",
    ),
    (
        "tp_splits_experts",
        small(moe=MOE) | {"support": {**NEEDING, "splits_experts": "no"}},
        {"tp": 2, "etp": 2, "sequence_parallel": 1},
        "etp 2: megatron splits no experts",
    ),
    (
        "tp_fits_model",
        OPT | {"support": {"tp_families": ("llama3", "qwen3")}},
        {"tp": 2},
        "tp 2 of opt: megatron splits llama3, qwen3",
    ),
    (
        "tp_fits_model",
        OPT | {"support": {**KNOWN, **WHOLE}},
        {"tp": 4},
        "tp 4 does not divide 2 key/value heads, and megatron does not replicate them",
    ),
    *(
        (
            "cp_fits_attention",
            causal(**changes),
            {"cp": 2},
            f"cp 2: megatron runs plain causal attention alone, and small {why}",
        )
        for changes, why in (
            ({"sliding_window": 512}, "has a window of 512 tokens"),
            ({"architecture": "encoder"}, "is an encoder"),
            (
                {"num_heads": 8, "num_kv_heads": 8, "extra_params_per_layer": 8},
                "has attention sinks",
            ),
        )
    ),
    (
        "cp_fits_attention",
        small(position="alibi") | {"support": {"cp_attention": "any"}},
        {"cp": 2},
        "cp 2: megatron runs no biased attention, and small has alibi positions",
    ),
    (
        "states_have_ranks",
        {"support": {"tp_alone": "no"}},
        LAST,
        f"{GIVEN.format(1)} needs several beside tp",
    ),
    (
        "states_have_ranks",
        BARE,
        LAST,
        f"{GIVEN.format(1)} runs that only with nothing offloaded; given optimizer:host",
    ),
    (
        "states_have_ranks",
        BARE,
        LAST | {"dp": 2, "dp_replicate": 2, "offload": NONE},
        f"{GIVEN.format('2 / dp_replicate 2')} runs that only with dp 1",
    ),
    (
        "offload_offered",
        SPEED | {"support": {"nvme_zero_stages": (3,)}},
        ON_DISK,
        "offload optimizer:nvme under ZeRO 1: deepspeed offloads to NVMe under ZeRO 3",
    ),
    (
        "offload_offered",
        SPEED | {"optimizer": {"offload": "no"}},
        ON_DISK | {"offload": HOST},
        "offload optimizer:host: adam under deepspeed cannot be offloaded",
    ),
    (
        "offload_offered",
        SPEED,
        ON_DISK | {"offload": HOST, "zero_stage": 0},
        "offload optimizer:host under ZeRO 0: it needs stage 1",
    ),
    (
        "offload_percent_offered",
        PARTIAL | {"optimizer": {"offload": "whole"}},
        HALF,
        f"{PART.format('optimizer:host', 3)}adam under deepspeed is not offloaded in part",
    ),
    (
        "offload_percent_offered",
        PARTIAL,
        HALF | {"zero_stage": 1},
        f"{PART.format('optimizer:host', 1)}deepspeed offloads a part under ZeRO 3",
    ),
    (
        "offload_percent_offered",
        PARTIAL,
        HALF | {"offload": NONE},
        f"{PART.format('none', 3)}there is no optimizer state to",
    ),
    (
        "hybrid_sharding_offered",
        {"support": {"hybrid_sharding": False}},
        {"zero_stage": 1, "dp_replicate": 2},
        "dp_replicate 2: megatron has no hybrid sharding",
    ),
    (
        "hybrid_sharding_offered",
        SHARDING | {"optimizer": {"hybrid_sharding": False}},
        {"zero_stage": 1, "dp_replicate": 2},
        "dp_replicate 2: adam under megatron has no hybrid sharding",
    ),
    (
        "hybrid_sharding_offered",
        SHARDING,
        {"zero_stage": 0, "dp_replicate": 2},
        "dp_replicate 2 under ZeRO 0: nothing is sharded there",
    ),
    (
        "placement_offered",
        {},
        ORDER,
        "placement tp-cp-ep-pp-dp with etp 1 and tp 2: they must be the same",
    ),
    (
        "placement_offered",
        {},
        ORDER | {"ep": 4, "etp": 2},
        "placement tp-cp-ep-pp-dp with ep 4 and cp 1: both must be 1",
    ),
    (
        "secondary_partition_fits",
        SPEED | {"profile": "zero++"},
        {"tp": 2, "dp": 4, "zero_stage": 3},
        f"ZeRO 3 with tp 2 and cp 1: {COPY}, whose ranks must be neighbours: both 1",
    ),
    (
        "secondary_partition_fits",
        SPEED | {"profile": "zero++"},
        {"dp": 12, "zero_stage": 3},
        f"dp 12 under ZeRO 3: {COPY}, and the last of 8 is not full",
    ),
)


@pytest.mark.parametrize(("name", "where", "row", "said"), SAID)
def test_what_is_said_names_the_cause(
    name: str, where: Where, row: dict[str, int], said: str
) -> None:
    rule, context = BY_NAME[name], at(where)
    row = {degree: 1 for degree in GPUS if degree in rule.needs} | row
    assert set(row) == set(rule.needs)
    legal = rule.is_legal(context, {key: np.array([value]) for key, value in row.items()})
    assert legal.tolist() == [False]
    assert rule.words(context, row).startswith(said)
