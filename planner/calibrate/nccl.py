"""Reads what nccl-tests and rccl-tests print, one table or several in a file.

Form: nccl-tests src/common.cu. Older releases have no column ``redop`` or ``root`` where the test
has none; the header says which stand between ``type`` and ``time``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.calibrate.machine import check_devices
from planner.calibrate.points import Point, bus_factor, collective_point
from planner.errors import InputError
from planner.limits import brief
from planner.plans.collective import most_whole_ranks
from planner.spec.cluster import ClusterSpec
from planner.spec.library import Kind
from planner.units import GB, US

_HEADER = re.compile(r"\bsize\s+count\s+type\b(?P<between>[\s\w]*?)\s(?P<time>\w*time)\b")
_TEST = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoallv?|all_to_all|sendrecv|broadcast|reduce|gather"
    r"|scatter|hypercube)_perf"
)
_DEVICE = re.compile(r"\bRank\s+(\d+)\s+(?:Group|Pid)\b(?:.*?\bdevice\s+\d+ \[[^\]]*\] +(.*\S))?")
_TYPE = r"(?:u?int\d+|half|float\w*|double|bfloat16|fp8\w*|f8\w*)"
_KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "p2p",
}
MOST_RANKS_TOLD = 64
"""Ranks that the two bandwidths of a row, printed with two decimals, still tell apart."""
LEAST_TOLD = 1.0
"""GB/s from which two decimals say a bandwidth well enough to be held against size and time."""
AGREES = 0.02


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Out of place."""

    line: int
    num_bytes: float
    time_s: float
    algorithm: float
    """GB/s, as ``bus`` is."""
    bus: float


@dataclass(frozen=True, kw_only=True)
class _Table:
    """From one header to the next, with what was said before it."""

    test: str | None
    """As it is called: ``all_reduce``."""
    ranks: int
    """0: no line of a device."""
    rows: tuple[_Row, ...]


def is_nccl(lines: Sequence[str]) -> bool:
    """Whether lines hold a table of nccl-tests."""
    return any(_HEADER.search(line) for line in lines)


def nccl_points(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """Rows out of place; those of zero bytes, and tests that plans have no use for, are left out.

    Rows without bandwidth say only a latency, and count.
    """
    check_devices(path, _devices(lines), cluster)
    tables = _tables(path, lines)
    if not any(table.rows for table in tables):
        message = "the table has no row: it is truncated"
        raise InputError.single(path, f"line {len(lines)}", message)
    known = [table for table in tables if table.test in _KINDS]
    if not known:
        message = f"is of {brief(tables[0].test)}; read are {', '.join(_KINDS)}"
        raise InputError.single(path, "collective", message)
    for table in known:
        yield from _points(path, table, _KINDS[str(table.test)], cluster)


def _points(path: str, table: _Table, kind: Kind, cluster: ClusterSpec) -> Iterator[Point]:
    if not table.rows:
        return
    num_ranks = table.ranks or _told(path, kind, table.rows[-1])
    most = most_whole_ranks(cluster)
    if num_ranks > most or num_ranks < 2:
        message = f"was run on {num_ranks} ranks; {cluster.name} has {most}"
        raise InputError.single(path, "ranks", message)
    for row in table.rows:
        yield collective_point(path, row.line, kind, row.num_bytes, num_ranks, row.time_s, cluster)


def _devices(lines: Sequence[str]) -> dict[str, str]:
    """What the GPUs are called, and the line where each is called so first."""
    found: dict[str, str] = {}
    for at, line in enumerate(lines, 1):
        match = _DEVICE.search(line)
        if match and match[2]:
            found.setdefault(match[2], f"line {at}")
    return found


def _tables(path: str, lines: Sequence[str]) -> list[_Table]:
    """Each header with its rows, the test and the ranks that were said last before it."""
    heads = [at for at, line in enumerate(lines) if _HEADER.search(line)]
    found: list[_Table] = []
    before = 0
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        said = lines[before:head]
        rows = tuple(_rows(path, lines, head, end))
        ranks = {int(match[1]) for line in said if (match := _DEVICE.search(line))}
        test = _test(said) or _test([path] if head == heads[0] else ())
        if test is None and len(heads) == 1:
            test = _test(lines)
        if test is None and rows:
            message = "does not say which test it is of; keep its command line, or name the file so"
            raise InputError.single(path, f"line {head + 1}", f"{message} (all_reduce_perf.txt)")
        found.append(_Table(test=test, ranks=max(ranks, default=-1) + 1, rows=rows))
        before = rows[-1].line if rows else head
    return found


def _test(lines: Sequence[str]) -> str | None:
    """The last test that is named, before "concluded" closes it."""
    found = None
    for line in lines:
        if "concluded" in line:
            found = None
        elif match := _TEST.search(line):
            found = match[1]
    return found


def _rows(path: str, lines: Sequence[str], head: int, end: int) -> Iterator[_Row]:
    match = _HEADER.search(lines[head])
    assert match is not None
    if match["time"] != "time":
        message = f"has times of the host ({match['time']}); run it without -C"
        raise InputError.single(path, f"line {head + 1}", message)
    words = r"\s+-?\w+" * len(match["between"].split())
    number = r"\s+([\d.]+)"
    form = re.compile(rf"(?:^|[\s:])(\d+)\s+\d+\s+{_TYPE}{words}{number * 3}\s")
    for at, line in enumerate(lines[head + 1 : end], head + 2):
        if not (cells := form.search(f"{line} ")):
            continue
        size, micros, algorithm, bus = (float(text) for text in cells.groups())
        if size <= 0 or micros <= 0:
            continue
        rate = size / (micros * US) / GB
        if algorithm >= LEAST_TOLD and abs(rate / algorithm - 1.0) > AGREES:
            message = f"{size:,.0f} bytes in {micros:g} us are {rate:,.4g} GB/s, not {algorithm:g}"
            raise InputError.single(path, f"line {at}", f"{message}: in other units?")
        yield _Row(line=at, num_bytes=size, time_s=micros * US, algorithm=algorithm, bus=bus)


def _told(path: str, kind: Kind, row: _Row) -> int:
    """Ranks that the ratio of bus and algorithm bandwidth of the largest size tells."""
    if kind == "p2p":
        return 2
    ratio = row.bus / row.algorithm if row.algorithm else 0.0
    count = min(range(2, MOST_RANKS_TOLD + 1), key=lambda n: abs(bus_factor(kind, n) - ratio))
    if abs(bus_factor(kind, count) - ratio) > 0.002:
        message = "does not say how many ranks it was run on; keep the lines of its devices"
        raise InputError.single(path, "ranks", message)
    return count
