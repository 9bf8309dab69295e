"""Tells what a file of measurements is, and reads its points.

Forms beside those of ``read_links``: CSV with a header; flash-attention
benchmarks/benchmark_flash_attention.py (a line per shape, one per method); fio's JSON
(``jobs[].read.bw_bytes``); tables of ``--measure``; logs of runs.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.calibrate.points import (
    Place,
    Point,
    attention_flops,
    attention_point,
    attention_work,
    disk_point,
    host_adam_point,
    product_point,
    run_point,
    table_points,
)
from planner.calibrate.read_links import is_nccl, is_nvbandwidth, nccl_points, nvbandwidth_points
from planner.calibrate.rows import is_table, read_table
from planner.compare.compare import compare
from planner.compare.log import FORMS as LOGS
from planner.compare.log import log_of
from planner.documents.file import read_printed
from planner.documents.tree import load_json
from planner.errors import InputError
from planner.layers.op import FlashAttention
from planner.limits import MAX_LOG_BYTES, brief
from planner.query.from_file import Request
from planner.spec.cluster import ClusterSpec
from planner.spec.job import Precision
from planner.units import TERA

FORMS = (
    "output of nccl-tests, rccl-tests, nvbandwidth, flash-attention's benchmark or fio's JSON; CSV "
    "of products (m,n,k,dtype,time_us), attention (batch,heads,seq_len,head_dim,time_us) or Adam "
    "(params,threads,time_us); tables of --measure; logs of " + LOGS
)
ATTENTION = {"batch", "heads", "seq_len", "head_dim"}
_SHAPE = re.compile(r"### causal=(True|False), headdim=(\d+), batch_size=(\d+), seqlen=(\d+) ###")
_FLASH = re.compile(r"^Flash2 fwd: ([\d.]+) TFLOPs/s, bwd: ([\d.]+) TFLOPs/s")
_TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_DTYPES: Mapping[str, Precision] = {
    "bf16": "bf16", "bfloat16": "bf16", "": "bf16", "fp16": "fp16", "float16": "fp16",
    "half": "fp16", "fp8": "fp8", "tf32": "tf32", "fp32": "fp32", "float32": "fp32",
}  # fmt: skip
_PASSES = {"forward": False, "fwd": False, "backward": True, "bwd": True}
_KERNELS = {"flash2": "flash2", "fused": "fused", "cudnn": "fused", "": "flash2"}
_CAUSAL = {"true": True, "1": True, "": True, "false": False, "0": False}


def points_of(
    path: str, cluster: ClusterSpec, request: Request, config: str | None
) -> tuple[Point, ...]:
    """The points of a file; raises InputError for what is of no known form, or cannot be so."""
    text = read_printed(path, MAX_LOG_BYTES)
    lines = text.split("\n")
    columns = {name.strip().lower() for name in lines[0].split(",")}
    if is_table(text):
        return tuple(table_points(path, read_table(path, text), cluster))
    if is_nccl(lines):
        return tuple(nccl_points(path, lines, cluster))
    if columns >= {"m", "n", "k"}:
        return tuple(_products(path, lines, cluster))
    if columns >= ATTENTION:
        return tuple(_attention(path, lines, cluster))
    if columns >= {"params", "threads"}:
        return tuple(_adam(path, lines, cluster))
    if any(_SHAPE.search(line) for line in lines):
        return tuple(_flash(path, lines, cluster))
    if text.lstrip().startswith("{") and '"fio version"' in text:
        return tuple(_fio(path, cluster))
    if is_nvbandwidth(text):
        return tuple(nvbandwidth_points(path, text, cluster))
    return tuple(_run(path, text, cluster, request, config))


def _run(
    path: str, text: str, cluster: ClusterSpec, request: Request, config: str | None
) -> Iterator[Point]:
    """A log, as ``compare`` prices it."""
    found = compare(log_of(path, text, FORMS), request, config)
    if found.predicted is None or found.measured is None:
        reason = found.unpriced[0] if found.unpriced else "its batch is not known"
        raise InputError.single(path, "layout", f"cannot be priced: {reason}")
    first = Place(path=path, line=found.log.steps[0].line)
    yield run_point(first, found.predicted.layout, found.measured.median_s, cluster)


def _flash(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """FlashAttention 2 of each shape; PyTorch's and others' lines are passed over."""
    work: FlashAttention | None = None
    found = 0
    for at, line in enumerate(lines, 1):
        if shape := _SHAPE.search(line):
            head_dim, batch, seq_len = (int(shape[group]) for group in (2, 3, 4))
            # heads times their size in this benchmark, which runs in fp16
            heads, is_causal = 2048 // head_dim, shape[1] == "True"
            work = attention_work(batch, heads, seq_len, head_dim, is_causal=is_causal)
        if (rates := _FLASH.search(line)) and work is not None:
            place = Place(path=path, line=at)
            for text, is_backward in ((rates[1], False), (rates[2], True)):
                if float(text) <= 0:
                    raise place.refuse("every rate must be above 0")
                seconds = attention_flops(work, is_backward=is_backward) / (float(text) * TERA)
                found += 1
                yield attention_point(
                    place, work, "fp16", seconds, cluster, is_backward=is_backward
                )
    if not found:
        raise InputError.single(path, "file", "has no line of Flash2: it is truncated")


def _products(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """A CSV with m, n, k, and a time or tflops; ``dtype`` [bf16]."""
    for place, given in _rows(path, lines, (*_TIMES, "tflops")):
        m, n, k = (int(_number(place, side, given[side])) for side in "mnk")
        dtype, seconds = _dtype(place, given), _seconds(place, given, 2.0 * m * n * k)
        yield product_point(place, (m, n, k), dtype, seconds, cluster)


def _attention(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """A CSV with batch, heads, seq_len, head_dim, and a time or tflops.

    Also ``pass`` (forward or backward) [forward], ``causal`` [true], ``dtype`` [bf16], ``kernel``
    (flash2, or fused: cuDNN's) [flash2].
    """
    for place, given in _rows(path, lines, (*_TIMES, "tflops")):
        size = {name: int(_number(place, name, given[name])) for name in sorted(ATTENTION)}
        is_backward = _choice(place, "pass", given.get("pass", "forward"), _PASSES)
        kernel = _choice(place, "kernel", given.get("kernel", ""), _KERNELS)
        is_causal = _choice(place, "causal", given.get("causal", ""), _CAUSAL)
        work = attention_work(**size, kernel=kernel, is_causal=is_causal)
        seconds = _seconds(place, given, attention_flops(work, is_backward=is_backward))
        dtype = _dtype(place, given)
        yield attention_point(place, work, dtype, seconds, cluster, is_backward=is_backward)


def _adam(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """A CSV with params, threads and a time; ``ranks`` of a node that did it at once [1]."""
    for place, given in _rows(path, lines, tuple(_TIMES)):
        params = _number(place, "params", given["params"])
        threads = int(_number(place, "threads", given["threads"]))
        ranks = int(_number(place, "ranks", given.get("ranks") or "1"))
        yield host_adam_point(place, params, threads, ranks, _seconds(place, given, 0.0), cluster)


def _rows(
    path: str, lines: Sequence[str], times: Sequence[str]
) -> Iterator[tuple[Place, dict[str, str]]]:
    reader = csv.DictReader(lines)
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    if not names.keys() & set(times):
        message = f"needs a column {', '.join(times)}; given {', '.join(names)}"
        raise InputError.single(path, "line 1", message)
    count = 0
    for row in reader:
        count += 1
        cells = {name: (row[key] or "").strip() for name, key in names.items()}
        yield Place(path=path, line=reader.line_num), cells
    if not count:
        raise InputError.single(path, "line 1", "the table has no row: it is truncated")


def _number(place: Place, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e15 or (name != "time" and value < 1):
        raise place.refuse(f"{name} must be above 0; given {brief(text)}")
    return value


def _seconds(place: Place, given: Mapping[str, str], flops: float) -> float:
    for name, unit_s in _TIMES.items():
        if given.get(name):
            return _number(place, "time", given[name]) * unit_s
    return flops / (_number(place, "time", given.get("tflops", "")) * TERA)


def _choice(place: Place, name: str, text: str, allowed: Mapping[str, Any]) -> Any:  # noqa: ANN401
    if text.lower() not in allowed:
        words = ", ".join(word for word in allowed if word)
        raise place.refuse(f"{name} {brief(text)}; allowed are {words}")
    return allowed[text.lower()]


def _dtype(place: Place, given: Mapping[str, str]) -> Precision:
    text = given.get("dtype", "").lower().removeprefix("torch.")
    found: Precision = _choice(place, "dtype", text, _DTYPES)
    return found


def _fio(path: str, cluster: ClusterSpec) -> Iterator[Point]:
    """What jobs that ran together read, and wrote: sequential, and past the page cache."""
    data = load_json(path)
    shared, jobs = _section(data.get("global options")), data.get("jobs")
    rates: dict[tuple[str, bool], float] = {}
    for at, each in enumerate(jobs if isinstance(jobs, list) else []):
        job = _section(each)
        _check_job(path, f"jobs.{at}", {**shared, **_section(job.get("job options"))})
        for is_write, section in ((False, "read"), (True, "write")):
            rate = _section(job.get(section)).get("bw_bytes", 0)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
                message = f"must be a number; given {brief(rate)}"
                raise InputError.single(path, f"jobs.{at}.{section}.bw_bytes", message)
            key = (str(job.get("groupid", 0)), is_write)
            rates[key] = rates.get(key, 0.0) + rate
    if not any(rates.values()):
        raise InputError.single(path, "jobs", "none has read or written anything")
    for (_, is_write), rate in rates.items():
        if rate > 0:
            yield disk_point(Place(path=path, line=1), rate, cluster, is_write=is_write)


def _section(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _check_job(path: str, key: str, options: Mapping[str, Any]) -> None:
    pattern = str(options.get("rw") or options.get("readwrite") or "read")
    if pattern.startswith("rand"):
        message = f"rw={pattern}; states are read and written in sequence: allowed are read, write"
        raise InputError.single(path, f"{key}.rw", message)
    if str(options.get("direct", "0")) != "1":
        message = "is not 1: what it read or wrote may lie in memory; run fio with --direct=1"
        raise InputError.single(path, f"{key}.direct", message)
