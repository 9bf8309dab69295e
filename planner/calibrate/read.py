"""Tells what a file of measurements is, and reads its points.

Forms beside tables of ``--measure`` and logs of runs: CSV with a header; nccl-tests
src/common.cu, one table or several in a file, of which older releases have no column ``redop`` or
``root`` where the test has none, and the header says which stand between ``type`` and ``time``.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.calibrate.points import (
    Place,
    Point,
    Reading,
    attention_flops,
    attention_work,
    check_devices,
    table_points,
)
from planner.calibrate.rows import FIRST_LINE, TRUNCATED, read_table
from planner.collectives.cost import busbw_factor
from planner.compare.compare import compare
from planner.compare.log import FORMS as LOGS
from planner.compare.log import log_of
from planner.documents.file import read_text
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES, brief, number_in
from planner.query.from_file import Request
from planner.spec.cluster import ClusterSpec, CollectiveKind
from planner.units import GB, TERA, US

FORMS = (
    "output of nccl-tests or rccl-tests; CSV of products (m,n,k,dtype,time_us) or attention "
    "(batch,heads,seq_len,head_dim,time_us); tables of --measure; logs of " + LOGS
)
# Columns of sizes that tell what a CSV is of.
PRODUCT, ATTENTION = ("m", "n", "k"), ("batch", "heads", "seq_len", "head_dim")
_TIMES = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
# Columns of words: what each word means, and an empty or missing one.
_WORDS: Mapping[str, Mapping[str, Any]] = {
    "dtype": {
        "bf16": "bf16", "bfloat16": "bf16", "": "bf16", "fp16": "fp16", "float16": "fp16",
        "half": "fp16", "fp8": "fp8", "tf32": "tf32", "fp32": "fp32", "float32": "fp32",
    },
    "pass": {"forward": False, "fwd": False, "": False, "backward": True, "bwd": True},
    "kernel": {"flash2": "flash2", "fused": "fused", "cudnn": "fused", "": "flash2"},
    "causal": {"true": True, "1": True, "": True, "false": False, "0": False},
}  # fmt: skip

_HEADER = re.compile(r"\bsize\s+count\s+type\b(?P<between>[\s\w]*?)\s(?P<time>\w*time)\b")
_KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "p2p",
}


def points_of(
    path: str, cluster: ClusterSpec, request: Request, config: str | None
) -> tuple[Point, ...]:
    """The points of a file; raises InputError for what is of no known form, or cannot be so."""
    text = read_text(path, MAX_LOG_BYTES, "replace")
    if text.startswith(FIRST_LINE):
        return tuple(table_points(path, read_table(path, text), cluster))
    columns = {name.strip().lower() for name in text.partition("\n")[0].split(",")}
    if _HEADER.search(text):
        read = _nccl_points
    elif columns >= set(PRODUCT):
        read = _product_points
    elif columns >= set(ATTENTION):
        read = _attention_points
    else:
        return (_run_point(path, text, cluster, request, config),)
    points = tuple(read(path, text, cluster))
    if not points:
        raise InputError.single(path, "file", TRUNCATED)
    return points


def _run_point(
    path: str, text: str, cluster: ClusterSpec, request: Request, config: str | None
) -> Point:
    found = compare(log_of(path, text, FORMS), request, config)
    if found.layout is None or found.measured is None:
        reason = found.unpriced[0] if found.unpriced else "its batch is not known"
        raise InputError.single(path, "layout", f"cannot be priced: {reason}")
    first = Place(path=path, line=found.log.steps[0].line)
    return Reading(first, found.measured.iter_time_s, cluster).run(found.layout)


def _csv_rows(
    path: str, text: str, sizes: Sequence[str]
) -> Iterator[tuple[Place, dict[str, str], dict[str, int]]]:
    """Place, cells and sizes of the rows of a CSV with a time, or a rate in TFLOP/s."""
    reader = csv.DictReader(text.split("\n"))
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    times = (*_TIMES, "tflops")
    if not names.keys() & set(times):
        message = f"needs a column {', '.join(times)}; given {', '.join(names)}"
        raise InputError.single(path, "line 1", message)
    for row in reader:
        place = Place(path=path, line=reader.line_num)
        given = {name: (row[key] or "").strip() for name, key in names.items()}
        numbers = {name: int(_number(place, name, given[name])) for name in sizes}
        yield place, given, numbers


def _product_points(path: str, text: str, cluster: ClusterSpec) -> Iterator[Point]:
    """GEMMs; ``dtype`` [bf16]."""
    for place, given, sizes in _csv_rows(path, text, PRODUCT):
        seconds = _seconds(place, given, 2.0 * math.prod(sizes.values()))
        dtype = _word(place, "dtype", given)
        yield Reading(place, seconds, cluster).product(**sizes, precision=dtype)


def _attention_points(path: str, text: str, cluster: ClusterSpec) -> Iterator[Point]:
    """Fused attention; ``dtype``, ``pass`` [forward], ``causal`` [true], ``kernel`` [flash2]."""
    for place, given, sizes in _csv_rows(path, text, ATTENTION):
        words = {name: _word(place, name, given) for name in _WORDS}
        work = attention_work(**sizes, kernel=words["kernel"], is_causal=words["causal"])
        seconds = _seconds(place, given, attention_flops(work, is_backward=words["pass"]))
        reading = Reading(place, seconds, cluster)
        yield reading.attention(work, words["dtype"], is_backward=words["pass"])


def _number(place: Place, name: str, text: str) -> float:
    value = number_in(text)
    if not 0.0 < value < 1e15 or (not name.startswith("time") and value < 1):
        raise place.refuse(f"{name} must be above 0; given {brief(text)}")
    return value


def _seconds(place: Place, given: Mapping[str, str], flops: float) -> float:
    for name, unit_s in _TIMES.items():
        if given.get(name):
            return _number(place, "time", given[name]) * unit_s
    return flops / (_number(place, "time or tflops", given.get("tflops", "")) * TERA)


def _word(place: Place, name: str, given: Mapping[str, str]) -> Any:  # noqa: ANN401
    text, allowed = given.get(name, ""), _WORDS[name]
    if (word := text.lower().removeprefix("torch.")) not in allowed:
        words = ", ".join(each for each in allowed if each)
        raise place.refuse(f"{name} {brief(text)}; allowed are {words}")
    return allowed[word]


def _nccl_points(path: str, text: str, cluster: ClusterSpec) -> Iterator[Point]:
    """Rows out of place; those of zero bytes, and tests that plans have no use for, are left out.

    Rows without bandwidth say only a latency, and count. A table has the test and the ranks that
    were said last before it.
    """
    lines = text.split("\n")
    rank = r"\bRank\s+(\d+)\s+(?:Group|Pid)\b(?:.*?\bdevice\s+\d+ \[[^\]]*\] +(.*\S))?"
    searched = {at: re.search(rank, line) for at, line in enumerate(lines)}
    ranks = {at: found for at, found in searched.items() if found}
    devices = {found[2]: f"line {at + 1}" for at, found in ranks.items() if found[2]}
    check_devices(path, devices, cluster)
    heads = [at for at, line in enumerate(lines) if _HEADER.search(line)]
    tests: list[str | None] = []
    before = 0
    ends = [*heads[1:], len(lines)]
    for head, end in zip(heads, ends, strict=True):
        rows = list(_nccl_rows(path, lines, head, end))
        test = _test(lines[before:head]) or (_test([path]) if head == heads[0] else None)
        if test is None and len(heads) == 1:
            test = _test(lines)
        if test is None and rows:
            message = "does not say which test it is of; keep its command line, or name the file so"
            raise InputError.single(path, f"line {head + 1}", f"{message} (all_reduce_perf.txt)")
        said = [int(found[1]) for at, found in ranks.items() if before <= at < head]
        before = rows[-1][0].line if rows else head
        if not rows:
            continue
        tests.append(test)
        if kind := _KINDS.get(str(test)):
            num_ranks = max(said) + 1 if said else _ranks_told(path, kind, rows[-1][-1])
            yield from (
                Reading(place, seconds, cluster).collective(kind, num_bytes, num_ranks)
                for place, num_bytes, seconds, _ in rows
            )
    if tests and not any(test in _KINDS for test in tests):
        message = f"is of {brief(tests[0])}; read are {', '.join(_KINDS)}"
        raise InputError.single(path, "collective", message)


def _test(lines: Sequence[str]) -> str | None:
    """The last test that is named, before "concluded" closes it."""
    open_ = re.split(r".*concluded.*", "\n".join(lines))[-1]
    names: list[str] = re.findall(
        r"(all_reduce|all_gather|reduce_scatter|alltoallv?|all_to_all|sendrecv|broadcast|reduce"
        r"|gather|scatter|hypercube)_perf",
        open_,
    )
    return names[-1] if names else None


def _nccl_rows(
    path: str, lines: Sequence[str], head: int, end: int
) -> Iterator[tuple[Place, float, float, float]]:
    """Place, bytes, seconds, and bus over algorithm bandwidth of each row of a table."""
    match = _HEADER.search(lines[head])
    assert match is not None
    if match["time"] != "time":
        message = f"has times of the host ({match['time']}); run it without -C"
        raise InputError.single(path, f"line {head + 1}", message)
    words = r"\s+-?\w+" * len(match["between"].split())
    number = r"\s+([\d.]+)"
    dtype = r"(?:u?int\d+|half|float\w*|double|bfloat16|fp8\w*|f8\w*)"
    form = re.compile(rf"(?:^|[\s:])(\d+)\s+\d+\s+{dtype}{words}{number * 3}\s")
    for at, line in enumerate(lines[head + 1 : end], head + 2):
        if not (cells := form.search(f"{line} ")):
            continue
        size, micros, algorithm, bus = (float(text) for text in cells.groups())
        # nccl-tests prints sizes below one element per rank as 0 bytes
        if size <= 0 or micros <= 0:
            continue
        place = Place(path=path, line=at)
        rate = size / (micros * US) / GB
        # GB/s from which two decimals say a bandwidth well enough to be held against size and time.
        if algorithm >= 1.0 and abs(rate / algorithm - 1.0) > 0.02:
            message = f"{size:,.0f} bytes in {micros:g} us are {rate:,.4g} GB/s, not {algorithm:g}"
            raise place.refuse(f"{message}: in other units?")
        yield place, size, micros * US, bus / algorithm if algorithm else 0.0


def _ranks_told(path: str, kind: CollectiveKind, ratio: float) -> int:
    """Ranks that the ratio of bus and algorithm bandwidth of the largest size tells."""
    if kind == "p2p":
        return 2

    # ranks that the two bandwidths of a row, printed with two decimals, still tell apart
    counts = np.arange(2.0, 64.0 + 1.0)
    off = np.abs(busbw_factor(kind, counts) - ratio)
    if np.min(off) > 0.002:
        message = "does not say how many ranks it was run on; keep the lines of its devices"
        raise InputError.single(path, "ranks", message)
    return int(counts[np.argmin(off)])
