"""Output of ``nvidia-smi`` and ``sinfo`` about machines, run on this one or read from files.

Which tool wrote a text is told by the header of its table; what stands above that is left out.
"""

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from planner.documents.file import is_file, read_text
from planner.errors import InputError
from planner.limits import MAX_LOG_BYTES, brief, one_line
from planner.notes import Problems

# Figures of `nvidia-smi --help-query-gpu`; any may be missing.
SMI_FIGURES = ("memory.total", "memory.reserved", "pcie.link.gen.max", "pcie.link.width.max")
SMI_COMMAND = f"nvidia-smi --query-gpu=name,{','.join(SMI_FIGURES)},mig.mode.current --format=csv"
SINFO_FORMAT = "%N|%m|%G"
COMMANDS = f'`{SMI_COMMAND}`, `sinfo -N -o "{SINFO_FORMAT}"`'
TIMEOUT_S = 60
# Shown of one source; a file of another format can have one in every line.
MAX_PROBLEMS = 20

_MIG = re.compile(r"\bmig\b|\bshard\b|\d+g\.\d+gb", re.IGNORECASE)
# Slurm marks the least of several with a plus.
_NUMBER = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(?: ?MiB|\+)?", re.ASCII)


class Slot(NamedTuple):
    """The PCIe slot of a GPU, at its best."""

    generation: int
    lanes: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Report of one source about equal nodes; None and empty: not reported."""

    where: str
    gpu: str = ""  # as the tool spells it
    num_gpus: int | None = None
    memory_mib: float | None = None
    slot: Slot | None = None
    host_memory_mib: float | None = None
    num_nodes: int | None = None  # by Slurm
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The source without its folder, fit for one line."""
        return one_line(Path(self.where).name or self.where)


# What one source tells: of Slurm a group per kind of nodes, that of most GPUs first.
Source = tuple[Observation, ...]
# Cells by column, by the number of the line.
Rows = Mapping[int, Mapping[str, str]]


def ask_host(meminfo: Path = Path("/proc/meminfo")) -> list[Source]:
    """Return what nvidia-smi, sinfo and /proc/meminfo tell; raises InputError without any GPU."""
    problems = Problems()
    tools = {"nvidia-smi": SMI_COMMAND.split(), "sinfo": ["sinfo", "-N", "-o", SINFO_FORMAT]}
    missing = [name for name in tools if shutil.which(name) is None]
    present = [tools[name] for name in tools if name not in missing]
    asked = (problems.read(partial(_asked, tool)) for tool in present)
    sources = [source for source in asked if source]
    if not sources:
        absent = f"{' and '.join(missing)} not on PATH; " if missing else ""
        message = (
            f"no accelerator found: {absent}run it on a node with GPUs, or give what was printed "
            f"there by --from FILE: {COMMANDS}"
        )
        problems.add("--detect", message)
    problems.finish()
    # A login node without GPUs tells nothing of the memory of the others.
    if "nvidia-smi" not in missing and is_file(meminfo):
        text = meminfo.read_text(encoding="utf-8", errors="replace")
        found_kib = re.search(r"^MemTotal:\s+([1-9][0-9]*)\b", text, re.MULTILINE)
        if found_kib:
            memory_mib = int(found_kib[1]) / 1024
            sources.append((Observation(where=str(meminfo), host_memory_mib=memory_mib),))
    return sources


def _asked(command: Sequence[str]) -> Source:
    """Run a tool and parse its output; raises InputError with its last line if it fails."""
    where = " ".join(word.split("=")[0] for word in command[:2])
    run = partial(subprocess.run, capture_output=True, encoding="utf-8", errors="replace")
    try:
        done = run(command, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        printed = f"{getattr(error, 'stdout', '') or ''}\n{getattr(error, 'stderr', '') or ''}"
        last = printed.strip().rpartition("\n")[2]
        why = getattr(error, "strerror", None) or str(error).rpartition("' ")[2]
        message = one_line(f"{why} {last}".strip())
        raise InputError.single(where, "--detect", message) from None
    return parse(clean(done.stdout, where), where)


def read_source(path: Path) -> Source:
    """Return what a file tells; raises InputError for a file that no known tool wrote."""
    where = str(path)
    return parse(clean(read_text(path, MAX_LOG_BYTES), where), where)


def clean(text: str, where: str) -> str:
    """Return the text without colours and foreign line ends; InputError where it is no text."""
    # pages that show a terminal's output drop the escape character before its colours
    text = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\[\d[\d;]*m", "", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    odd = next((char for char in text if not char.isprintable() and char not in "\n\t"), "")
    if odd:
        raise InputError.single(where, "file", f"has the control character {odd!r}; is it text?")
    return text


def parse(text: str, where: str) -> Source:
    """Return what a text tells, by the table that it holds; raises InputError where it has none."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        for delimiter, needed, read in _TOOLS:
            # units stand in brackets behind the name of a column
            header = [cell.split("[")[0].strip() for cell in line.split(delimiter)]
            if needed <= set(header):
                problems = Problems(where)
                rows = dict(_rows(lines, start, header, delimiter, problems))
                found = tuple(read(rows, problems))
                del problems.found[MAX_PROBLEMS:]
                problems.finish()
                return found
    message = f"no table of a known tool; known are {COMMANDS} (keep the headers)"
    raise InputError.single(where, "file", message)


def _rows(
    lines: Sequence[str], start: int, header: Sequence[str], delimiter: str, problems: Problems
) -> Iterator[tuple[int, dict[str, str]]]:
    """Number and cells of the lines below a header."""
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        cells = [cell.strip() for cell in line.split(delimiter)]
        if len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))
        elif line.strip():
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)


def _figure(row: Mapping[str, str], column: str, number: int, problems: Problems) -> float:
    """A figure, 0 where it is not told."""
    text = row.get(column, "")
    match = _NUMBER.fullmatch(text)
    # What stands for a figure: nothing, or why there is none, such as `[Not Supported]`.
    if match is None and not re.fullmatch(r"\[.*\]|N/A|", text, re.IGNORECASE):
        problems.add(f"line {number}: {column}", f"must be a number; given {brief(text)}")
    return float(match[1]) if match else 0.0


def _of_smi(rows: Rows, problems: Problems) -> Iterator[Observation]:
    """One row per GPU of a host; the smallest memory and the slowest slot count."""
    usable_mib, slots = [], []
    for number, row in rows.items():
        name = row["name"]
        if _MIG.search(name) or row.get("mig.mode.current", "").lower() == "enabled":
            message = "is cut into MIG instances, which plans do not use; disable MIG"
            problems.add(f"line {number}: name", f"{brief(name)} {message}")
        total, reserved, generation, lanes = (
            _figure(row, column, number, problems) for column in SMI_FIGURES
        )
        usable_mib.append(total - reserved)
        slots.append(Slot(int(generation), int(lanes)))
    names = sorted({row["name"] for row in rows.values()})
    if problems.found:
        return
    if not names:
        problems.add("file", f"lists no GPU; run `{SMI_COMMAND}` on a node that has some")
        return
    if len(names) > 1:
        kinds = ", ".join(map(brief, names))
        message = f"one host with several kinds of GPU ({kinds}); give the rows of one kind"
        problems.add("name", message)
    told_mib = [size for size in usable_mib if size > 0]
    # Each generation doubles the rate of a lane; 0 is how virtual machines say nothing.
    narrowest = min(slots, key=lambda slot: 2**slot.generation * slot.lanes)
    yield Observation(
        where=problems.where,
        gpu=names[0],
        num_gpus=len(slots),
        memory_mib=min(told_mib, default=None),
        slot=narrowest if all(map(all, slots)) else None,
        notes=() if told_mib else ("memory.total is not told",),
    )


def _of_sinfo(rows: Rows, problems: Problems) -> Iterator[Observation]:
    """A row per node (and partition); nodes cut into parts or of several kinds are left out."""
    memory_mib: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    left_out: dict[str, str] = {}
    for number, row in rows.items():
        node, gres = row["NODELIST"], row["GRES"]
        if "[" in node or not node:
            message = f"must be one node a row; given {brief(node)}, run sinfo with -N"
            problems.add(f"line {number}: NODELIST", message)
        gpus = _gpus(gres, f"line {number}: GRES", problems)
        if any(map(_MIG.search, gpus)):
            left_out[node] = f"parts of GPUs (MIG): {brief(gres)}"
        elif len(gpus) > 1:
            left_out[node] = f"several kinds of GPU: {brief(gres)}"
        for kind in gpus.items() if node not in left_out else ():
            memory_mib[kind][node] = _figure(row, "MEMORY", number, problems)
    reasons = Counter(left_out.values()).most_common()
    notes = [f"left out: {n} {'node' if n == 1 else 'nodes'} with {why}" for why, n in reasons]
    if not memory_mib and not problems.found:
        none = "no node has GPUs that plans use" if notes else "no node has GPUs"
        problems.add("GRES", "; ".join((none, *notes, f"{len(rows)} rows read")))
    most_first = sorted(memory_mib.items(), key=lambda each: -each[0][1] * len(each[1]))
    for kind, nodes in most_first:
        gpu, count = kind
        yield Observation(
            where=problems.where,
            gpu=gpu,
            num_gpus=count,
            num_nodes=len(nodes),
            host_memory_mib=min(filter(None, nodes.values()), default=None),
            notes=tuple(notes),
        )


def _gpus(gres: str, key: str, problems: Problems) -> dict[str, int]:
    """The kinds and counts of a node's GPUs in resources such as ``gpu:h100:8(S:0-1)``."""
    found: Counter[str] = Counter()
    # commas within parentheses belong to an entry
    for entry in (part.strip() for part in re.split(r",(?![^(]*\))", gres)):
        if entry.split(":")[0] != "gpu":
            continue
        match = re.fullmatch(r"gpu(?::([^:,()=]+))?:([0-9]{1,5})(?:\([^)]*\))?", entry)
        if match is None:
            problems.add(key, f"must be gpu:KIND:COUNT; given {brief(gres)}")
            return {}
        found[match[1] or ""] += int(match[2])
    return dict(+found)


# What parts the columns, which ones are needed, and who reads their rows.
_TOOLS: tuple[tuple[str, set[str], Callable[[Rows, Problems], Iterator[Observation]]], ...] = (
    (",", {"name"}, _of_smi),
    ("|", {"NODELIST", "GRES"}, _of_sinfo),
)
