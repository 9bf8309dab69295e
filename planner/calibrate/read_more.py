"""Reads tables of products, attention and Adam on the host, and what fio writes of disks.

Forms: flash-attention benchmarks/benchmark_flash_attention.py (a line per shape, one per method);
CSV with a header; fio's JSON (``jobs[].read.bw_bytes``).
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.calibrate.figures import Base
from planner.calibrate.kernel_points import (
    attention_point,
    attention_work,
    disk_point,
    host_adam_point,
)
from planner.calibrate.points import Point, product_point
from planner.documents.json_text import load_json
from planner.errors import InputError
from planner.layers.op import FlashAttention
from planner.limits import brief
from planner.spec.job import Precision

SIDES = {"m", "n", "k"}
ATTENTION = {"batch", "heads", "seq_len", "head_dim"}
ADAM = {"params", "threads"}
FLASH_WIDTH = 2048
"""Heads times their size in flash-attention's benchmark."""
FLASH_PRECISION: Precision = "fp16"
_SHAPE = re.compile(r"### causal=(True|False), headdim=(\d+), batch_size=(\d+), seqlen=(\d+) ###")
_FLASH = re.compile(r"^Flash2 fwd: ([\d.]+) TFLOPs/s, bwd: ([\d.]+) TFLOPs/s")
_TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
_DTYPES: Mapping[str, Precision] = {
    "bf16": "bf16", "bfloat16": "bf16", "": "bf16", "fp16": "fp16", "float16": "fp16",
    "half": "fp16", "fp8": "fp8", "tf32": "tf32", "fp32": "fp32", "float32": "fp32",
}  # fmt: skip
_PASSES = {"forward": False, "fwd": False, "backward": True, "bwd": True}
_KERNELS = {"flash2": "flash2", "fused": "fused", "cudnn": "fused", "": "flash2"}


def is_flash(lines: Sequence[str]) -> bool:
    """Whether lines are the output of flash-attention's benchmark."""
    return any(_SHAPE.search(line) for line in lines)


def flash_points(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    """FlashAttention 2 of each shape; PyTorch's and others' lines are passed over."""
    work: FlashAttention | None = None
    found = 0
    for at, line in enumerate(lines, 1):
        if shape := _SHAPE.search(line):
            head_dim, batch, seq_len = (int(shape[group]) for group in (2, 3, 4))
            heads = FLASH_WIDTH // head_dim
            is_causal = shape[1] == "True"
            work = attention_work(batch, heads, seq_len, head_dim, is_causal=is_causal)
        if (rates := _FLASH.search(line)) and work is not None:
            for is_backward, text in ((False, rates[1]), (True, rates[2])):
                flops = float(np.sum(work.flops)) * (2.5 if is_backward else 1.0)
                if float(text) <= 0:
                    raise InputError.single(path, f"line {at}", "every rate must be above 0")
                found += 1
                yield attention_point(
                    path,
                    at,
                    work,
                    FLASH_PRECISION,
                    flops / (float(text) * 1e12),
                    base.cluster,
                    is_backward=is_backward,
                )
    if not found:
        raise InputError.single(path, "file", "has no line of Flash2: it is truncated")


def product_points(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    """A CSV with m, n, k, and a time or tflops; ``dtype`` [bf16]."""
    for at, given in _rows(path, lines, (*_TIMES, "tflops")):
        m, n, k = (int(_number(path, at, side, given[side])) for side in "mnk")
        dtype = _dtype(path, at, given)
        seconds = _seconds(path, at, given, 2.0 * m * n * k)
        yield product_point(path, at, (m, n, k), dtype, seconds, base.cluster)


def attention_points(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    """A CSV with batch, heads, seq_len, head_dim, and a time or tflops.

    Also ``pass`` (forward or backward) [forward], ``causal`` [true], ``dtype`` [bf16], ``kernel``
    (flash2, or fused: cuDNN's) [flash2].
    """
    for at, given in _rows(path, lines, (*_TIMES, "tflops")):
        size = {name: _number(path, at, name, given[name]) for name in sorted(ATTENTION)}
        named = _choice(path, at, "pass", given.get("pass", "forward"), _PASSES)
        kernel = _choice(path, at, "kernel", given.get("kernel", ""), _KERNELS)
        causal = {"true": True, "1": True, "": True, "false": False, "0": False}
        is_causal = _choice(path, at, "causal", given.get("causal", "").lower(), causal)
        whole = {name: int(value) for name, value in size.items()}
        work = attention_work(**whole, kernel=kernel, is_causal=is_causal)
        flops = float(np.sum(work.flops)) * (2.5 if named else 1.0)
        seconds = _seconds(path, at, given, flops)
        dtype = _dtype(path, at, given)
        yield attention_point(path, at, work, dtype, seconds, base.cluster, is_backward=named)


def adam_points(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    """A CSV with params, threads and a time; ``ranks`` of a node that did it at once [1]."""
    for at, given in _rows(path, lines, tuple(_TIMES)):
        params = _number(path, at, "params", given["params"])
        threads = int(_number(path, at, "threads", given["threads"]))
        ranks = int(_number(path, at, "ranks", given.get("ranks") or "1"))
        seconds = _seconds(path, at, given, 0.0)
        yield host_adam_point(path, at, params, threads, ranks, seconds, base.cluster)


def _rows(
    path: str, lines: Sequence[str], times: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(lines)
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    if not names.keys() & set(times):
        message = f"needs a column {', '.join(times)}; given {', '.join(names)}"
        raise InputError.single(path, "line 1", message)
    count = 0
    for row in reader:
        count += 1
        yield reader.line_num, {name: (row[key] or "").strip() for name, key in names.items()}
    if not count:
        raise InputError.single(path, "line 1", "the table has no row: it is truncated")


def _number(path: str, at: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e15 or (name != "time" and value < 1):
        raise InputError.single(path, f"line {at}", f"{name} must be above 0; given {brief(text)}")
    return value


def _seconds(path: str, at: int, given: Mapping[str, str], flops: float) -> float:
    name = next((name for name in _TIMES if given.get(name)), None)
    if name:
        return _number(path, at, "time", given[name]) * _TIMES[name]
    return flops / (_number(path, at, "time", given.get("tflops", "")) * 1e12)


def _choice(path: str, at: int, name: str, text: str, allowed: Mapping[str, Any]) -> Any:  # noqa: ANN401
    if text.lower() not in allowed:
        words = ", ".join(word for word in allowed if word)
        message = f"{name} {brief(text)}; allowed are {words}"
        raise InputError.single(path, f"line {at}", message)
    return allowed[text.lower()]


def _dtype(path: str, at: int, given: Mapping[str, str]) -> Precision:
    text = given.get("dtype", "").lower().removeprefix("torch.")
    found: Precision = _choice(path, at, "dtype", text, _DTYPES)
    return found


def is_fio(text: str) -> bool:
    """Whether a text is fio's JSON."""
    return text.lstrip().startswith("{") and '"fio version"' in text


def fio_points(path: str, base: Base) -> Iterator[Point]:
    """What jobs that ran together read, and wrote: sequential, and past the page cache."""
    data = load_json(path)
    shared, jobs = data.get("global options"), data.get("jobs")
    sums: dict[tuple[str, bool], float] = {}
    for at, job in enumerate(jobs if isinstance(jobs, list) else []):
        options = {**_section(shared), **_section(_section(job).get("job options"))}
        _check_job(path, f"jobs.{at}", options)
        for is_write, section in ((False, "read"), (True, "write")):
            rate = _section(_section(job).get(section)).get("bw_bytes", 0)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or rate < 0:
                message = f"must be a number; given {brief(rate)}"
                raise InputError.single(path, f"jobs.{at}.{section}.bw_bytes", message)
            key = (str(_section(job).get("groupid", 0)), is_write)
            sums[key] = sums.get(key, 0.0) + rate
    found = [(is_write, rate) for (_, is_write), rate in sums.items() if rate > 0]
    if not found:
        raise InputError.single(path, "jobs", "none has read or written anything")
    for is_write, rate in found:
        yield disk_point(path, 1, rate, base.cluster, is_write=is_write)


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
