"""Reading every form of measurements, and what no machine of the kind can reach."""

from pathlib import Path

import pytest
from tables import synthetic

from planner.answers.collective import planned_s
from planner.calibrate.fit import Base, read_base
from planner.calibrate.points import Place, Point, Reading
from planner.calibrate.read import points_of
from planner.calibrate.rows import table_text
from planner.errors import InputError
from planner.query.from_file import Request

MEASURED = Path(__file__).resolve().parents[2] / "examples" / "measured"
LOGS = Path(__file__).resolve().parents[2] / "examples" / "logs"
ATTENTION = "batch,heads,seq_len,head_dim,causal,pass,dtype,kernel,{}\n"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"


@pytest.fixture(scope="module")
def h100() -> Base:
    return read_base("1xdgx-h100")


def read(base: Base, folder: Path, text: str, name: str = "x.csv") -> tuple[Point, ...]:
    file = folder / name
    file.write_text(text)
    return points_of(str(file), base.cluster, Request(), None)


def refused(base: Base, folder: Path, text: str, name: str = "x.csv") -> str:
    with pytest.raises(InputError) as raised:
        read(base, folder, text, name)
    return str(raised.value).removeprefix(str(folder / name))


@pytest.mark.parametrize("column", ["time_us,182.0", "tflops,755.1", "time_ms,0.1820"])
def test_products_are_read_by_time_or_rate(h100: Base, tmp_path: Path, column: str) -> None:
    name, value = column.split(",")
    (point,) = read(h100, tmp_path, f"m,n,k,dtype,{name}\n4096,4096,4096,bf16,{value}\n")
    assert point.measured == pytest.approx(182e-6, rel=1e-3)


def test_attention_is_read_by_time_or_rate(h100: Base, tmp_path: Path) -> None:
    flops = 4 * 2 * 8192**2 * 16 * 128 / 2
    timed = f"2,16,8192,128,true,forward,bf16,flash2,{flops / 330e12 * 1e3}\n"
    rated = "2,16,8192,128,true,bwd,bf16,fused,500\n"
    (one,) = read(h100, tmp_path, ATTENTION.format("time_ms") + timed)
    (other,) = read(h100, tmp_path, ATTENTION.format("tflops") + rated)
    assert one.measured == pytest.approx(flops / 330e12)
    assert other.measured == pytest.approx(2.5 * flops / 500e12)


def test_adam_on_the_host_is_a_point_unless_memory_is_slower(h100: Base) -> None:
    node, place = h100.cluster.node, Place(path="x.csv", line=2)
    point = Reading(place, 0.15, h100.cluster).host_adam(1e8, threads=1, ranks=1)
    assert point.predict(h100.cluster) == pytest.approx(2.8e9 / node.host_core_bytes_per_s)
    with pytest.raises(InputError, match="line 2: traffic of Adam of 2,240 GB/s is more than"):
        Reading(place, 0.01, h100.cluster).host_adam(1e8, threads=8, ranks=8)


def row(size: int, us: float, ranks: int = 8) -> str:
    algbw = size / us / 1e3
    busbw = algbw * 2 * (ranks - 1) / ranks
    return f"  {size}  {size // 4}  float  sum  -1  {us}  {algbw:.2f}  {busbw:.2f}  0\n"


def test_a_table_of_nccl_tests_is_read_with_its_ranks_and_collective(
    h100: Base, tmp_path: Path
) -> None:
    text = "".join(f"#  Rank {n:2} Group  0 Pid 1 on a device {n}\n" for n in range(8))
    text += HEAD + row(0, 15.5) + row(2**20, 50.0) + row(2**30, 4600.0)
    points = read(h100, tmp_path, text, "all_reduce_perf.txt")
    assert [(point.measured, point.place.line) for point in points] == [
        (pytest.approx(50e-6), 11),
        (pytest.approx(4600e-6), 12),
    ]
    assert points[1].predict(h100.cluster) == pytest.approx(4600e-6, rel=0.2)


def test_ranks_that_nothing_names_follow_from_the_two_bandwidths(tmp_path: Path) -> None:
    two = read_base("2xdgx-h100")
    many = read(two, tmp_path, HEAD + row(2**30, 9000.0, ranks=16), "all_reduce_perf.txt")
    few = read(two, tmp_path, HEAD + row(2**30, 9000.0, ranks=4), "all_reduce_perf.txt")
    for points, ranks in ((many, 16), (few, 4)):
        wanted = planned_s("all_reduce", 2.0**30, ranks, two.cluster)
        assert points[0].predict(two.cluster) == wanted
    said = refused(
        read_base("1xdgx-h100"), tmp_path, HEAD + row(2**30, 9000.0, 16), "a_all_reduce_perf.txt"
    )
    assert said == "::line 2: was run on 16 ranks; 1xdgx-h100 has 8"


def test_older_tables_have_no_column_of_the_operation_or_root(h100: Base, tmp_path: Path) -> None:
    head = "#       size         count    type     time   algbw   busbw  error\n"
    rows = "  1073741824  33554432   float   4500.0  238.61  208.78  0e+00\n"
    rows += "  34359738368  1073741824   float   134000  256.42  224.36  0e+00\n"
    points = read(h100, tmp_path, head + rows, "all_gather_perf.txt")
    assert [point.measured for point in points] == pytest.approx([4500e-6, 134e-3])
    of_operation = head.replace("type  ", "type redop")
    rows = rows.replace("float", "float sum")
    point = read(h100, tmp_path, of_operation + rows, "all_gather_perf.txt")[1]
    assert point.measured == pytest.approx(134e-3)


def test_every_table_of_a_file_is_of_its_own_test(h100: Base, tmp_path: Path) -> None:
    one = "# Collective test starting: all_reduce_perf\n" + HEAD + row(2**30, 9000.0)
    done = "# Collective test concluded: all_reduce_perf\n"
    gathered = row(2**30, 9000.0).replace(f"{2**30 / 9e6 * 1.75:.2f}", f"{2**30 / 9e6 * 0.875:.2f}")
    other = done + "$ ./build/all_gather_perf -b 8\n" + HEAD + gathered
    unknown = "$ ./build/broadcast_perf\n" + HEAD + row(2**30, 9000.0)
    points = read(h100, tmp_path, one + other + unknown, "x.txt")
    wanted = [planned_s(kind, 2.0**30, 8, h100.cluster) for kind in ("all_reduce", "all_gather")]
    assert [point.predict(h100.cluster) for point in points] == wanted
    said = refused(h100, tmp_path, one + done + HEAD + row(2**30, 9000.0), "x.txt")
    assert said.startswith("::line 5: does not say which test it is of")
    assert "is of 'broadcast'" in refused(h100, tmp_path, unknown, "x.txt")


def test_bandwidths_that_are_not_size_over_time_are_of_other_units(
    h100: Base, tmp_path: Path
) -> None:
    text = HEAD + row(2**30, 9000.0).replace("9000.0", "9.0")
    said = refused(h100, tmp_path, text, "all_reduce_perf.txt")
    assert said == (
        "::line 2: 1,073,741,824 bytes in 9 us are 1.193e+05 GB/s, not 119.3: in other units?"
    )
    text = (HEAD + row(2**30, 9000.0)).replace(" time ", " cputime ", 1)
    assert "run it without -C" in refused(h100, tmp_path, text, "all_reduce_perf.txt")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("#   Rank  0 Pid  7 on  a device  0 [0x07] AMD Instinct MI300X\n", "line 1"),
        ("# planner measurements\n# name: NVIDIA H200\n# device: cuda\n", "# name"),
        ("# planner measurements\n# name: AMD EPYC\n# device: cpu\n", "# device"),
    ],
)
def test_what_was_measured_on_another_machine_is_refused(
    h100: Base, tmp_path: Path, line: str, key: str
) -> None:
    if key == "line 1":
        text = line + "all_reduce_perf\n" + HEAD + row(2**30, 9000.0)
    else:
        table = table_text(synthetic()).splitlines(keepends=True)
        kept = [each for each in table[1:] if not each.startswith(("# name", "# device"))]
        text = line + "".join(kept)
    said = refused(h100, tmp_path, text)
    assert said.startswith(f"::{key}: measured on ")
    assert said.endswith("; 1xdgx-h100 has h100-sxm")


def test_a_collective_faster_than_the_links_is_refused(h100: Base, tmp_path: Path) -> None:
    said = refused(h100, tmp_path, HEAD + row(2**30, 1000.0), "all_reduce_perf.txt")
    assert said.startswith("::line 2: all_reduce over 8 of 1,073,741,824 bytes in 1,000.0 us is")
    assert "the links of dgx-h100 need" in said


@pytest.mark.parametrize(
    ("name", "cluster", "count"),
    [("a100", "2xaws-p4de.24xlarge", 29), ("h100", "2xaws-p5.48xlarge", 32)],
)
def test_published_tables_of_two_nodes_are_read_whole(name: str, cluster: str, count: int) -> None:
    path = MEASURED / f"{name}_all_reduce_perf.txt"
    assert len(points_of(str(path), read_base(cluster).cluster, Request(), None)) == count
