"""Figures that are turned: the same as overriding them in a cluster file."""

from dataclasses import replace
from pathlib import Path

import pytest
from contexts import context_of

from planner.answers.parameters import parameters
from planner.catalog.clusters import load_cluster, node_of_catalog
from planner.cost.context import Context
from planner.spec.cluster import ClusterSpec
from planner.units import GB, GBIT_PER_S, GIB


def context_on(cluster: ClusterSpec) -> Context:
    return replace(context_of(model="llama3-8b", global_batch=512, seq_len=8192), cluster=cluster)


def bare(cluster: ClusterSpec) -> ClusterSpec:
    """Without names, and without what was assumed or said of figures."""
    accelerator = replace(cluster.accelerator, assumptions=())
    node = replace(
        cluster.node, accelerator=accelerator, assumptions=(), host_memory_note="", whole=None
    )
    return replace(cluster, name="", node=node, assumptions=())


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.25])
@pytest.mark.parametrize("node", ["dgx-h100", "dgx-a100-640", "pcie-8x-l40s"])
def test_turning_a_figure_is_overriding_it(tmp_path: Path, node: str, factor: float) -> None:
    context = context_on(load_cluster(f"2x{node}"))
    nics = node_of_catalog(node)[0]
    keys = []
    for figure in parameters(context):
        if not figure.is_hardware:
            continue
        keys.append(figure.key)
        value = figure.value * figure.factor(factor)
        if figure.key == "nic_gbit_per_s":
            file_nics = round(nics.nic_bytes_per_s / GBIT_PER_S / 400) or 1
            value = value * GB * nics.num_accelerators / GBIT_PER_S / file_nics
            overrides = f"nics: {file_nics}, {figure.key}: {value!r}"
        else:
            overrides = f"{figure.key}: {value!r}"
        if figure.key == "hbm_gib":
            # what is assumed of a host would follow it, where a node's file states no host memory
            host = (context.cluster.node.host_memory_bytes or 0.0) / GIB
            overrides += f", host_memory_gib: {host!r}"
        path = tmp_path / f"{figure.key}.yaml"
        path.write_text(f"node: {node}\ncount: 2\noverrides: {{{overrides}}}\n")
        stated, turned = load_cluster(str(path)), figure.scaled(context, factor).cluster
        assert_same(bare(turned), bare(stated))
    assert {"bf16_dense_tflops", "hbm_gib", "nic_gbit_per_s", "host_memory_gib"} <= set(keys)


def assert_same(turned: object, stated: object) -> None:
    fields = getattr(stated, "__dataclass_fields__", None)
    if fields is not None:
        for name in fields:
            assert_same(getattr(turned, name), getattr(stated, name))
    elif isinstance(stated, dict):
        assert isinstance(turned, dict)
        assert turned.keys() == stated.keys()
        for key, value in stated.items():
            assert_same(turned[key], value)
    elif isinstance(stated, tuple):
        assert isinstance(turned, tuple)
        for one, other in zip(turned, stated, strict=True):
            assert_same(one, other)
    elif isinstance(stated, float):
        assert turned == pytest.approx(stated, rel=1e-12)
    else:
        assert turned == stated


def test_a_single_node_has_no_network_and_a_single_gpu_no_links() -> None:
    one_node = {each.key for each in parameters(context_on(load_cluster("1xdgx-h100")))}
    assert not {"nic_gbit_per_s", "fabric_latency_us"} & one_node
    assert "scale_up_gb_per_s_per_direction" in one_node
    one_gpu = {each.key for each in parameters(context_on(load_cluster("1xh100-sxm")))}
    assert not {"scale_up_gb_per_s_per_direction", "nic_gbit_per_s"} & one_gpu


def test_a_share_is_at_most_all() -> None:
    context = context_on(load_cluster("1xdgx-h100"))
    share = next(one for one in parameters(context) if one.key == "gemm_sustained_fraction")
    turned = share.scaled(context, 2.0)
    assert turned.cluster.accelerator.gemm.sustained_fraction == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("key", "factor", "whole"),
    [("global_batch", 0.9, 448), ("seq_len", 1.1, 9216), ("num_layers", 0.5, 16)],
)
def test_batch_length_and_layers_stay_whole_and_divide_well(
    key: str, factor: float, whole: int
) -> None:
    context = context_on(load_cluster("1xdgx-h100"))
    figure = next(one for one in parameters(context) if one.key == key)
    turned = figure.scaled(context, factor)
    owner = turned.model if key == "num_layers" else turned.job
    assert getattr(owner, key) == whole
    assert figure.factor(factor) * figure.value == whole


def test_machines_known_to_differ_give_their_own_range() -> None:
    context = context_on(load_cluster("1xdgx-b200"))
    gemm = context.cluster.accelerator.gemm
    share = next(one for one in parameters(context) if one.key == "gemm_sustained_fraction")
    assert share.ends == (
        gemm.slowest / gemm.sustained_fraction,
        gemm.fastest / gemm.sustained_fraction,
    )
