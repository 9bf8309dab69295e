"""Reads what nvbandwidth prints of the links between host and GPUs, as text or with ``--json``.

Form: nvbandwidth memcpy testcases, ``memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)``, either
way; JSON of release 0.6 and later has it as ``bandwidth_description`` of a testcase.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from planner.calibrate.figures import Base
from planner.calibrate.machine import check_devices
from planner.calibrate.points import Point, link_point
from planner.documents.json_text import load_json
from planner.errors import InputError
from planner.units import GB

_SUM = re.compile(r"^\s*SUM (?:host_to_device|device_to_host)_memcpy_(?:ce|sm) [\d.]+", re.M)
_WAY = re.compile(r"memcpy \w+ CPU\(row\) (?:->|<-) GPU\(column\) bandwidth \(([^)]*)\)")
_DEVICE = re.compile(r"^\s*(?:Device )?\d+: (.*?)(?: \([0-9a-fA-F:.]+\))?(?:: \([^)]*\))?\s*$")
_RATE = re.compile(r"\d+(?:\.\d+)?")


def is_nvbandwidth(text: str) -> bool:
    """Whether a text is nvbandwidth's."""
    return "nvbandwidth" in text or bool(_WAY.search(text) or _SUM.search(text))


def nvbandwidth_points(path: str, text: str, base: Base) -> Iterator[Point]:
    """Each GPU's host link, in each direction; both at once, and links of GPUs, are left out."""
    is_json = text.lstrip().startswith("{")
    names, rates = _of_json(path) if is_json else _of_text(path, text.split("\n"))
    check_devices(path, names, base.cluster)
    if not rates:
        message = "no bandwidth between host and device: run host_to_device_memcpy_ce"
        raise InputError.single(path, "file", message)
    for at, rate in rates:
        yield link_point(path, at, rate * GB, base.cluster)


Found = tuple[dict[str, str], list[tuple[int, float]]]
"""Names of GPUs with where they stand; rates in GB/s with their lines."""


def _of_text(path: str, lines: Sequence[str]) -> Found:
    """The row below the columns of each matrix."""
    names: dict[str, str] = {}
    rates = []
    for at, line in enumerate(lines, 1):
        if line.startswith("Device ") and (device := _DEVICE.match(line)):
            names.setdefault(device[1], f"line {at}")
        if way := _WAY.search(line):
            _check_unit(path, f"line {at}", way[1])
            row = lines[at + 1].split()[1:] if len(lines) > at + 1 else []
            rates += [(at + 2, float(cell)) for cell in row if _is_rate(cell)]
    return names, rates


def _of_json(path: str) -> Found:
    """The matrix of each testcase."""
    data = _section(load_json(path).get("nvbandwidth"))
    devices = data.get("GPU Device list")
    given = [str(each) for each in devices] if isinstance(devices, list) else []
    names = {match[1]: "GPU Device list" for each in given if (match := _DEVICE.match(each))}
    rates = []
    cases = data.get("testcases")
    for at, case in enumerate(cases if isinstance(cases, list) else []):
        way = _WAY.search(str(_section(case).get("bandwidth_description")))
        if way is None:
            continue
        _check_unit(path, f"nvbandwidth.testcases.{at}.bandwidth_description", way[1])
        matrix = _section(case).get("bandwidth_matrix")
        rows = matrix if isinstance(matrix, list) else []
        cells = [str(cell) for row in rows if isinstance(row, list) for cell in row]
        rates += [(1, float(cell)) for cell in cells if _is_rate(cell)]
    return names, rates


def _section(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_rate(cell: str) -> bool:
    return bool(_RATE.fullmatch(cell)) and float(cell) > 0


def _check_unit(path: str, key: str, unit: str) -> None:
    if unit != "GB/s":
        raise InputError.single(path, key, f"bandwidth is in {unit[:20]}; allowed is GB/s")
