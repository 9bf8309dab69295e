"""What ``nvidia-smi`` and ``sinfo`` print about machines, asked of this one or read from files.

Which tool wrote a text is told by the header of its table; what stands above that is left out.
"""

import csv
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.documents.file import read_bytes
from planner.errors import InputError, Problem
from planner.limits import MAX_GPUS, MAX_GPUS_PER_NODE, MAX_LOG_BYTES, brief, one_line

SMI_COLUMNS = (
    "name",
    "memory.total",
    "memory.reserved",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "mig.mode.current",
)
"""Of ``nvidia-smi --help-query-gpu``; all but the first are optional, in any order."""
SMI_COMMAND = f"nvidia-smi --query-gpu={','.join(SMI_COLUMNS)} --format=csv"
SINFO_FORMAT = "%N|%c|%m|%G|%P"
SINFO_COMMAND = f'sinfo -N -o "{SINFO_FORMAT}"'
COMMANDS = f"`{SMI_COMMAND}`, `{SINFO_COMMAND}`"
TIMEOUT_S = 60
MAX_PROBLEMS = 20
"""Of one source; a file of another format can have one in every line."""
MAX_LEFT_OUT = 8
"""Kinds of nodes named among the notes."""
MAX_MEMORY_MIB = 2000 * 1024
MAX_PCIE_GENERATION = 7

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\[\d[\d;]*m")
"""Colours; pages that show a terminal's output drop the escape character before them."""
_FAILED = ("NVIDIA-SMI has failed", "No devices were found", "Failed to initialize NVML")
_MIG = re.compile(r"\bmig\b|\bshard\b|\d+g\.\d+gb", re.IGNORECASE)
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(?: ?MiB)?", re.ASCII)
_UNKNOWN = re.compile(r"\[.*\]|N/A|", re.IGNORECASE)
"""What stands for a figure: nothing, or why there is none, such as ``[Not Supported]``."""
_SINFO_NEEDED = ("NODELIST", "GRES")
_GRES_GPU = re.compile(r"gpu(?::([^:,()=]+))?:(\d{1,5})(?:\([^)]*\))?", re.ASCII)
_SINFO_MEMORY = re.compile(r"(\d{1,12})\+?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The PCIe slot of a GPU, at its best."""

    generation: int
    lanes: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one source tells about a node; None and empty: not told."""

    where: str
    gpu: str = ""
    """As the tool spells it."""
    num_gpus: int | None = None
    memory_mib: float | None = None
    slot: Slot | None = None
    host_memory_mib: float | None = None
    num_nodes: int | None = None
    partitions: tuple[str, ...] = ()
    """Of Slurm, that hold such nodes."""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The source without its folder, fit for one line."""
        return one_line(Path(self.where).name or self.where)


@dataclass(frozen=True, kw_only=True)
class SlurmNodes:
    """Nodes with the same GPUs as one observation; that of most GPUs first."""

    where: str
    groups: tuple[Observation, ...]
    notes: tuple[str, ...] = ()
    """Nodes that were left out."""


Source = Observation | SlurmNodes


class _Problems:
    """Problems of one source, raised together."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[Problem] = []

    def add(self, key: str, message: str) -> None:
        self.found.append(Problem(where=self.where, key=key, message=message))

    def stop(self) -> None:
        """Raise InputError if there is any problem; of very many the first ones, and how many."""
        found = list(dict.fromkeys(self.found))
        if len(found) > MAX_PROBLEMS:
            more = f"{len(found) - MAX_PROBLEMS:,} more problems of this kind and others"
            found[MAX_PROBLEMS:] = [Problem(where=self.where, key="file", message=more)]
        if found:
            raise InputError(found)


# Sources: this machine's tools, or files with what tools printed.


def ask_host(meminfo: Path = Path("/proc/meminfo")) -> list[Source]:
    """Return what nvidia-smi, sinfo and /proc/meminfo tell; raises InputError without any GPU."""
    sources: list[Source] = []
    problems: list[Problem] = []
    for command in (SMI_COMMAND.split(), ["sinfo", "-N", "-o", SINFO_FORMAT]):
        if shutil.which(command[0]) is None:
            continue
        where = " ".join(word.split("=")[0] for word in command[:2])
        try:
            sources.append(parse(_output(command, where), where))
        except InputError as error:
            problems += error.problems
    if not sources:
        missing = [name for name in ("nvidia-smi", "sinfo") if shutil.which(name) is None]
        absent = f"{' and '.join(missing)} not on PATH; " if missing else ""
        message = (
            f"no accelerator found: {absent}run it on a node with GPUs, or give what was printed "
            f"there by --from FILE: {COMMANDS}"
        )
        problems.append(Problem(where="this machine", key="--detect", message=message))
    if problems:
        raise InputError(problems)
    # A login node without GPUs tells nothing of the memory of the others.
    if any(isinstance(source, Observation) for source in sources):
        sources += _host_memory(meminfo)
    return sources


def _output(command: Sequence[str], where: str) -> str:
    """Standard output of a tool; its failure is a problem with the last line it printed."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        message = f"gave no answer in {TIMEOUT_S} s; give its output by --from FILE"
        raise InputError.single(where, "--detect", message) from None
    except OSError as error:
        raise InputError.single(where, "--detect", f"cannot be run: {error.strerror}") from None
    if done.returncode:
        said = clean(done.stderr or done.stdout, where).strip().splitlines()
        message = f"failed with exit code {done.returncode}: {said[-1] if said else 'no message'}"
        raise InputError.single(where, "--detect", message)
    return clean(done.stdout, where)


def _host_memory(path: Path) -> list[Observation]:
    """MemTotal in KiB; nothing where the file has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    words = next((line.split() for line in lines if line.startswith("MemTotal:")), [])
    if len(words) < 2 or not words[1].isdecimal() or not int(words[1]):
        return []
    return [Observation(where=str(path), host_memory_mib=int(words[1]) / 1024)]


def read_source(path: Path) -> Source:
    """Return what a file tells; raises InputError for a file that no known tool wrote."""
    where = str(path)
    return parse(clean(read_bytes(path, MAX_LOG_BYTES), where), where)


def clean(data: bytes, where: str) -> str:
    """Return the text without byte order mark, colours and foreign line ends."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: {error.reason} at byte {error.start:,}"
        raise InputError.single(where, "file", message) from None
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    odd = next((char for char in text if not char.isprintable() and char not in "\n\t"), "")
    if odd:
        raise InputError.single(where, "file", f"has the control character {odd!r}; is it text?")
    return text


def parse(text: str, where: str) -> Source:
    """Return what a text tells, by the table that it holds."""
    lines = text.rstrip("\n").splitlines()
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise InputError.single(where, "file", f"is empty; known are {COMMANDS}")
    for line in filled[:3]:
        if line.startswith(_FAILED):
            raise InputError.single(where, "line 1", f"nvidia-smi found no GPU: {line.strip()!r}")
    for number, line in enumerate(lines):
        if "|" in line and set(_SINFO_NEEDED) & set(_cells(line)):
            return _parse_sinfo(lines, number, where)
        if "name" in _column_names(line.split(",")):
            return _parse_smi(lines, number, where)
    message = f"written by no known tool; known are {COMMANDS} (keep the headers)"
    if filled[0].lstrip().startswith("<") or re.match(r"\s*GPU0\b", filled[0]):
        message = f"topologies of NCCL and nvidia-smi are not covered; known are {COMMANDS}"
    raise InputError.single(where, "line 1", message)


# nvidia-smi: one row per GPU of a host.


def _column_names(cells: Sequence[str]) -> list[str]:
    """Return the names of columns without their units."""
    return [cell.split("[")[0].strip() for cell in cells]


def _parse_smi(lines: Sequence[str], start: int, where: str) -> Observation:
    problems = _Problems(where)
    rows = _smi_rows(lines, start, problems)
    names = sorted({str(row["name"]) for row in rows})
    if len(names) > 1 and not problems.found:
        kinds = ", ".join(map(brief, names))
        message = f"one host with several kinds of GPU ({kinds}); give the rows of one kind"
        problems.add("name", message)
    problems.stop()
    usable_mib = [
        float(row["memory.total"]) - float(row.get("memory.reserved", 0))
        for row in rows
        if "memory.total" in row
    ]
    slots = [
        Slot(
            generation=int(row.get("pcie.link.gen.max", 0)),
            lanes=int(row.get("pcie.link.width.max", 0)),
        )
        for row in rows
    ]
    # Each generation doubles the rate of a lane; 0 is how virtual machines say nothing.
    narrowest = min(slots, key=lambda slot: 2**slot.generation * slot.lanes)
    return Observation(
        where=where,
        gpu=names[0],
        num_gpus=len(rows),
        memory_mib=min(usable_mib) if usable_mib and min(usable_mib) > 0 else None,
        slot=narrowest if all(slot.generation and slot.lanes for slot in slots) else None,
        notes=() if usable_mib else ("memory.total is not told",),
    )


def _smi_rows(
    lines: Sequence[str], start: int, problems: _Problems
) -> list[dict[str, str | float]]:
    try:
        table = list(csv.reader(lines[start:], skipinitialspace=True))
    except csv.Error as error:
        problems.add("file", f"is no table: {error}")
        return []
    header = _column_names(table[0])
    if len(table) == 1 or "name" not in header:
        problems.add("file", f"lists no GPU; run `{SMI_COMMAND}` on a node that has some")
        return []
    if len(table) - 1 > MAX_GPUS_PER_NODE:
        message = f"lists {len(table) - 1:,} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node"
        problems.add("file", message)
        return []
    rows = []
    for number, cells in enumerate(table[1:], start=start + 2):
        if len(cells) != len(header):
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        rows.append(_smi_row(row, number, problems))
    return rows


def _smi_row(row: Mapping[str, str], number: int, problems: _Problems) -> dict[str, str | float]:
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
        if match is None or float(match[1]) > most:
            message = f"must be a number up to {most:,}; given {brief(text)}"
            problems.add(f"line {number}: {column}", message)
        else:
            read[column] = float(match[1])
    return read


# sinfo: one row per node and partition; memory in MiB, GPUs such as gpu:h100:8(S:0-1).


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _parse_sinfo(lines: Sequence[str], start: int, where: str) -> SlurmNodes:
    """Nodes with GPUs by kind; those cut into parts or with several kinds are left out."""
    problems = _Problems(where)
    header = _cells(lines[start])
    missing = [name for name in _SINFO_NEEDED if name not in header]
    if missing:
        problems.add("line 1", f"has no column {', '.join(missing)}; run `{SINFO_COMMAND}`")
        problems.stop()
    memory_mib: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    partitions: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    left_out: dict[str, str] = {}
    rows = _sinfo_rows(lines, start, header, problems)
    for number, row in rows:
        node, gres = row["NODELIST"], row["GRES"]
        if "[" in node or not node:
            message = f"must be one node a row; given {brief(node)}, run sinfo with -N"
            problems.add(f"line {number}: NODELIST", message)
        gpus = _gpus(gres, number, problems)
        if any(map(_MIG.search, gpus)):
            left_out[node] = f"parts of GPUs (MIG): {brief(gres)}"
        elif len(gpus) > 1:
            left_out[node] = f"several kinds of GPU: {brief(gres)}"
        for kind in gpus.items() if node not in left_out else ():
            memory_mib[kind][node] = _sinfo_memory_mib(row.get("MEMORY", ""), number, problems)
            partitions[kind].append(row.get("PARTITION", "").rstrip("*"))
    notes = _left_out_notes(left_out)
    num_nodes = sum(map(len, memory_mib.values()))
    if not num_nodes and not problems.found:
        none = "no node has GPUs that plans use" if notes else "no node has GPUs"
        problems.add("GRES", "; ".join((none, *notes, f"{len(rows)} rows read")))
    if num_nodes > MAX_GPUS:
        problems.add("file", f"lists {num_nodes:,} nodes, at most {MAX_GPUS:,} are read")
    problems.stop()
    groups = [
        Observation(
            where=where,
            gpu=gpu,
            num_gpus=count,
            num_nodes=len(nodes),
            host_memory_mib=min(filter(None, nodes.values()), default=None),
            partitions=tuple(dict.fromkeys(filter(None, partitions[gpu, count]))),
        )
        for (gpu, count), nodes in memory_mib.items()
    ]
    groups.sort(key=lambda group: -(group.num_gpus or 0) * (group.num_nodes or 0))
    return SlurmNodes(where=where, groups=tuple(groups), notes=notes)


def _sinfo_rows(
    lines: Sequence[str], start: int, header: Sequence[str], problems: _Problems
) -> list[tuple[int, dict[str, str]]]:
    """The rows below the header by the numbers of their lines."""
    rows = []
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        cells = _cells(line)
        if len(cells) == len(header):
            rows.append((number, dict(zip(header, cells, strict=True))))
        elif line.strip():
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)
    return rows


def _sinfo_memory_mib(text: str, number: int, problems: _Problems) -> float:
    """The memory of a node; 0 where it is not told."""
    if text in ("", "N/A"):
        return 0.0
    match = _SINFO_MEMORY.fullmatch(text)
    if match is None:
        problems.add(f"line {number}: MEMORY", f"must be a number of MB; given {brief(text)}")
        return 0.0
    return float(match[1])


def _gpus(gres: str, number: int, problems: _Problems) -> dict[str, int]:
    """The kinds and counts of a node's GPUs; commas within parentheses belong to an entry."""
    key = f"line {number}: GRES"
    found: Counter[str] = Counter()
    for entry in (part.strip() for part in re.split(r",(?![^(]*\))", gres)):
        if entry.split(":")[0] != "gpu":
            continue
        match = _GRES_GPU.fullmatch(entry)
        if match is None:
            problems.add(key, f"must be gpu:KIND:COUNT; given {brief(gres)}")
            return {}
        found[match[1] or ""] += int(match[2])
    if found.total() > MAX_GPUS_PER_NODE:
        problems.add(key, f"{found.total()} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node")
        return {}
    return dict(+found)


def _left_out_notes(left_out: Mapping[str, str]) -> tuple[str, ...]:
    """Nodes that were left out, by their reason and resources."""
    counts = Counter(left_out.values()).most_common()
    notes = [f"left out: {n} {'node' if n == 1 else 'nodes'} with {why}" for why, n in counts]
    if len(notes) > MAX_LEFT_OUT:
        more = len(notes) - MAX_LEFT_OUT
        notes[MAX_LEFT_OUT:] = [f"left out: {more} more kinds of nodes that plans do not use"]
    return tuple(notes)
