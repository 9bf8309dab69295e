"""The folder for ASTRA-sim: who sends has a receiver, bytes and time are those of the model."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from chakra_traces import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Folder,
    read_folder,
    replay_us,
    transfer_key,
)
from contexts import context_of, priced, with_traits

from planner.answers.base import Plan
from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.stage_model import price
from planner.cost.timeline import timeline
from planner.errors import InputError
from planner.report.astra_sim import MAX_RANKS, check_size, folder_files, network

LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b": {"tp": 2, "pp": 4},
    "interleaved": {"tp": 2, "pp": 2, "vpp": 4},
    "context": {"tp": 2, "cp": 2, "pp": 2},
    "dp inside pp": {"tp": 2, "pp": 2, "placement": "tp-cp-ep-pp-dp"},
    "recomputed": {"tp": 2, "pp": 4, "recompute": "full"},
    "v-shaped": {"tp": 2, "pp": 4, "schedule": "zb-v"},
    "two at once": {"tp": 2, "pp": 2, "schedule": "dualpipe-v"},
    "no pipeline": {"tp": 4},
    "data parallel": {},
}
NAMES = {0: "all_reduce", 2: "all_gather", 6: "all_to_all", 7: "reduce_scatter"}


def two_nodes(model: str = "llama3-8b", cluster: str = "2xdgx-h100", **more: Any) -> Context:
    return context_of(model=model, cluster=cluster, global_batch=16, seq_len=2048, **more)


def made(context: Context, **layout: Any) -> Plan:
    """A plan; schedules and placements that no framework here offers are put into it."""
    free = {name: layout.pop(name) for name in ("placement", "schedule") if name in layout}
    context, strategy = fill_in(context, requested(global_batch=16, **layout))
    return priced(context, replace(strategy, **free))


def written(plan: Plan, folder: Path) -> Folder:
    drawn = timeline(price(plan.context, plan.strategy))
    for file in folder_files(plan, drawn, "plan"):
        (folder / file.name).write_bytes(file.content)
    return read_folder(folder)


@pytest.fixture(params=LAYOUTS, ids=str)
def plan(request: pytest.FixtureRequest) -> Plan:
    context = two_nodes()
    return made(context, **LAYOUTS[request.param])


@pytest.fixture
def folder(plan: Plan, tmp_path: Path) -> Folder:
    return written(plan, tmp_path)


def test_every_rank_has_a_trace_whose_nodes_wait_for_earlier_ones(
    plan: Plan, folder: Folder
) -> None:
    assert sorted(folder.ranks) == list(range(plan.strategy.num_gpus))
    for nodes in folder.ranks.values():
        assert [node.id for node in nodes] == list(range(len(nodes)))
        assert all(one < node.id for node in nodes for one in node.after)


def test_every_send_has_its_receive(plan: Plan, folder: Folder) -> None:
    sent, received = Counter[Any](), Counter[Any]()
    for rank, nodes in folder.ranks.items():
        for node in nodes:
            if node.type == SEND:
                assert node.attributes["comm_src"] == rank != node.attributes["comm_dst"]
                sent[transfer_key(node)] += 1
            elif node.type == RECEIVE:
                assert node.attributes["comm_dst"] == rank
                received[transfer_key(node)] += 1
    assert sent == received
    assert set(sent.values()) <= {1}, "no two messages look alike"
    assert bool(sent) == (plan.strategy.pp > 1)


def test_replayed_with_its_own_durations_it_takes_the_modelled_iteration(
    plan: Plan, folder: Folder
) -> None:
    drawn = timeline(price(plan.context, plan.strategy))
    beyond_s = max(drawn.modelled_s - drawn.simulated_s, 0.0)
    expected = (plan.estimate.iter_time_s - beyond_s) * 1e6
    assert replay_us(folder) == pytest.approx(expected, abs=1.0)


def test_stages_that_do_not_wait_for_one_another_step_when_they_are_done(tmp_path: Path) -> None:
    context = two_nodes()
    plan = made(with_traits(context, overlap={"optimizer_waits_for_all_stages": False}), tp=2, pp=4)
    drawn = timeline(price(plan.context, plan.strategy))
    ends = []
    for slices in drawn.stages:
        tail = sum(one.end_s - one.start_s for one in slices if one.seconds and not one.slot)
        ends.append(max(one.end_s for one in slices if one.slot) + tail)
    folder = written(plan, tmp_path)
    assert replay_us(folder) == pytest.approx(max(ends) * 1e6, abs=1.0)
    names = [node.name for nodes in folder.ranks.values() for node in nodes]
    assert "pipeline flush" not in names


def test_repeated_collectives_take_the_seconds_of_the_first_time(tmp_path: Path) -> None:
    context = two_nodes()
    folder = written(made(context, tp=2, pp=4, recompute="full"), tmp_path)

    def seconds_of(name: str) -> list[int]:
        return [node.duration_us for node in folder.ranks[4] if node.name == name]

    first = seconds_of("forward 0: tensor_parallel")
    again = seconds_of("backward 0: recompute")
    assert again
    assert sum(again) == pytest.approx(sum(first), abs=2)


def test_members_of_a_group_send_the_same(folder: Folder) -> None:
    by_group: dict[Any, dict[int, list[Any]]] = {}
    for rank, nodes in folder.ranks.items():
        for node in nodes:
            if node.type == COLLECTIVE:
                members = folder.members(node)
                assert rank in members
                line = (node.attributes["comm_type"], node.attributes["comm_size"])
                by_group.setdefault(members, {}).setdefault(rank, []).append(line)
    for members, lines in by_group.items():
        assert set(lines) == set(members)
        assert all(own == lines[members[0]] for own in lines.values())


def bytes_of(folder: Folder, rank: int, word: str) -> dict[tuple[str, int], int]:
    """Bytes as nccl-tests counts them by collective and members, of nodes whose name has a word."""
    total: dict[tuple[str, int], int] = {}
    for node in folder.ranks[rank]:
        if node.type == COLLECTIVE and word in node.name:
            members = len(folder.members(node))
            name = NAMES[int(node.attributes["comm_type"])]
            size = int(node.attributes["comm_size"]) * (members if name == "all_gather" else 1)
            total[name, members] = total.get((name, members), 0) + size
    return total


def test_bytes_of_tensor_parallelism_are_those_of_the_layers(tmp_path: Path) -> None:
    context = two_nodes()
    plan = made(context, tp=2, pp=4, sequence_parallel=True)
    found = bytes_of(written(plan, tmp_path), 5, "tensor_parallel")
    # Per layer and micro-batch, of 2048 x 4096 bf16 elements: forward two gathers and two
    # scatters; backward as many, and two gathers for the weight gradients.
    layers, size = 8 * plan.strategy.num_micro_batches, 2048 * 4096 * 2
    assert found == {("all_gather", 2): layers * 6 * size, ("reduce_scatter", 2): layers * 4 * size}


def test_bytes_of_data_parallelism_are_those_of_the_parameters(tmp_path: Path) -> None:
    context = two_nodes()
    plan = made(context, tp=4, pp=1, zero_stage=1)
    found = bytes_of(written(plan, tmp_path), 3, "data_parallel")
    params = price(plan.context, plan.strategy).parts
    per_rank = float((32 * params.params + params.first_params + params.last_params)[0])
    assert per_rank == pytest.approx(8.03e9 / 4, rel=0.01)
    assert found == {
        ("reduce_scatter", 4): pytest.approx(per_rank * 4, rel=1e-6),
        ("all_gather", 4): pytest.approx(per_rank * 2, rel=1e-6),
    }


def test_stage_3_gathers_twice_a_micro_batch_and_scatters_once(tmp_path: Path) -> None:
    context = two_nodes(framework="torchtitan")
    plan = made(context, zero_stage=3)
    assert plan.strategy.num_micro_batches == 1
    folder = written(plan, tmp_path)
    found = bytes_of(folder, 0, "sharding")
    assert found["all_gather", 16] == pytest.approx(2 * 2 * 8.03e9, rel=0.01)
    wire = context.traits.states.zero2_gradient_bytes or context.traits.states.gradient_reduce_bytes
    assert found["reduce_scatter", 16] == pytest.approx(wire * 8.03e9, rel=0.01)


def test_experts_exchange_and_reduce_in_groups_of_their_own(tmp_path: Path) -> None:
    context = two_nodes("mixtral-8x7b", "4xdgx-h100")
    plan = made(context, tp=2, pp=2, ep=4)
    folder = written(plan, tmp_path)
    drawn = timeline(price(plan.context, plan.strategy))
    assert drawn.modelled_s <= drawn.simulated_s * (1 + 1e-9)
    assert replay_us(folder) == pytest.approx(plan.estimate.iter_time_s * 1e6, abs=1.0)
    exchanged = bytes_of(folder, 0, "expert_parallel")
    tokens = 2048 / 2 * 2  # of a rank under sequence parallelism, times the experts of each
    layers = 16 * plan.strategy.num_micro_batches
    assert exchanged == {("all_to_all", 4): layers * 4 * tokens * 4096 * 2}
    reduced = bytes_of(folder, 0, "data_parallel")
    assert {members for _, members in reduced} == {2, 8}, "experts over 2 ranks, the rest over 8"


def test_the_network_is_the_cluster_s_levels(tmp_path: Path) -> None:
    context = two_nodes()
    plan = made(context, tp=2, pp=4)
    written(plan, tmp_path)
    found = yaml.safe_load((tmp_path / "network.yml").read_text())
    inner, outer = context.cluster.levels
    assert found["topology"] == ["Switch", "Switch"]
    assert found["npus_count"] == [8, 2]
    rates = [level.achieved_bytes_per_s / 2**30 for level in (inner, outer)]
    assert found["bandwidth"] == pytest.approx(rates, rel=1e-5)
    # Up to the switch and down again are two hops there.
    waits = [level.latency_s * 1e9 for level in (inner, outer)]
    assert [2 * one for one in found["latency"]] == pytest.approx(waits, rel=1e-5)
    system = json.loads((tmp_path / "system.json").read_text())
    assert system["all-reduce-implementation"] == ["ring", "ring"]


def test_a_torus_is_a_ring_per_dimension() -> None:
    cluster = context_of(model="llama3-8b", cluster="1xdgx-h100").cluster
    torus = replace(cluster.node.scale_up, topology="torus_2d", dims=(2, 4))
    torus_cluster = replace(cluster, node=replace(cluster.node, scale_up=torus))
    assert [one[:2] for one in network(torus_cluster, 8, "plan")] == [("Ring", 2), ("Ring", 4)]


def test_ranks_that_fill_no_nodes_are_refused_with_their_number() -> None:
    cluster = context_of(model="llama3-8b", cluster="2xdgx-h100").cluster
    with pytest.raises(InputError, match=r"12 GPUs do not fill .* groups of 8"):
        network(cluster, 12, "plan")


def test_more_ranks_than_files_are_refused_with_the_most(plan: Plan) -> None:
    check_size(plan.strategy, "best.yaml")
    with pytest.raises(InputError, match=rf"best.yaml::strategy: .*at most {MAX_RANKS:,}"):
        check_size(replace(plan.strategy, dp=MAX_RANKS, tp=2), "best.yaml")


def test_kernels_have_the_durations_and_nothing_else(folder: Folder) -> None:
    for node in folder.ranks[0]:
        assert node.attributes.pop("is_cpu_op") is False
        if node.type == COMPUTE:
            assert node.attributes == {}
        assert node.duration_us >= 0
