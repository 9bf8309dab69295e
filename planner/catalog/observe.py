"""Output of ``nvidia-smi`` and ``sinfo`` about machines, run on this one or read from files.

Which tool wrote a text is told by the header of its table; what stands above that is left out.
"""

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from planner.documents.file import is_file, read_bytes
from planner.errors import InputError, Problem
from planner.limits import MAX_GPUS, MAX_GPUS_PER_NODE, MAX_LOG_BYTES, brief, one_line
from planner.notes import Problems

MAX_MEMORY_MIB = 2000 * 1024
MAX_PCIE_GENERATION = 7
# Figures of `nvidia-smi --help-query-gpu` and their largest values; any may be missing.
SMI_FIGURES = {
    "memory.total": MAX_MEMORY_MIB,
    "memory.reserved": MAX_MEMORY_MIB,
    "pcie.link.gen.max": MAX_PCIE_GENERATION,
    "pcie.link.width.max": 32,
}
SMI_COMMAND = f"nvidia-smi --query-gpu=name,{','.join(SMI_FIGURES)},mig.mode.current --format=csv"
SINFO_FORMAT = "%N|%c|%m|%G|%P"
SINFO_COMMAND = f'sinfo -N -o "{SINFO_FORMAT}"'
COMMANDS = f"`{SMI_COMMAND}`, `{SINFO_COMMAND}`"
TIMEOUT_S = 60
# Of one source; a file of another format can have one in every line.
MAX_PROBLEMS = 20
# Kinds of nodes named among the notes.
MAX_LEFT_OUT = 8

# Colours; pages that show a terminal's output drop the escape character before them.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\[\d[\d;]*m")
_MIG = re.compile(r"\bmig\b|\bshard\b|\d+g\.\d+gb", re.IGNORECASE)
# Slurm marks the least of several with a plus.
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(?: ?MiB|\+)?", re.ASCII)
# What stands for a figure: nothing, or why there is none, such as `[Not Supported]`.
_UNKNOWN = re.compile(r"\[.*\]|N/A|", re.IGNORECASE)
_GRES_GPU = re.compile(r"gpu(?::([^:,()=]+))?:(\d{1,5})(?:\([^)]*\))?", re.ASCII)
_MEMTOTAL = re.compile(r"^MemTotal:\s+([1-9][0-9]*)\b", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The PCIe slot of a GPU, at its best."""

    generation: int
    lanes: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Report of one source about a node; None and empty: not reported."""

    where: str
    gpu: str = ""  # as the tool spells it
    num_gpus: int | None = None
    memory_mib: float | None = None
    slot: Slot | None = None
    host_memory_mib: float | None = None
    num_nodes: int | None = None
    partitions: tuple[str, ...] = ()  # of Slurm, that hold such nodes
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
    notes: tuple[str, ...] = ()  # nodes that were left out


Source = Observation | SlurmNodes


@dataclass(kw_only=True)
class _Table:
    """Rows of a table by the numbers of their lines, and what is wrong with them."""

    where: str
    rows: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, key: str, message: str) -> None:
        """Note one problem."""
        self.problems.append(Problem(where=self.where, key=key, message=message))

    def figure(self, number: int, row: Mapping[str, str], column: str, most: int) -> float:
        """Return a figure, 0 where it is not told."""
        text = row.get(column, "")
        if _UNKNOWN.fullmatch(text):
            return 0.0
        match = _NUMBER.fullmatch(text)
        if match and float(match[1]) <= most:
            return float(match[1])
        message = f"must be a number up to {most:,}; given {brief(text)}"
        self.add(f"line {number}: {column}", message)
        return 0.0

    def stop(self) -> None:
        """Raise InputError if there is any problem; of very many the first ones, and how many."""
        found = list(dict.fromkeys(self.problems))
        if len(found) > MAX_PROBLEMS:
            more = f"{len(found) - MAX_PROBLEMS:,} more problems of this kind and others"
            found[MAX_PROBLEMS:] = [Problem(where=self.where, key="file", message=more)]
        if found:
            raise InputError(found)


def shortened(notes: Sequence[str]) -> list[str]:
    """Return notes on nodes that are left out, of very many the first ones, and how many."""
    more = len(notes) - MAX_LEFT_OUT
    rest = [f"left out: {more:,} more kinds of nodes"] if more > 0 else []
    return [*notes[:MAX_LEFT_OUT], *rest]


def ask_host(meminfo: Path = Path("/proc/meminfo")) -> list[Source]:
    """Return what nvidia-smi, sinfo and /proc/meminfo tell; raises InputError without any GPU."""
    sources: list[Source] = []
    problems = Problems()
    tools = {"nvidia-smi": SMI_COMMAND.split(), "sinfo": ["sinfo", "-N", "-o", SINFO_FORMAT]}
    missing = [name for name in tools if shutil.which(name) is None]
    for name, command in tools.items():
        if name not in missing and (found := problems.read(partial(_asked, command))):
            sources.append(found)
    if not sources:
        absent = f"{' and '.join(missing)} not on PATH; " if missing else ""
        message = (
            f"no accelerator found: {absent}run it on a node with GPUs, or give what was printed "
            f"there by --from FILE: {COMMANDS}"
        )
        problems.add("--detect", message)
    problems.finish()
    # A login node without GPUs tells nothing of the memory of the others.
    if any(isinstance(source, Observation) for source in sources):
        text = meminfo.read_text(encoding="utf-8", errors="replace") if is_file(meminfo) else ""
        found_kib = _MEMTOTAL.search(text)
        if found_kib:
            memory_mib = int(found_kib[1]) / 1024
            sources.append(Observation(where=str(meminfo), host_memory_mib=memory_mib))
    return sources


def _asked(command: Sequence[str]) -> Source:
    """What a tool tells; its failure is a problem with the last line it printed."""
    where = " ".join(word.split("=")[0] for word in command[:2])
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
    return parse(clean(done.stdout, where), where)


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
    filled = [line.strip() for line in lines if line.strip()]
    if not filled:
        raise InputError.single(where, "file", f"is empty; known are {COMMANDS}")
    for line in filled[:3]:
        if line.startswith(
            ("NVIDIA-SMI has failed", "No devices were found", "Failed to initialize NVML")
        ):
            raise InputError.single(where, "line 1", f"nvidia-smi found no GPU: {line!r}")
    for start, line in enumerate(lines):
        for delimiter, needed, command, read in _TOOLS:
            # units stand in brackets behind the name of a column
            header = [cell.split("[")[0].strip() for cell in line.split(delimiter)]
            if not needed & set(header):
                continue
            if missing := ", ".join(sorted(needed - set(header))):
                message = f"has no column {missing}; run `{command}`"
                raise InputError.single(where, f"line {start + 1}", message)
            return read(_table(lines, start, header, delimiter, where))
    message = f"written by no known tool; known are {COMMANDS} (keep the headers)"
    if filled[0].startswith(("<", "GPU0")):
        message = f"topologies of NCCL and nvidia-smi are not covered; known are {COMMANDS}"
    raise InputError.single(where, "line 1", message)


def _table(
    lines: Sequence[str], start: int, header: Sequence[str], delimiter: str, where: str
) -> _Table:
    """The rows below a header."""
    table = _Table(where=where)
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        cells = [cell.strip() for cell in line.split(delimiter)]
        if len(cells) == len(header):
            table.rows.append((number, dict(zip(header, cells, strict=True))))
        elif line.strip():
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            table.add(f"line {number}", message)
    return table


def _of_smi(table: _Table) -> Observation:
    """One row per GPU of a host; the smallest memory and the slowest slot count."""
    usable_mib, slots = [], []
    for number, row in table.rows:
        name = row["name"]
        if _MIG.search(name) or row.get("mig.mode.current", "").lower() == "enabled":
            message = "is cut into MIG instances, which plans do not use; disable MIG"
            table.add(f"line {number}: name", f"{brief(name)} {message}")
        elif _UNKNOWN.fullmatch(name):
            table.add(f"line {number}: name", f"is {brief(name)}; a GPU's name is needed")
        total, reserved, generation, lanes = (
            table.figure(number, row, column, most) for column, most in SMI_FIGURES.items()
        )
        usable_mib.append(total - reserved)
        slots.append(Slot(generation=int(generation), lanes=int(lanes)))
    names = sorted({row["name"] for _, row in table.rows})
    if len(table.rows) > MAX_GPUS_PER_NODE:
        message = f"lists {len(table.rows):,} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node"
        table.add("file", message)
    elif not table.problems and not names:
        table.add("file", f"lists no GPU; run `{SMI_COMMAND}` on a node that has some")
    elif not table.problems and len(names) > 1:
        kinds = ", ".join(map(brief, names))
        message = f"one host with several kinds of GPU ({kinds}); give the rows of one kind"
        table.add("name", message)
    table.stop()
    told_mib = [size for size in usable_mib if size > 0]
    # Each generation doubles the rate of a lane; 0 is how virtual machines say nothing.
    narrowest = min(slots, key=lambda slot: 2**slot.generation * slot.lanes)
    return Observation(
        where=table.where,
        gpu=names[0],
        num_gpus=len(slots),
        memory_mib=min(told_mib, default=None),
        slot=narrowest if all(slot.generation and slot.lanes for slot in slots) else None,
        notes=() if told_mib else ("memory.total is not told",),
    )


def _of_sinfo(table: _Table) -> SlurmNodes:
    """One row per node and partition; nodes cut into parts or of several kinds are left out."""
    memory_mib: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    partitions: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    left_out: dict[str, str] = {}
    for number, row in table.rows:
        node, gres = row["NODELIST"], row["GRES"]
        if "[" in node or not node:
            message = f"must be one node a row; given {brief(node)}, run sinfo with -N"
            table.add(f"line {number}: NODELIST", message)
        gpus = _gpus(gres, number, table)
        if any(map(_MIG.search, gpus)):
            left_out[node] = f"parts of GPUs (MIG): {brief(gres)}"
        elif len(gpus) > 1:
            left_out[node] = f"several kinds of GPU: {brief(gres)}"
        for kind in gpus.items() if node not in left_out else ():
            size_mib = table.figure(number, row, "MEMORY", 10**9)
            memory_mib[kind][node] = size_mib
            partitions[kind].append(row.get("PARTITION", "").rstrip("*"))
    reasons = Counter(left_out.values()).most_common()
    notes = shortened(
        [f"left out: {n} {'node' if n == 1 else 'nodes'} with {why}" for why, n in reasons]
    )
    num_nodes = sum(map(len, memory_mib.values()))
    if not num_nodes and not table.problems:
        none = "no node has GPUs that plans use" if notes else "no node has GPUs"
        table.add("GRES", "; ".join((none, *notes, f"{len(table.rows)} rows read")))
    if num_nodes > MAX_GPUS:
        table.add("file", f"lists {num_nodes:,} nodes, at most {MAX_GPUS:,} are read")
    table.stop()
    groups = [
        Observation(
            where=table.where,
            gpu=gpu,
            num_gpus=count,
            num_nodes=len(nodes),
            host_memory_mib=min(filter(None, nodes.values()), default=None),
            partitions=tuple(dict.fromkeys(filter(None, partitions[gpu, count]))),
        )
        for (gpu, count), nodes in memory_mib.items()
    ]
    groups.sort(key=lambda group: -(group.num_gpus or 0) * (group.num_nodes or 0))
    return SlurmNodes(where=table.where, groups=tuple(groups), notes=tuple(notes))


def _gpus(gres: str, number: int, table: _Table) -> dict[str, int]:
    """The kinds and counts of a node's GPUs in resources such as ``gpu:h100:8(S:0-1)``."""
    key = f"line {number}: GRES"
    found: Counter[str] = Counter()
    # commas within parentheses belong to an entry
    for entry in (part.strip() for part in re.split(r",(?![^(]*\))", gres)):
        if entry.split(":")[0] != "gpu":
            continue
        match = _GRES_GPU.fullmatch(entry)
        if match is None:
            table.add(key, f"must be gpu:KIND:COUNT; given {brief(gres)}")
            return {}
        found[match[1] or ""] += int(match[2])
    if found.total() > MAX_GPUS_PER_NODE:
        table.add(key, f"{found.total()} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node")
        return {}
    return dict(+found)


# What parts the columns, which ones are needed, the command, and who reads its rows.
_TOOLS: tuple[tuple[str, set[str], str, Callable[[_Table], Source]], ...] = (
    (",", {"name"}, SMI_COMMAND, _of_smi),
    ("|", {"NODELIST", "GRES"}, SINFO_COMMAND, _of_sinfo),
)
