"""A part of a node costs and holds what it does in the whole node, whatever the node's topology."""

from dataclasses import replace
from pathlib import Path

import pytest
from contexts import context_of, small_model, strategy_of
from depth import of_all
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.answers.collective import group_levels
from planner.catalog.clusters import load_cluster, load_cluster_of
from planner.cost.estimate import estimate
from planner.cost.kernels import usual_precision
from planner.errors import InputError

NODES = sorted(
    path.stem for path in (Path(planner.__file__).parents[1] / "hwdb" / "nodes").glob("*.yaml")
)
DEGREES = [1, 2, 4, 8]


@settings(max_examples=of_all(300), derandomize=True)
@given(
    node=st.sampled_from(NODES),
    framework=st.sampled_from(["megatron", "deepspeed"]),
    degrees=st.tuples(*[st.sampled_from(DEGREES)] * 4),
    zero_stage=st.sampled_from([0, 1, 2, 3]),
    offload=st.sampled_from(["none", "optimizer:host", "optimizer+parameters:host"]),
)
def test_a_part_of_a_node_costs_what_it_does_in_the_node(
    node: str, framework: str, degrees: tuple[int, int, int, int], zero_stage: int, offload: str
) -> None:
    dp, tp, pp, cp = degrees
    whole = load_cluster(f"1x{node}")
    number = dp * tp * pp * cp
    if number >= whole.num_accelerators:
        return
    try:
        part = load_cluster_of(f"1x{node}", number)
    except InputError:
        return
    precision = usual_precision(part.accelerator)
    context = context_of(framework=framework, model=small_model(num_layers=8), precision=precision)
    strategy = strategy_of(
        **dict(zip(("dp", "tp", "pp", "cp"), degrees, strict=True)),
        etp=1,
        zero_stage=zero_stage,
        num_micro_batches=16 // dp,
        sequence_parallel=tp > 1,
        offload=offload,
        layers_per_stage=(8 // pp,) * pp,
    )
    alone, inside = (
        estimate(replace(context, cluster=cluster), strategy) for cluster in (part, whole)
    )
    assert alone.iter_time_s == pytest.approx(inside.iter_time_s, rel=1e-9)
    for figure in ("peak_bytes", "host_limit_bytes"):
        whole_bytes = getattr(inside.memory, figure)
        assert getattr(alone.memory, figure) == pytest.approx(whole_bytes, rel=1e-9)


@pytest.mark.parametrize("node", NODES)
def test_links_of_a_part_are_those_of_the_node(node: str) -> None:
    whole = load_cluster(f"1x{node}")
    for number in (each for each in DEGREES[1:] if each < whole.num_accelerators):
        try:
            part = load_cluster_of(f"1x{node}", number)
            inside = group_levels(whole, number)
        except InputError:
            continue
        assert group_levels(part, number) == inside
