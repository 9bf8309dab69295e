"""``nvidia-smi --query-gpu=name,memory.total,... --format=csv``: the GPUs of one host.

Columns are those `nvidia-smi --help-query-gpu` lists, in any order; the header is needed.
"""

import csv
import re
from collections.abc import Mapping, Sequence

from planner.catalog.detect.observation import Observation, Problems, Slot
from planner.limits import MAX_GPUS_PER_NODE, brief

COLUMNS = (
    "name",
    "memory.total",
    "memory.reserved",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "mig.mode.current",
)
"""What to ask for; all but the first are optional."""
COMMAND = f"nvidia-smi --query-gpu={','.join(COLUMNS)} --format=csv"
_MIG = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(?: ?MiB)?", re.ASCII)
_UNKNOWN = re.compile(r"\[.*\]|N/A|", re.IGNORECASE)
"""What stands for a figure: nothing, or why there is none, such as ``[Not Supported]``."""
MAX_MEMORY_MIB = 2000 * 1024
MAX_PCIE_GENERATION = 7


def is_smi_header(line: str) -> bool:
    """Whether a line names the columns."""
    return "name" in _columns(line.split(","))


def parse_smi(text: str, where: str) -> Observation:
    """Return the GPUs of a host; raises InputError with every problem of the table."""
    problems = Problems(where)
    rows = _rows(text, problems)
    problems.stop()
    names = {str(row["name"]) for row in rows}
    if len(names) > 1:
        kinds = ", ".join(brief(name) for name in sorted(names))
        message = f"one host with several kinds of GPU ({kinds}); give the rows of one kind"
        problems.add("name", message)
    problems.stop()
    totals = {row.get("memory.total") for row in rows} - {None}
    return Observation(
        where=where,
        gpu=str(rows[0]["name"]),
        num_gpus=len(rows),
        memory_mib=_memory(rows),
        slot=_slot(rows),
        notes=() if totals else ("memory.total is not told",),
    )


def _columns(cells: Sequence[str]) -> list[str]:
    """The names of columns without their units."""
    return [cell.split("[")[0].strip() for cell in cells]


def _rows(text: str, problems: Problems) -> list[dict[str, str | float]]:
    given = text.strip("\n").splitlines()
    start = next((index for index, line in enumerate(given) if is_smi_header(line)), 0)
    try:
        lines = list(csv.reader(given[start:], skipinitialspace=True))
    except csv.Error as error:
        problems.add("file", f"is no table: {error}")
        return []
    header = _columns(lines[0]) if lines else []
    if "name" not in header:
        columns = ", ".join(header) or "nothing"
        problems.add("line 1", f"has no column name; given {brief(columns)}. Run `{COMMAND}`")
        return []
    if len(lines) - 1 > MAX_GPUS_PER_NODE:
        problems.add(
            "file", f"lists {len(lines) - 1:,} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node"
        )
        return []
    rows = []
    for number, cells in enumerate(lines[1:], start=start + 2):
        if len(cells) != len(header):
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        rows.append(_row(row, number, problems))
    if len(lines) == 1:
        problems.add("file", f"lists no GPU; run `{COMMAND}` on a node that has some")
    return rows


def _row(row: Mapping[str, str], number: int, problems: Problems) -> dict[str, str | float]:
    """The name and the figures of one GPU; a figure that is not available is left out."""
    name = row["name"]
    read: dict[str, str | float] = {"name": name}
    if _MIG.search(name) or row.get("mig.mode.current", "").lower() == "enabled":
        message = f"{brief(name)} is cut into MIG instances, which plans do not use; disable MIG"
        problems.add(f"line {number}: name", message)
    elif _UNKNOWN.fullmatch(name):
        problems.add(f"line {number}: name", f"is {brief(name)}; a GPU's name is needed")
    for column, most in (
        ("memory.total", MAX_MEMORY_MIB),
        ("memory.reserved", MAX_MEMORY_MIB),
        ("pcie.link.gen.max", MAX_PCIE_GENERATION),
        ("pcie.link.width.max", 32),
    ):
        text = row.get(column, "")
        if _UNKNOWN.fullmatch(text):
            continue
        match = _NUMBER.fullmatch(text)
        if match is None or not 0 <= float(match[1]) <= most:
            message = f"must be a number up to {most:,}; given {brief(text)}"
            problems.add(f"line {number}: {column}", message)
        else:
            read[column] = float(match[1])
    return read


def _memory(rows: list[dict[str, str | float]]) -> float | None:
    """MiB of the smallest GPU that programs can use."""
    usable = [
        float(row["memory.total"]) - float(row.get("memory.reserved", 0))
        for row in rows
        if "memory.total" in row
    ]
    return min(usable) if usable and min(usable) > 0 else None


def _slot(rows: list[dict[str, str | float]]) -> Slot | None:
    """The narrowest slot; widths and generations of 0 are not told."""
    slots = [
        (float(row.get("pcie.link.gen.max", 0)), float(row.get("pcie.link.width.max", 0)))
        for row in rows
    ]
    if not all(generation >= 1 and lanes >= 1 for generation, lanes in slots):
        return None
    generation, lanes = min(slots, key=lambda slot: 2 ** slot[0] * slot[1])
    return Slot(generation=int(generation), lanes=int(lanes))
