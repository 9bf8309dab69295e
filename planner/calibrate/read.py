"""Reads what people measured: nccl-tests and rccl-tests, tables of products, nvbandwidth, logs.

Forms: nccl-tests src/common.cu (its table, sizes in bytes, times in us); nvbandwidth
(``memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)``); CSV with a header for products.
"""

import csv
import re
from collections.abc import Iterator, Sequence

from planner.calibrate.figures import Base
from planner.calibrate.measured import is_table, read_table
from planner.calibrate.points import (
    Point,
    bus_factor,
    collective_point,
    link_point,
    product_point,
    run_point,
)
from planner.calibrate.read_more import (
    ADAM,
    ATTENTION,
    adam_points,
    attention_points,
    fio_points,
    flash_points,
    is_fio,
    is_flash,
)
from planner.calibrate.table_points import table_points
from planner.check.job import Request
from planner.compare.compare import compare
from planner.documents.file import read_text
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES
from planner.logs.read import log_of
from planner.plans.collective import most_whole_ranks
from planner.spec.job import Precision
from planner.spec.library import Kind
from planner.units import GB

_TABLE = re.compile(r"#\s+size\s+count\s+type")
_ROW = re.compile(
    r"(?:^|[\s:])(\d+)\s+\d+\s+(?:u?int\d+|half|float\w*|double|bfloat16|fp8\w*)\s+\w+"
    r"(?:\s+-?\d+)?\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s"
)
"""Size, time, algorithm and bus bandwidth, out of place."""
_TEST = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall|all_to_all|sendrecv)_perf")
_RANK = re.compile(r"#?\s+Rank\s+(\d+)\s+(?:Group|Pid)")
_KINDS: dict[str, Kind] = {"alltoall": "all_to_all", "sendrecv": "p2p"}
MOST_RANKS_TOLD = 64
"""Ranks that the two bandwidths of a row, printed with two decimals, still tell apart."""
_SIDES = ("m", "n", "k")
_TIMES = {
    "time_us": 1e-6,
    "time_ms": 1e-3,
    "time_s": 1.0,
    "time": 1.0,
    "latency_us": 1e-6,
    "latency_ms": 1e-3,
}
_DTYPES: dict[str, Precision] = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
    "fp8": "fp8", "tf32": "tf32", "fp32": "fp32", "float32": "fp32",
}  # fmt: skip
_SUM = re.compile(r"^SUM (host_to_device|device_to_host)_memcpy_(?:ce|sm) ([\d.]+)")
_ROW_OF = re.compile(r"memcpy \w+ CPU\(row\) .. GPU\(column\) bandwidth \(([^)]*)\)")


def points_of(path: str, base: Base, request: Request, config: str | None) -> tuple[Point, ...]:
    """The points of a file; raises InputError for what is of no known form, or cannot be so."""
    text = read_text(path, MAX_LOG_BYTES)
    lines = text.split("\n")
    if is_table(text):
        return tuple(table_points(path, read_table(path, text), base.cluster))
    if any(_TABLE.search(line) for line in lines):
        return tuple(_collectives(path, lines, base))
    if _header(lines[0]) >= set(_SIDES):
        return tuple(_products(path, lines, base))
    if _header(lines[0]) >= ATTENTION:
        return tuple(attention_points(path, lines, base))
    if _header(lines[0]) >= ADAM:
        return tuple(adam_points(path, lines, base))
    if is_flash(lines):
        return tuple(flash_points(path, lines, base))
    if is_fio(text):
        return tuple(fio_points(path, base))
    if "nvbandwidth" in text or any(_SUM.match(line.strip()) for line in lines):
        return tuple(_links(path, lines))
    return _run(path, text, request, config)


def _header(line: str) -> set[str]:
    return {name.strip().lower() for name in line.split(",")}


def _collectives(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    """Rows out of place; those without bandwidth (nothing sent) say only a latency, and count."""
    kind, ranks = _kind(path, lines), {int(m[1]) for line in lines if (m := _RANK.search(line))}
    rows = [(at, m) for at, line in enumerate(lines, 1) if (m := _ROW.search(f"{line} "))]
    rows = [(at, m) for at, m in rows if int(m[1]) > 0 and float(m[2]) > 0]
    if not rows:
        message = "the table has no row: it is truncated"
        raise InputError.single(path, f"line {len(lines)}", message)
    num_ranks = len(ranks) or _told(path, kind, rows[-1][1])
    most = most_whole_ranks(base.cluster)
    if num_ranks > most or num_ranks < 2:
        message = f"was run on {num_ranks} ranks; {base.cluster.name} has {most}"
        raise InputError.single(path, "ranks", message)
    for at, match in rows:
        size, seconds = float(match[1]), float(match[2]) * 1e-6
        yield collective_point(path, at, kind, size, num_ranks, seconds, base.cluster)


def _kind(path: str, lines: Sequence[str]) -> Kind:
    found = next((m[1] for line in (path, *lines) if (m := _TEST.search(line))), None)
    if found is None:
        message = "does not say which test it is of; keep its command line, or name the file so"
        raise InputError.single(path, "collective", f"{message} (all_reduce_perf.txt)")
    kind: Kind = _KINDS.get(found) or found  # type: ignore[assignment]
    return kind


def _told(path: str, kind: Kind, row: re.Match[str]) -> int:
    """Ranks that the ratio of bus and algorithm bandwidth of the largest size tells."""
    ratio = float(row[4]) / float(row[3]) if float(row[3]) else 0.0
    count = min(range(2, MOST_RANKS_TOLD + 1), key=lambda n: abs(bus_factor(kind, n) - ratio))
    if kind == "p2p":
        return 2
    if abs(bus_factor(kind, count) - ratio) > 0.002:
        message = "does not say how many ranks it was run on; keep the lines of its devices"
        raise InputError.single(path, "ranks", message)
    return count


def _products(path: str, lines: Sequence[str], base: Base) -> Iterator[Point]:
    reader = csv.DictReader(lines)
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    time = next((name for name in _TIMES if name in names), None)
    if time is None and "tflops" not in names:
        message = f"needs a column {', '.join(_TIMES)} or tflops; given {', '.join(names)}"
        raise InputError.single(path, "line 1", message)
    for row in reader:
        given = {name: row[key] or "" for name, key in names.items()}
        at = reader.line_num
        try:
            m, n, k = (int(float(given[side])) for side in _SIDES)
            value = float(given[time or "tflops"])
            if min(m, n, k) < 1 or not 0.0 < value < 1e12:
                raise ValueError("every number must be above 0")
        except ValueError as error:
            raise InputError.single(path, f"line {at}", str(error)) from None
        dtype = given.get("dtype", "bf16").strip().lower().removeprefix("torch.")
        if dtype not in _DTYPES:
            message = f"dtype {dtype[:20]!r}; allowed are {', '.join(_DTYPES)}"
            raise InputError.single(path, f"line {at}", message)
        seconds = value * _TIMES[time] if time else 2.0 * m * n * k / (value * 1e12)
        yield product_point(path, at, (m, n, k), _DTYPES[dtype], seconds, base.cluster)


def _links(path: str, lines: Sequence[str]) -> Iterator[Point]:
    """Each GPU's host link, in each direction: the row below the columns of a matrix."""
    found = 0
    for at, line in enumerate(lines, 1):
        match = _ROW_OF.search(line)
        if match is None:
            continue
        if match[1] != "GB/s":
            message = f"bandwidth is in {match[1][:20]}; allowed is GB/s"
            raise InputError.single(path, f"line {at}", message)
        for value in lines[at + 1].split()[1:] if len(lines) > at + 1 else []:
            if re.fullmatch(r"[\d.]+", value) and float(value) > 0:
                found += 1
                yield link_point(path, at + 2, float(value) * GB)
    if not found:
        message = "no bandwidth between host and device: run host_to_device_memcpy_ce"
        raise InputError.single(path, "file", message)


def _run(path: str, text: str, request: Request, config: str | None) -> tuple[Point, ...]:
    found = compare(log_of(path, text), request, config)
    if found.predicted is None or found.measured is None:
        reason = found.unpriced[0] if found.unpriced else "its batch is not known"
        raise InputError.single(path, "layout", f"cannot be priced: {reason}")
    first = found.log.steps[0].line
    return (run_point(path, first, found.predicted.layout, found.measured.median_s),)
