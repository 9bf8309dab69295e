from dataclasses import replace

import numpy as np
import pytest
from contexts import shape_of

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.network import collective_s, exchange_start_s
from planner.cost.topology import Group
from planner.frameworks.registry import load_traits
from planner.layers.mlp import moe_ops
from planner.layers.op import LayerShape, Op

CLUSTER = load_cluster("8xdgx-h100")
GROUP = Group(members=(np.array([8]), np.array([64])))


def ops_of(model: str, shape: LayerShape, profile: str = "current", **given: bool) -> dict[str, Op]:
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
    def ops(ep: int, imbalance: float, **given: bool) -> dict[str, Op]:
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
    evenly, busily = (ops(8, each, deduplicated_dispatch=True)["combine"] for each in (0.0, 0.5))
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
    ops = ops_of("gpt-oss-120b", shape_of(seq_len=4096, ep=ep), fused_experts=fused)
    counts = [float(np.ravel(each)[0]) for each in ops["expert_down"].tiny_kernels]
    assert counts == [2 * experts, 7 * experts]


def test_hybrid_ep_sends_probabilities_along_and_gathers_the_routing_map() -> None:
    given = {"dispatch_permutes": True, "deduplicated_dispatch": True}
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
