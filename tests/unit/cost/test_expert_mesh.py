"""Experts on a mesh of their own, by hand: NVIDIA's recipe for Qwen3-235B on 256 H100.

tp 2, pp 8, vpp 4, dp 16, ep 32, etp 1: 2 x 16 = 32 ranks of a stage hold 4 of 128 experts each.
"""

from dataclasses import replace

import numpy as np
import pytest
from contexts import columns_of, context_of, shape_of, with_traits
from forward_flops import forward_flops
from rank_parameters import rank_parameters

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.kernels import permutation_pace
from planner.cost.layer import layer_costs
from planner.cost.network import collective_s, exchange_start_s
from planner.cost.stage_parts import stage_parameters
from planner.cost.states import expert_shard_degree, shard_degree
from planner.cost.topology import Group, group_of
from planner.frameworks.registry import load_traits
from planner.layers.mlp import exchange_op, expert_ops, moe_ops
from planner.layers.op import LayerShape, Op
from planner.spec.traits import KernelTraits

HIDDEN, EXPERT_FFN, EXPERTS, TOP_K, SEQ_LEN = 4096, 1536, 128, 8, 4096
ONE_EXPERT = 3 * HIDDEN * EXPERT_FFN  # Gate, up and down: 18,874,368
KERNELS = load_traits("megatron").kernels


MODEL = load_model("qwen3-235b-a22b")
RECIPE = {"tp": 2, "pp": 8, "dp": 16, "ep": 32, "etp": 1, "sequence_parallel": 1, "zero_stage": 1}
COLUMNS = columns_of(**RECIPE, vpp=4, num_micro_batches=8)
WHOLE = shape_of(seq_len=SEQ_LEN, tp=2, ep=32, etp=1, sp=1)


def one(value: np.ndarray) -> float:
    return float(np.ravel(value)[0])


def exchange(name: str, shape: LayerShape, kernels: KernelTraits = KERNELS) -> Op:
    assert MODEL.moe is not None
    return exchange_op(name, MODEL, MODEL.moe, shape, kernels)


def experts(shape: LayerShape) -> tuple[Op, ...]:
    assert MODEL.moe is not None
    return expert_ops(MODEL, MODEL.moe, shape, KERNELS)


def test_a_rank_holds_whole_experts_and_nobody_else_the_same() -> None:
    assert one(COLUMNS.num_gpus) == 256
    # 32 ranks / (etp 1 · ep 32)
    assert one(COLUMNS.expert_dp) == 1
    assert sum(one(op.params) for op in experts(WHOLE)) == 4 * ONE_EXPERT == 75_497_472
    # 12 layers: 906 M parameters, 1.7 GiB of bf16 weights.
    stage = rank_parameters(MODEL, [10, *[12] * 7], stage=1, tp=2, ep=32, etp=1)
    assert stage.experts == 12 * 4 * ONE_EXPERT
    split = rank_parameters(MODEL, [10, *[12] * 7], stage=1, tp=2, ep=32)
    assert (split.experts, split.dense) == (stage.experts // 2, stage.dense)


def test_work_of_whole_and_of_split_experts_is_the_same() -> None:
    # 4096 tokens on a rank of tp 2, 8 experts each: 32,768 pairs. Whole experts see the half of
    # them at full width, split ones all at half the width.
    pairs = SEQ_LEN * TOP_K
    for etp, rows, width in ((1, pairs / 2, EXPERT_FFN), (2, pairs, EXPERT_FFN / 2)):
        up, activation, down = experts(shape_of(seq_len=SEQ_LEN, tp=2, ep=32, etp=etp, sp=1))
        [product] = up.gemms
        assert (one(product.m), one(product.n), one(product.k)) == (rows / 4, 2 * width, HIDDEN)
        flops = one(forward_flops(up) + forward_flops(down))
        assert flops == 3 * 2 * pairs * HIDDEN * EXPERT_FFN / 2
        saved = {tensor.name: one(tensor.num_bytes) for tensor in activation.saved}
        assert saved["expert_activation.input"] == 2 * rows * HIDDEN
        assert saved["expert_activation.gate"] == 2 * rows * width


def test_every_tensor_parallel_rank_sends_its_own_tokens() -> None:
    half_of_pairs = SEQ_LEN / 2 * TOP_K * HIDDEN * 2
    for name in ("dispatch", "combine"):
        sent, gathered = exchange(name, WHOLE).comms[0]
        assert (sent.axis, sent.collective) == ("ep", "all_to_all")
        assert one(sent.num_bytes) == half_of_pairs == 134_217_728
        assert (gathered.axis, one(gathered.num_bytes)) == ("etp", 0.0)


def test_tokens_are_sorted_by_the_dispatcher_or_by_kernels_of_the_framework() -> None:
    for dispatcher, passes in (("hybridep", 2.0), ("deepep", 2.0), ("alltoall", 3.5)):
        traits = replace(KERNELS, dispatcher=dispatcher)
        op = exchange("dispatch", shape_of(seq_len=SEQ_LEN, ep=8), traits)
        assert one(op.forward_bytes) == passes * SEQ_LEN * TOP_K * HIDDEN * 2
        assert op.is_permutation is (dispatcher != "hybridep")


@pytest.mark.parametrize(("node", "pace"), [("dgx-b200", 3.5), ("dgx-h100", 1.64), ("dgx-2", 1.0)])
def test_sorting_is_bound_by_multiprocessors(node: str, pace: float) -> None:
    accelerator = load_cluster(f"1x{node}").node.accelerator
    assert permutation_pace(3.5, accelerator) == pytest.approx(pace, rel=0.01)
    assert permutation_pace(1.0, accelerator) == 1.0


def test_passes_are_those_of_the_framework_both_ways() -> None:
    traits = load_traits("torchtitan", "prime-rl").kernels
    pairs_hidden = SEQ_LEN * TOP_K * HIDDEN
    ops = [exchange(name, shape_of(seq_len=SEQ_LEN), traits) for name in ("dispatch", "combine")]
    assert sum(one(op.forward_bytes) for op in ops) == (27 + 12) * pairs_hidden
    assert sum(one(op.backward_bytes) for op in ops) == (31 + 27) * pairs_hidden


def test_split_experts_gather_their_pairs() -> None:
    every_pair = SEQ_LEN * TOP_K * HIDDEN * 2
    gather_and_scatter = ("all_gather", "reduce_scatter")
    for name, step in (("dispatch", 1), ("combine", -1)):
        op = exchange(name, shape_of(seq_len=SEQ_LEN, tp=2, ep=16, sp=1))
        for comms, collective in zip(op.comms, gather_and_scatter[::step], strict=True):
            sent, gathered = comms
            assert one(sent.num_bytes) == every_pair / 2
            assert (gathered.collective, one(gathered.num_bytes)) == (collective, every_pair)


def test_tokens_are_gathered_where_pairs_are_not() -> None:
    tokens = replace(KERNELS, gathers_expert_pairs=False)
    [_, gathered] = exchange("dispatch", shape_of(seq_len=SEQ_LEN, tp=2, sp=1), tokens).comms[0]
    assert (gathered.axis, one(gathered.num_bytes)) == ("tp", SEQ_LEN * HIDDEN * 2)
    comms = exchange("dispatch", WHOLE, tokens).comms[0]
    assert all(one(comm.num_bytes) == 0.0 for comm in comms if comm.axis == "tp")


def test_states_of_experts_are_sharded_over_their_replicas() -> None:
    context = context_of(model=MODEL, cluster="32xdgx-h100", seq_len=SEQ_LEN)
    # 6 + 12 / 1 for experts (fp32 master and moments), 6 + 12 / 16 for the rest.
    assert (one(shard_degree(COLUMNS)), one(expert_shard_degree(COLUMNS))) == (16, 1)
    # Half the experts' ranks: every expert twice.
    assert one(expert_shard_degree(columns_of(**RECIPE | {"ep": 16}))) == 2
    # Two replicas of the sharding group: 16 ranks each, experts once in each.
    assert one(expert_shard_degree(columns_of(**RECIPE | {"ep": 16, "dp_replicate": 2}))) == 1
    parts = stage_parameters(context, COLUMNS)
    assert one(parts.states.optimizer) * 16 == one(parts.expert_states.optimizer)
    # On their nodes: 32 neighbours are four nodes of eight.
    near = group_of("ep", COLUMNS, context.cluster)
    assert (one(near.size), one(near.local), one(near.num_domains)) == (32, 8, 4)
    assert one(group_of("expert_dp_shard_cp", COLUMNS, context.cluster).size) == 1


def test_split_experts_cost_what_they_cost_inside_data_parallelism() -> None:
    """With tp 1, or etp = tp, nothing but the gathered pairs is new."""
    context = context_of(model="mixtral-8x7b", cluster="4xdgx-h100", seq_len=SEQ_LEN)
    silent = with_traits(context, kernels={"gathers_expert_pairs": False})
    columns = columns_of(tp=[1, 4], dp=[32, 8], ep=8, sequence_parallel=[0, 1], micro_batch=1)
    costs, others = layer_costs(context, columns), layer_costs(silent, columns)
    assert np.array_equal(costs.expert_params, others.expert_params)
    # Whole tokens are routed, not a quarter: 12 bytes for each of 8 experts.
    routed = costs.at(others.body.saved_bytes - costs.body.saved_bytes)
    assert routed.tolist() == [0.0, SEQ_LEN * 0.75 * 8 * 12]
    # Mixtral: 8 x 3 · 4096 · 14336 over ep 8 (and tp 4).
    assert costs.at(costs.expert_params).tolist() == [176_160_768.0, 44_040_192.0]
    exchanged, gathered = costs.forward["expert_parallel"], costs.forward["tensor_parallel"]
    assert np.array_equal(exchanged.busy_s, others.forward["expert_parallel"].busy_s)
    more = costs.at(gathered.busy_s - others.forward["tensor_parallel"].busy_s)
    assert more[0] == 0.0 < more[1]


CLUSTER = load_cluster("8xdgx-h100")
GROUP = Group(members=(np.array([8]), np.array([64])))


def ops_of(
    model: str, shape: LayerShape, profile: str = "current", **given: object
) -> dict[str, Op]:
    traits = replace(load_traits("megatron", profile).kernels, **given)
    return {op.name: op for op in moe_ops(load_model(model), shape, traits)}


def remote_s(num_bytes: float, copies: float) -> float:
    seconds = collective_s("all_to_all", np.array([num_bytes]), GROUP, CLUSTER, copies)
    return float(seconds[0]) - CLUSTER.fabric.latency_s


def test_deduplicated_dispatch_sends_one_copy_per_domain_it_reaches_any_other_all() -> None:
    # 7/8 of the buffer leaves the domain through one port.
    port = CLUSTER.fabric.bytes_per_s * CLUSTER.fabric.efficiency_fraction
    assert remote_s(1e9, 1.0) == pytest.approx(7 / 8 * 1e9 / port)
    # 8 copies to 8 domains reach 8 (1 - (7/8)^8) = 5.25 of them on average.
    share = 8 * (1 - (7 / 8) ** 8) / 8
    assert remote_s(1e9, 8.0) == pytest.approx(share * remote_s(1e9, 1.0))


def test_experts_and_dispatch_wait_for_the_busiest_rank() -> None:
    def ops(ep: int, imbalance: float, **given: str) -> dict[str, Op]:
        shape = replace(shape_of(seq_len=4096, ep=ep), imbalance_fraction=imbalance)
        return ops_of("mixtral-8x7b", shape, **given)

    even, busy = ops(8, 0.0), ops(8, 0.5)
    for name in ("expert_up", "expert_down"):
        assert busy[name].gemms[0].flops == 1.5 * even[name].gemms[0].flops
    sent, received = (each["dispatch"].comms[0][0].num_bytes for each in (even, busy))
    assert received == 1.5 * sent
    # Of 3.5 passes two are beside the experts; what its dispatcher deduplicates is sorted there.
    traffic = busy["dispatch"].forward_bytes / even["dispatch"].forward_bytes
    assert traffic == pytest.approx((1.5 + 2 * 1.5) / 3.5)
    evenly, busily = (ops(8, each, dispatcher="deepep")["combine"] for each in (0.0, 0.5))
    assert busily.forward_bytes == 1.5 * evenly.forward_bytes
    # One rank with all experts has all pairs, however they are routed.
    assert ops(1, 0.5)["expert_up"].gemms[0].flops == even["expert_up"].gemms[0].flops


@pytest.mark.parametrize(
    ("tokens", "published_us"), [(1024, 967), (4096, 3522), (16384, 13517), (65536, 53330)]
)
def test_an_exchange_between_nodes_takes_its_start(tokens: int, published_us: float) -> None:
    # DeepEP's combine on 4 nodes of 8 H100, hidden size 7168, top 8 (aiconfigurator-core 0.12.0).
    group = Group(members=(np.array([8]), np.array([32])))
    sent = np.array([tokens * 8 * 7168 * 2.0])
    transfer_s = collective_s("all_to_all", sent, group, load_cluster("4xdgx-h100"), 8.0)
    seconds = transfer_s + exchange_start_s(sent, group)
    assert 1e6 * float(seconds[0]) == pytest.approx(published_us, rel=0.05)
    # Inside a domain nothing is added, and nothing sent starts nothing.
    inside = Group(members=(np.array([8]), np.array([8])))
    assert not exchange_start_s(sent, inside).any()
    assert not exchange_start_s(0.0 * sent, GROUP).any()


def test_a_router_takes_as_long_as_its_kernels_take_to_start() -> None:
    shape = shape_of(seq_len=4096, ep=8)
    for profile, kernels in (("current", (34, 15)), ("bridge", (10, 6)), ("nemo", (55, 29))):
        assert ops_of("mixtral-8x7b", shape, profile)["router"].tiny_kernels == kernels


@pytest.mark.parametrize(("ep", "fused", "experts"), [(8, False, 16), (64, False, 2), (8, True, 0)])
def test_a_bias_is_added_expert_by_expert(ep: int, fused: bool, experts: int) -> None:
    ops = ops_of("gpt-oss-120b", shape_of(seq_len=4096, ep=ep), cuda_graph_fraction=float(fused))
    counts = [float(np.ravel(each)[0]) for each in ops["expert_down"].tiny_kernels]
    assert counts == [2 * experts, 7 * experts]


def test_hybrid_ep_sends_probabilities_along_and_gathers_the_routing_map() -> None:
    given = {"dispatcher": "hybridep"}
    ops = ops_of("nemotron-3-super-120b-a12b", shape_of(seq_len=8192, ep=64), **given)
    # 8192 tokens go to 64 (1 - (63/64)^22) ranks, with 512 probabilities of 4 bytes
    distinct = 64 * (1 - (63 / 64) ** 22)
    carried = [
        way[0].domain_bytes.item() for name in ("dispatch", "combine") for way in ops[name].comms
    ]
    probabilities = pytest.approx(8192 * distinct * 512 * 4)
    assert carried == [probabilities, 0.0, 0.0, probabilities]
    (gather,) = (comm for comm in ops["dispatch"].comms[0][1:] if comm.axis == "ep")
    assert gather.num_bytes == 64 * 8192 * 512
