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
from planner.layers.op import Op

CLUSTER = load_cluster("8xdgx-h100")
GROUP = Group(members=(np.array([8]), np.array([64])))


def remote_s(num_bytes: float, copies: float) -> float:
    seconds = collective_s("all_to_all", np.array([num_bytes]), GROUP, CLUSTER, copies)
    return float(seconds[0]) - CLUSTER.fabric.latency_s


def test_deduplicated_dispatch_sends_one_copy_per_domain_it_reaches() -> None:
    # 8 copies to 8 domains reach 8 (1 - (7/8)^8) = 5.25 of them on average.
    share = 8 * (1 - (7 / 8) ** 8) / 8
    assert remote_s(1e9, 8.0) == pytest.approx(share * remote_s(1e9, 1.0))


def test_without_deduplication_every_copy_crosses() -> None:
    # 7/8 of the buffer leaves the domain through one port.
    fabric = CLUSTER.fabric
    port = fabric.bytes_per_s * fabric.efficiency_fraction
    assert remote_s(1e9, 1.0) == pytest.approx(7 / 8 * 1e9 / port)


def test_experts_and_dispatch_wait_for_the_busiest_rank() -> None:
    model, traits = load_model("mixtral-8x7b"), load_traits("megatron").kernels

    def ops(ep: int, imbalance: float, **given: bool) -> dict[str, Op]:
        shape = replace(shape_of(seq_len=4096, ep=ep), imbalance_fraction=imbalance)
        return {op.name: op for op in moe_ops(model, shape, replace(traits, **given))}

    even, busy = ops(8, 0.0), ops(8, 0.5)
    for name in ("expert_up", "expert_down"):
        assert float(busy[name].gemms[0].flops[0]) == 1.5 * float(even[name].gemms[0].flops[0])
    received = busy["dispatch"].comms[0][0].num_bytes
    assert float(received[0]) == 1.5 * float(even["dispatch"].comms[0][0].num_bytes[0])
    # Of 3.5 passes two are beside the experts; what its dispatcher deduplicates is sorted there.
    traffic = float(busy["dispatch"].forward_bytes[0] / even["dispatch"].forward_bytes[0])
    assert traffic == pytest.approx((1.5 + 2 * 1.5) / 3.5)
    deduplicated = [ops(8, each, deduplicated_dispatch=True)["combine"] for each in (0.0, 0.5)]
    assert float(deduplicated[1].forward_bytes[0]) == 1.5 * float(deduplicated[0].forward_bytes[0])
    # One rank with all experts has all pairs, however they are routed.
    alone = ops(1, 0.5)
    assert float(alone["expert_up"].gemms[0].flops[0]) == float(even["expert_up"].gemms[0].flops[0])


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


def test_inside_a_domain_nothing_is_added_and_nothing_sent_starts_nothing() -> None:
    inside = Group(members=(np.array([8]), np.array([8])))
    assert not exchange_start_s(np.array([1e6]), inside).any()
    assert not exchange_start_s(np.array([0.0]), GROUP).any()


def test_a_router_takes_as_long_as_its_kernels_take_to_start() -> None:
    shape, model = shape_of(seq_len=4096, ep=8), load_model("mixtral-8x7b")
    for profile, kernels in (("current", (34, 15)), ("bridge", (10, 6)), ("nemo", (55, 29))):
        traits = load_traits("megatron", profile).kernels
        router = next(op for op in moe_ops(model, shape, traits) if op.name == "router")
        assert router.tiny_kernels == kernels


def test_a_bias_is_added_expert_by_expert() -> None:
    model, traits = load_model("gpt-oss-120b"), load_traits("megatron").kernels

    def kernels(ep: int, **given: bool) -> tuple[float, float]:
        ops = moe_ops(model, shape_of(seq_len=4096, ep=ep), replace(traits, **given))
        forward, backward = next(op for op in ops if op.name == "expert_down").tiny_kernels
        return float(np.ravel(forward)[0]), float(np.ravel(backward)[0])

    assert kernels(8) == (2 * 16, 7 * 16)
    assert kernels(64) == (2 * 2, 7 * 2)
    assert kernels(8, fused_experts=True) == (0, 0)


def test_hybrid_ep_sends_probabilities_along_and_gathers_the_routing_map() -> None:
    model, traits = load_model("nemotron-3-super-120b-a12b"), load_traits("megatron").kernels
    traits = replace(traits, dispatch_permutes=True, deduplicated_dispatch=True)
    ops = {op.name: op for op in moe_ops(model, shape_of(seq_len=8192, ep=64), traits)}
    # 8192 tokens go to 64 (1 - (63/64)^22) ranks, with 512 probabilities of 4 bytes
    distinct = 64 * (1 - (63 / 64) ** 22)
    carried = [
        way[0].domain_bytes.item() for name in ("dispatch", "combine") for way in ops[name].comms
    ]
    probabilities = pytest.approx(8192 * distinct * 512 * 4)
    assert carried == [probabilities, 0.0, 0.0, probabilities]
    (gather,) = (comm for comm in ops["dispatch"].comms[0][1:] if comm.axis == "ep")
    assert gather.num_bytes == 64 * 8192 * 512
