"""Fits: they find a machine's figures, and a few points move no figure far."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from planner.calibrate.fit import (
    BY_BASIS,
    Base,
    Calibration,
    Figure,
    calibrate,
    cluster_text,
    known,
    read_base,
    with_values,
)
from planner.calibrate.points import Place, Point, Reading, attention_work
from planner.calibrate.read import points_of
from planner.cost.kernels import usual_precision
from planner.query.from_file import Request
from planner.spec.cluster import ClusterSpec

MEASURED = Path(__file__).resolve().parents[2] / "examples" / "measured"
PRODUCTS = [(m, n, 8192) for m in (4096, 8192, 16384) for n in (4096, 8192, 28672)]
GEMM = "gemm_sustained_fraction"


def place(path: object = "x", line: int = 1) -> Place:
    return Place(path=str(path), line=line)


@pytest.fixture(scope="module")
def base() -> Base:
    return read_base("2xdgx-h100")


def products(machine: ClusterSpec, base: Base, *, each_file: bool = False) -> list[Point]:
    """Points as a machine would give them; of one file, or each of its own."""
    found = []
    for at, sides in enumerate(PRODUCTS):
        where = place(f"{at}.csv" if each_file else "x.csv", at)
        point = Reading(where, 1.0, base.cluster).product(*sides, "bf16")
        found.append(replace(point, measured=point.predict(machine)))
    return found


def slowed(base: Base, key: str, factor: float) -> ClusterSpec:
    """The base's cluster with one figure so many times as large."""
    figure = known(base, key)
    return with_values(base, {key: factor * figure.value})


def of(made: Calibration, key: str) -> Figure:
    return next(each for each in made.figures if each.key == key)


def test_points_of_the_catalogs_machine_change_nothing(base: Base) -> None:
    made = calibrate(base, products(base.cluster, base))
    assert of(made, GEMM).factor == pytest.approx(1.0, abs=1e-9)
    assert [own.after for own in made.own] == [pytest.approx(0.0, abs=1e-9)]


def test_many_points_find_a_slower_machine_and_few_go_part_of_the_way(base: Base) -> None:
    slower = slowed(base, GEMM, 0.9)
    many = of(calibrate(base, products(slower, base, each_file=True)), GEMM)
    few = of(calibrate(base, products(slower, base)[:1]), GEMM)
    assert 0.90 < many.factor < 0.915
    assert 0.94 < few.factor < 0.97
    assert many.deviation < few.deviation < known(base, GEMM).deviation  # type: ignore[union-attr]


def test_points_of_one_file_count_as_few_however_many(base: Base) -> None:
    slower = slowed(base, GEMM, 0.9)
    once, twice = products(slower, base), products(slower, base) * 2
    assert of(calibrate(base, twice), GEMM).value == pytest.approx(
        of(calibrate(base, once), GEMM).value
    )


def test_three_points_ten_times_too_slow_do_not_wreck_a_machine(base: Base) -> None:
    wild = [replace(p, measured=10.0 * p.measured) for p in products(base.cluster, base)[:3]]
    assert 0.65 < of(calibrate(base, wild), GEMM).factor < 1.0


def test_a_fraction_ends_at_one(base: Base) -> None:
    fast = [replace(p, measured=0.5 * p.measured) for p in products(base.cluster, base)]
    each = [replace(p, place=place(at)) for at, p in enumerate(fast)]
    assert of(calibrate(base, each), GEMM).value <= 1.0


def test_collectives_across_nodes_find_the_network() -> None:
    base = read_base("2xjean-zay-v100")
    slower = slowed(base, "fabric_efficiency_fraction", 0.8)
    points: list[Point] = []
    for power in range(26, 34):
        size = 2.0**power
        point = Reading(place(power), 1e3, base.cluster).collective("all_gather", size, 8)
        points.append(replace(point, measured=point.predict(slower)))
    made = calibrate(base, points)
    share = 8 / 0.10**2 / (8 / 0.10**2 + 1 / BY_BASIS["assumed"] ** 2)
    wanted = 0.8**share
    assert of(made, "fabric_efficiency_fraction").factor - 1.0 == pytest.approx(
        wanted - 1.0, rel=0.02
    )


def test_figures_that_no_point_follows_stay(base: Base) -> None:
    made = calibrate(base, products(slowed(base, GEMM, 0.9), base))
    assert {each.key for each in made.figures} == {GEMM}


def test_a_calibrated_file_is_the_base_of_the_next(base: Base, tmp_path: Path) -> None:
    made = calibrate(base, [Reading(place(at), 60e9, base.cluster).link() for at in range(20)])
    file = tmp_path / "own.yaml"
    file.write_text(cluster_text(made, "x", date(2026, 1, 2), tmp_path))
    again = read_base(str(file))
    figure = known(again, "host_link_gb_per_s_per_direction")
    assert (figure.basis, figure.deviation) == ("given", BY_BASIS["given"])
    assert figure.value == pytest.approx(60, rel=0.02)


def test_torchs_attention_moves_the_vendors_where_the_file_has_no_other() -> None:
    for name, key in (
        ("1xdgx-h100", "attention_flash2_forward"),
        ("1xpcie-8x-t4", "attention_forward"),
    ):
        base = read_base(name)
        work, precision = (
            attention_work(4, 16, 4096, 128),
            usual_precision(base.cluster.accelerator),
        )
        point = Reading(place(), 1.0, base.cluster).attention(work, precision, is_backward=False)
        slow = replace(point, measured=1.2 * point.predict(base.cluster))
        made = calibrate(base, [replace(slow, place=place(at)) for at in range(8)])
        assert {each.key for each in made.figures} == {f"{key}_fraction"}
        assert 0.82 < of(made, f"{key}_fraction").factor < 0.90


def test_a_published_table_brings_its_errors_down() -> None:
    own = read_base("2xdgx-a100-640")  # its InfiniBand, where EFA was measured
    path = str(MEASURED / "a100_all_reduce_perf.txt")
    made = calibrate(own, points_of(path, own.cluster, Request(), None))
    assert made.own[0].after < 0.5 * made.own[0].before
