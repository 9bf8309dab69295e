"""A machine stated whole: a table of a known one gives it back, and plans take its file."""

from dataclasses import replace
from pathlib import Path

import pytest
from tables import ADAM_BYTES_PER_S, ALL_REDUCE, MACHINE, TRUTH, at, blank, synthetic

from planner.calibrate.fit import Calibration, known, machine_text, read_base
from planner.calibrate.machine import machine_of
from planner.calibrate.rows import Table
from planner.catalog.clusters import load_cluster
from planner.cost.kernels import offered_precisions, usual_precision
from planner.errors import InputError
from planner.spec.cluster import ClusterSpec


@pytest.fixture(scope="module")
def made() -> Calibration:
    return machine_of("x.csv", synthetic(), Path("x.yaml"))


def loaded(made: Calibration, folder: Path) -> ClusterSpec:
    file = folder / "own.yaml"
    file.write_text(machine_text(made, "x", MACHINE.date))
    return load_cluster(file)


def test_a_table_gives_back_the_machine_it_was_made_from(made: Calibration) -> None:
    own = made.base.cluster.accelerator
    assert own.peak_flops_per_s == {"fp32": pytest.approx(50e9, rel=1e-3)}
    assert own.gemm.sustained_fraction == pytest.approx(0.95, rel=0.03)
    assert own.gemm.launch_s == pytest.approx(TRUTH.gemm.launch_s, rel=0.2)
    assert own.hbm_bytes_per_s == pytest.approx(12e9, rel=1e-3)
    assert own.memory_bound_fraction == pytest.approx(0.4, rel=1e-3)
    for name in ("forward_fraction", "backward_fraction", "forward_s0", "backward_s0"):
        found, wanted = getattr(own.attention, name), getattr(TRUTH.attention, name)
        assert found == pytest.approx(wanted, rel=0.1), name
    wanted_factors = TRUTH.attention.forward_head_factors
    assert own.attention.forward_head_factors == pytest.approx(wanted_factors, rel=0.05)


def test_the_model_follows_what_the_machine_measured(made: Calibration) -> None:
    errors = {own.kind: own.after for own in made.own}
    assert errors["product"] < 0.03
    assert errors["attention"] < 0.03
    assert errors["collective"] < 0.03
    assert errors["host Adam"] < 1e-3


def test_links_and_host_are_those_of_the_table(made: Calibration) -> None:
    node, lines = made.base.cluster.node, made.base.cluster.accelerator.collectives["all_reduce"]
    assert [line.num_ranks for line in lines] == [2, 4]
    assert lines[1].latency_s[-1] == pytest.approx(ALL_REDUCE[0], rel=0.02)
    assert lines[1].busbw_bytes_per_s[-1] == pytest.approx(ALL_REDUCE[1], rel=0.02)
    assert node.scale_up.achieved_bytes_per_s == pytest.approx(1e9, rel=0.02)
    assert node.scale_up.latency_s == pytest.approx(1e-4, rel=0.02)
    assert node.host_core_bytes_per_s == pytest.approx(ADAM_BYTES_PER_S / 2, rel=1e-3)
    assert node.num_accelerators == MACHINE.per_node


def test_sixteen_bits_slower_than_thirty_two_are_not_offered(made: Calibration) -> None:
    own = made.base.cluster.accelerator
    assert offered_precisions(own) == ["fp32"]
    assert usual_precision(own) == "fp32"


def test_the_file_is_the_machine_and_the_base_of_the_next(
    made: Calibration, tmp_path: Path
) -> None:
    own = loaded(made, tmp_path)
    assert own.accelerator.name == "a-2-threads"
    assert own.accelerator.gemm == made.base.cluster.accelerator.gemm
    figure = known(read_base(str(tmp_path / "own.yaml")), "gemm_sustained_fraction")
    assert figure is not None
    assert figure.basis == "measured"
    assert figure.value == own.accelerator.gemm.sustained_fraction


def test_a_machine_needs_products_memory_and_attention() -> None:
    table = synthetic()
    few = replace(table, rows=tuple(row for row in table.rows if row.what != "norm"))
    with pytest.raises(InputError, match="cannot be stated without rows of norm"):
        machine_of("x.csv", few, Path("x.yaml"))


def test_a_machine_of_several_nodes_needs_a_cluster() -> None:
    many = replace(synthetic(), machine=replace(MACHINE, nodes=2))
    with pytest.raises(InputError, match="# nodes: is of several: give CLUSTER"):
        machine_of("x.csv", many, Path("x.yaml"))


def test_attention_faster_than_the_best_product_is_refused() -> None:
    table = synthetic()
    shape = {"batch": 1, "heads": 1, "seq_len": 4096, "head_dim": 128}
    fast = at(blank(what="attention_forward", dtype="fp32", **shape), 1e-3)
    with pytest.raises(InputError, match=r"attention of 4\.295 TFLOP/s is more than there is"):
        machine_of("x.csv", Table(machine=MACHINE, rows=(*table.rows, fast)), Path("x.yaml"))


def test_one_process_alone_says_that_links_are_assumed() -> None:
    table = synthetic()
    alone = tuple(row for row in table.rows if row.what not in ("p2p", "all_reduce"))
    machine = replace(MACHINE, per_node=1, backend="")
    own = machine_of("x.csv", Table(machine=machine, rows=alone), Path("x.yaml")).base.cluster
    assert any("nothing between ranks" in text for text in own.node.assumptions)


def test_a_section_that_is_wrong_is_named_with_its_key(made: Calibration, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(machine_text(made, "x", MACHINE.date).replace("  hbm_gib:", "  hbm_gb:", 1))
    with pytest.raises(InputError) as raised:
        load_cluster(file)
    assert f"{file}::accelerator.hbm_gb: unknown key" in str(raised.value)


def test_a_figure_that_no_machine_has_is_of_a_busy_one() -> None:
    table = synthetic()
    slow = tuple(
        replace(row, time_us=row.time_us + 3e5) if row.what == "product" else row
        for row in table.rows
    )
    with pytest.raises(InputError) as raised:
        machine_of("x.csv", replace(table, rows=slow), Path("x.yaml"))
    assert str(raised.value).startswith("x.csv::accelerator.gemm.launch_us.value: implausible")
    assert str(raised.value).endswith("; measure again with nothing else on the machine")
