"""A machine stated whole: a table of a known one gives it back, and plans take its file."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from tables import ADAM_BYTES_PER_S, ALL_REDUCE, MACHINE, TRUTH, at, blank, synthetic

from planner.calibrate.fit import Calibration, calibrate, cluster_text
from planner.calibrate.machine import stated
from planner.calibrate.points import table_points
from planner.calibrate.rows import Table
from planner.catalog.clusters import load_cluster
from planner.cost.kernels import offered_precisions, usual_precision
from planner.errors import InputError


def fitted(table: Table) -> Calibration:
    base = stated("x.csv", table, Path("x.yaml"))
    return calibrate(base, list(table_points("x.csv", table, base.cluster)))


@pytest.fixture(scope="module")
def made() -> Calibration:
    return fitted(synthetic())


@pytest.fixture
def file(made: Calibration, tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(cluster_text(made, "x", date(2026, 1, 2), tmp_path))
    return path


def test_a_table_gives_back_the_machine_it_was_made_from(file: Path) -> None:
    cluster = load_cluster(file)
    own, node = cluster.accelerator, cluster.node
    assert own.name == "a-2-threads"
    assert own.peak_flops_per_s == {"fp32": pytest.approx(50e9, rel=1e-3)}
    assert own.gemm.launch_s == pytest.approx(TRUTH.gemm.launch_s, rel=0.2)
    assert own.hbm_bytes_per_s == pytest.approx(12e9, rel=1e-3)
    assert own.memory_bound_fraction == pytest.approx(0.4, rel=0.1)
    for name in ("forward_fraction", "backward_fraction"):
        wanted = getattr(TRUTH.attention, name)
        assert getattr(own.attention, name) == pytest.approx(wanted, rel=0.3), name
    lines = own.collectives["all_reduce"]
    assert [line.num_ranks for line in lines] == [2, 4]
    assert lines[1].latency_s[-1] == pytest.approx(ALL_REDUCE[0], rel=0.03)
    assert lines[1].busbw_bytes_per_s[-1] == pytest.approx(ALL_REDUCE[1], rel=0.03)
    assert node.scale_up.achieved_bytes_per_s == pytest.approx(1e9, rel=0.02)
    assert node.scale_up.latency_s == pytest.approx(1e-4, rel=0.05)
    assert node.host_core_bytes_per_s == pytest.approx(ADAM_BYTES_PER_S / 2, rel=1e-3)
    assert node.num_accelerators == MACHINE.per_node


def test_the_model_follows_what_the_machine_measured(made: Calibration) -> None:
    errors = {own.kind: own.after for own in made.own}
    most = {"product": 0.2, "attention": 0.2, "memory-bound": 0.1, "collective": 0.03}
    for kind, limit in most.items():
        assert errors[kind] < limit, kind
    assert errors["host Adam"] < 1e-3


def test_sixteen_bits_slower_than_thirty_two_are_not_offered(made: Calibration) -> None:
    own = made.base.cluster.accelerator
    assert offered_precisions(own) == ["fp32"]
    assert usual_precision(own) == "fp32"


def test_a_machine_needs_products_memory_and_attention_of_one_node() -> None:
    table = synthetic()
    few = replace(table, rows=tuple(row for row in table.rows if row.what != "norm"))
    with pytest.raises(InputError, match="cannot be stated without rows of norm"):
        stated("x.csv", few, Path("x.yaml"))
    many = replace(table, machine=replace(MACHINE, nodes=2))
    with pytest.raises(InputError, match="# nodes: is of several: give CLUSTER"):
        stated("x.csv", many, Path("x.yaml"))


def test_attention_faster_than_the_best_product_is_refused() -> None:
    table = synthetic()
    shape = {"batch": 1, "heads": 1, "seq_len": 4096, "head_dim": 128}
    fast = at(blank(what="attention_forward", dtype="fp32", **shape), 1e-3)
    with pytest.raises(InputError, match=r"attention of 4\.295 TFLOP/s is more than there is"):
        fitted(Table(machine=MACHINE, rows=(*table.rows, fast)))


def test_one_process_alone_says_that_links_are_assumed() -> None:
    table = synthetic()
    alone = tuple(row for row in table.rows if row.what not in ("p2p", "all_reduce"))
    machine = replace(MACHINE, per_node=1, backend="")
    own = stated("x.csv", Table(machine=machine, rows=alone), Path("x.yaml")).cluster
    assert any("nothing between ranks" in text for text in own.node.assumptions)


def test_a_section_that_is_wrong_is_named_with_its_key(file: Path) -> None:
    file.write_text(file.read_text().replace("  hbm_gib:", "  hbm_gb:", 1))
    with pytest.raises(InputError) as raised:
        load_cluster(file)
    assert f"{file}::accelerator.hbm_gb: unknown key" in str(raised.value)


def test_a_figure_that_no_machine_has_is_of_a_busy_one() -> None:
    table = synthetic()
    slow = tuple(replace(row, time_us=1e7) if row.what == "launch" else row for row in table.rows)
    with pytest.raises(InputError) as raised:
        stated("x.csv", replace(table, rows=slow), Path("x.yaml"))
    assert str(raised.value).startswith("x.csv::accelerator.gemm.launch_us.value: implausible")
    assert str(raised.value).endswith("; measure again with nothing else on the machine")
