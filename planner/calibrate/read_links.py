"""Reads what nccl-tests, rccl-tests and nvbandwidth print of links.

Forms: nccl-tests src/common.cu, one table or several in a file; older releases have no column
``redop`` or ``root`` where the test has none, and the header says which stand between ``type`` and
``time``. nvbandwidth memcpy testcases, ``memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)``,
either way; JSON of release 0.6 and later has it as ``bandwidth_description`` of a testcase.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.answers.collective import most_whole_ranks
from planner.calibrate.points import Place, Point, check_devices, collective_point, link_point
from planner.collectives.cost import busbw_factor
from planner.documents.tree import load_json
from planner.errors import InputError
from planner.limits import brief
from planner.spec.cluster import ClusterSpec, CollectiveKind
from planner.units import GB, US

_HEADER = re.compile(r"\bsize\s+count\s+type\b(?P<between>[\s\w]*?)\s(?P<time>\w*time)\b")
_TEST = re.compile(
    r"(all_reduce|all_gather|reduce_scatter|alltoallv?|all_to_all|sendrecv|broadcast|reduce|gather"
    r"|scatter|hypercube)_perf"
)
_RANK = re.compile(r"\bRank\s+(\d+)\s+(?:Group|Pid)\b(?:.*?\bdevice\s+\d+ \[[^\]]*\] +(.*\S))?")
_TYPE = r"(?:u?int\d+|half|float\w*|double|bfloat16|fp8\w*|f8\w*)"
_KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "p2p",
}

_SUM = re.compile(r"^\s*SUM (?:host_to_device|device_to_host)_memcpy_(?:ce|sm) [\d.]+", re.M)
_WAY = re.compile(r"memcpy \w+ CPU\(row\) (?:->|<-) GPU\(column\) bandwidth \(([^)]*)\)")
_DEVICE = re.compile(r"^\s*(?:Device )?\d+: (.*?)(?: \([0-9a-fA-F:.]+\))?(?:: \([^)]*\))?\s*$")
_RATE = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Out of place."""

    place: Place
    num_bytes: float
    time_s: float
    algorithm: float  # GB/s, as `bus` is
    bus: float


def is_nccl(lines: Sequence[str]) -> bool:
    """Whether lines hold a table of nccl-tests."""
    return any(_HEADER.search(line) for line in lines)


def nccl_points(path: str, lines: Sequence[str], cluster: ClusterSpec) -> Iterator[Point]:
    """Rows out of place; those of zero bytes, and tests that plans have no use for, are left out.

    Rows without bandwidth say only a latency, and count. A table has the test and the ranks that
    were said last before it.
    """
    devices: dict[str, str] = {}
    for at, line in enumerate(lines, 1):
        if (found := _RANK.search(line)) and found[2]:
            devices.setdefault(found[2], f"line {at}")
    check_devices(path, devices, cluster)
    heads = [at for at, line in enumerate(lines) if _HEADER.search(line)]
    tables: list[tuple[str | None, int, list[_Row]]] = []
    before = 0
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        rows, said = list(_rows(path, lines, head, end)), lines[before:head]
        test = _test(said) or _test([path] if head == heads[0] else ())
        if test is None and len(heads) == 1:
            test = _test(lines)
        if test is None and rows:
            message = "does not say which test it is of; keep its command line, or name the file so"
            raise InputError.single(path, f"line {head + 1}", f"{message} (all_reduce_perf.txt)")
        ranks = [int(found[1]) for line in said if (found := _RANK.search(line))]
        tables.append((test, max(ranks, default=-1) + 1, rows))
        before = rows[-1].place.line if rows else head
    if not any(rows for _, _, rows in tables):
        message = "the table has no row: it is truncated"
        raise InputError.single(path, f"line {len(lines)}", message)
    if not any(test in _KINDS for test, _, _ in tables):
        message = f"is of {brief(tables[0][0])}; read are {', '.join(_KINDS)}"
        raise InputError.single(path, "collective", message)
    for test, ranks_said, rows in tables:
        if test in _KINDS and rows:
            yield from _table_points(path, _KINDS[test], ranks_said, rows, cluster)


def _table_points(
    path: str, kind: CollectiveKind, ranks_said: int, rows: Sequence[_Row], cluster: ClusterSpec
) -> Iterator[Point]:
    num_ranks, most = ranks_said or _ranks_told(path, kind, rows[-1]), most_whole_ranks(cluster)
    if num_ranks > most or num_ranks < 2:
        message = f"was run on {num_ranks} ranks; {cluster.name} has {most}"
        raise InputError.single(path, "ranks", message)
    for row in rows:
        yield collective_point(row.place, kind, row.num_bytes, num_ranks, row.time_s, cluster)


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
        # nccl-tests prints sizes below one element per rank as 0 bytes
        if size <= 0 or micros <= 0:
            continue
        place, rate = Place(path=path, line=at), size / (micros * US) / GB
        # GB/s from which two decimals say a bandwidth well enough to be held against size and time.
        if algorithm >= 1.0 and abs(rate / algorithm - 1.0) > 0.02:
            message = f"{size:,.0f} bytes in {micros:g} us are {rate:,.4g} GB/s, not {algorithm:g}"
            raise place.refuse(f"{message}: in other units?")
        yield _Row(place=place, num_bytes=size, time_s=micros * US, algorithm=algorithm, bus=bus)


def _ranks_told(path: str, kind: CollectiveKind, row: _Row) -> int:
    """Ranks that the ratio of bus and algorithm bandwidth of the largest size tells."""
    if kind == "p2p":
        return 2
    ratio = row.bus / row.algorithm if row.algorithm else 0.0

    def off(num_ranks: int) -> float:
        return abs(float(busbw_factor(kind, float(num_ranks))) - ratio)

    # Ranks that the two bandwidths of a row, printed with two decimals, still tell apart.
    count = min(range(2, 64 + 1), key=off)
    if off(count) > 0.002:
        message = "does not say how many ranks it was run on; keep the lines of its devices"
        raise InputError.single(path, "ranks", message)
    return count


def is_nvbandwidth(text: str) -> bool:
    """Whether a text is nvbandwidth's."""
    return "nvbandwidth" in text or bool(_WAY.search(text) or _SUM.search(text))


def nvbandwidth_points(path: str, text: str, cluster: ClusterSpec) -> Iterator[Point]:
    """Each GPU's host link, in each direction; both at once, and links of GPUs, are left out."""
    is_json = text.lstrip().startswith("{")
    names, rates = _of_json(path) if is_json else _of_text(path, text.split("\n"))
    check_devices(path, names, cluster)
    if not rates:
        message = "no bandwidth between host and device: run host_to_device_memcpy_ce"
        raise InputError.single(path, "file", message)
    for line, rate in rates:
        yield link_point(Place(path=path, line=line), rate * GB, cluster)


# Names of GPUs with where they stand; rates in GB/s with their lines.
Found = tuple[dict[str, str], list[tuple[int, float]]]


def _of_text(path: str, lines: Sequence[str]) -> Found:
    """The row below the columns of each matrix."""
    names: dict[str, str] = {}
    rates = []
    for at, line in enumerate(lines, 1):
        if line.startswith("Device ") and (device := _DEVICE.match(line)):
            names.setdefault(device[1], f"line {at}")
        if way := _WAY.search(line):
            _check_unit(path, f"line {at}", way[1])
            cells = lines[at + 1].split()[1:] if len(lines) > at + 1 else []
            rates += [(at + 2, rate) for rate in _rates(cells)]
    return names, rates


def _of_json(path: str) -> Found:
    """The matrix of each testcase."""
    data = load_json(path).get("nvbandwidth")
    data = data if isinstance(data, dict) else {}
    devices, cases = (data.get(key) for key in ("GPU Device list", "testcases"))
    given = [str(each) for each in devices] if isinstance(devices, list) else []
    names = {match[1]: "GPU Device list" for each in given if (match := _DEVICE.match(each))}
    rates = []
    for at, case in enumerate(cases if isinstance(cases, list) else []):
        case = case if isinstance(case, dict) else {}
        if way := _WAY.search(str(case.get("bandwidth_description"))):
            _check_unit(path, f"nvbandwidth.testcases.{at}.bandwidth_description", way[1])
            matrix = case.get("bandwidth_matrix")
            for row in matrix if isinstance(matrix, list) else []:
                rates += [(1, rate) for rate in _rates(row if isinstance(row, list) else [])]
    return names, rates


def _rates(cells: Sequence[object]) -> list[float]:
    texts = [str(cell) for cell in cells]
    return [float(text) for text in texts if _RATE.fullmatch(text) and float(text) > 0]


def _check_unit(path: str, key: str, unit: str) -> None:
    if unit != "GB/s":
        raise InputError.single(path, key, f"bandwidth is in {unit[:20]}; allowed is GB/s")
