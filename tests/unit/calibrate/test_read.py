"""Reading products, attention, Adam, flash-attention's benchmark, fio and logs of runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.figures import Base, read_base
from planner.calibrate.points import Point
from planner.calibrate.read import points_of
from planner.errors import InputError
from planner.query.from_file import Request

LOGS = Path(__file__).resolve().parents[2] / "examples" / "logs"
FLASH = (
    "### causal=True, headdim=128, batch_size=2, seqlen=8192 ###\n"
    "Flash2 fwd: 330.00 TFLOPs/s, bwd: 270.00 TFLOPs/s, fwd + bwd: 285.00 TFLOPs/s\n"
    "Pytorch fwd: 50.00 TFLOPs/s, bwd: 60.00 TFLOPs/s, fwd + bwd: 57.00 TFLOPs/s\n"
)
ATTENTION = "batch,heads,seq_len,head_dim,causal,pass,dtype,kernel,{}\n"
FIO: dict[str, Any] = {
    "fio version": "fio-3.36",
    "global options": {"direct": "1", "rw": "read", "numjobs": "2"},
    "jobs": [
        {"groupid": 0, "read": {"bw_bytes": 3_000_000_000}, "write": {"bw_bytes": 0}},
        {"groupid": 0, "read": {"bw_bytes": 2_500_000_000}, "write": {"bw_bytes": 0}},
    ],
}


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


def test_products_that_cannot_be_are_refused_at_their_line(h100: Base, tmp_path: Path) -> None:
    head = "m,n,k,dtype,tflops\n"
    fast = refused(h100, tmp_path, head + "8192,8192,8192,bf16,1200\n")
    assert "line 2: bf16 product of 1,200 TFLOP/s is more than there is: the peak is 98" in fast
    assert "line 3: " in refused(h100, tmp_path, head + "8,8,8,bf16,1\n8,8,8,bf16,-1\n")
    assert "line 2: dtype 'int4'; allowed" in refused(h100, tmp_path, head + "8,8,8,int4,1\n")
    assert "needs a column time_us" in refused(h100, tmp_path, "m,n,k\n8,8,8\n")
    assert "needs a column time_us" in refused(h100, tmp_path, "m,n,k,time\n8,8,8,9\n")
    assert "line 1: the table has no row: it is truncated" in refused(h100, tmp_path, head)


def test_flash_attentions_benchmark_is_read_by_its_own_kernel_alone(
    h100: Base, tmp_path: Path
) -> None:
    forward, backward = read(h100, tmp_path, FLASH, "flash.txt")
    flops = 4 * 2 * 8192**2 * 2048 / 2
    assert forward.measured == pytest.approx(flops / 330e12)
    assert backward.measured == pytest.approx(2.5 * flops / 270e12)
    assert forward.predict(h100.cluster) == pytest.approx(forward.measured, rel=0.1)
    assert "faster" not in refused(h100, tmp_path, FLASH.replace("Flash2", "Flash9"), "f.txt")
    fast = refused(h100, tmp_path, FLASH.replace("330.00", "3300.00"), "flash.txt")
    assert "::line 2: attention of 3,300 TFLOP/s is more than there is: the peak is 989" in fast


def test_attention_is_read_by_time_or_rate(h100: Base, tmp_path: Path) -> None:
    flops = 4 * 2 * 8192**2 * 16 * 128 / 2
    timed = f"2,16,8192,128,true,forward,bf16,flash2,{flops / 330e12 * 1e3}\n"
    rated = "2,16,8192,128,true,bwd,bf16,fused,500\n"
    (one,) = read(h100, tmp_path, ATTENTION.format("time_ms") + timed)
    (other,) = read(h100, tmp_path, ATTENTION.format("tflops") + rated)
    assert one.measured == pytest.approx(flops / 330e12)
    assert other.measured == pytest.approx(2.5 * flops / 500e12)
    assert "pass 'up'; allowed are forward, fwd" in refused(
        h100, tmp_path, ATTENTION.format("tflops") + rated.replace("bwd", "up")
    )
    assert "needs a column time_us" in refused(h100, tmp_path, ATTENTION.format("speed") + rated)
    assert "the table has no row" in refused(h100, tmp_path, ATTENTION.format("tflops"))
    assert "line 2: heads must be above 0" in refused(
        h100, tmp_path, ATTENTION.format("tflops") + rated.replace("2,16", "2,none")
    )


def test_adam_on_the_host_is_a_point_unless_memory_is_slower(h100: Base, tmp_path: Path) -> None:
    (point,) = read(h100, tmp_path, "params,threads,time_ms\n100000000,1,150\n")
    core = h100.cluster.node.host_core_bytes_per_s
    assert point.predict(h100.cluster) == pytest.approx(2.8e9 / core)
    said = refused(h100, tmp_path, "params,threads,ranks,time_ms\n100000000,8,8,10\n")
    assert "::line 2: traffic of Adam of 2,240 GB/s is more than there is" in said


def test_jobs_of_fio_that_ran_together_are_one_rate(h100: Base, tmp_path: Path) -> None:
    (point,) = read(h100, tmp_path, json.dumps(FIO), "fio.json")
    assert (point.measured, point.key) == (5.5e9, "nvme_read_gb_per_s")
    apart = json.loads(json.dumps(FIO))
    apart["jobs"][1]["groupid"] = 1
    rates = [each.measured for each in read(h100, tmp_path, json.dumps(apart), "fio.json")]
    assert rates == [3e9, 2.5e9]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("direct", "0", "::jobs.0.direct: is not 1: what it read or wrote may lie in memory"),
        ("rw", "randread", "::jobs.0.rw: rw=randread; states are read and written in sequence"),
    ],
)
def test_jobs_of_fio_that_say_nothing_of_a_disk_are_refused(
    h100: Base, tmp_path: Path, key: str, value: str, said: str
) -> None:
    spoilt = {**FIO, "global options": {**FIO["global options"], key: value}}
    assert said in refused(h100, tmp_path, json.dumps(spoilt), "fio.json")


def test_a_file_of_fio_without_rates_is_refused(h100: Base, tmp_path: Path) -> None:
    none = {**FIO, "jobs": []}
    assert "none has read or written" in refused(h100, tmp_path, json.dumps(none), "fio.json")
    odd = {**FIO, "jobs": [{"read": {"bw_bytes": "fast"}}]}
    assert "must be a number; given 'fast'" in refused(h100, tmp_path, json.dumps(odd), "fio.json")
    fast = {**FIO, "jobs": [{"read": {"bw_bytes": 9e12}}]}
    assert "a disk's rate of 9,000 GB/s is more than there is" in refused(
        h100, tmp_path, json.dumps(fast), "fio.json"
    )


def test_a_log_that_cannot_be_priced_is_no_point(h100: Base, tmp_path: Path) -> None:
    line = " iteration 1/ 9 | elapsed time per iteration (ms): 90.0 |\n"
    assert "cannot be priced" in refused(h100, tmp_path, line, "run.log")
    assert "is of no known form" in refused(h100, tmp_path, "hello\n", "x.txt")


def test_a_run_on_more_gpus_than_there_are_is_refused() -> None:
    log = LOGS / "megatron-v100-n8.log"
    base = read_base("4xjean-zay-v100")
    with pytest.raises(InputError) as raised:
        points_of(str(log), base.cluster, Request(cluster="4xjean-zay-v100"), None)
    assert "the run had 32 GPUs, 4xjean-zay-v100 has 16" in str(raised.value)
