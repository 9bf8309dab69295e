"""``sinfo -N -o "%N|%c|%m|%G|%P"``: the nodes of a Slurm cluster.

One row per node and partition, fields apart by ``|``, named by the header; memory in MB of
1024 KB, GPUs as generic resources such as ``gpu:h100:8(S:0-1)``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from planner.catalog.detect.observation import Problems
from planner.limits import MAX_GPUS, MAX_GPUS_PER_NODE, brief

COMMAND = 'sinfo -N -o "%N|%c|%m|%G|%P"'
ARGUMENTS = ("sinfo", "-N", "-o", "%N|%c|%m|%G|%P")
_NEEDED = ("NODELIST", "GRES")
_GPU = re.compile(r"gpu(?::([^:,()=]+))?:(\d{1,5})(?:\([^)]*\))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,12})\+?", re.ASCII)
_MOST_NOTES = 8
_SLICE = re.compile(r"\d+g\.\d+gb|\bmig\b|\bshard\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes with the same GPUs, whatever their partition."""

    gpu: str
    """As the site names it; empty where it does not."""
    gpus_per_node: int
    num_nodes: int
    memory_mib: float | None
    """Of the smallest node."""
    partitions: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        """All GPUs of the group."""
        return self.gpus_per_node * self.num_nodes

    def __str__(self) -> str:
        """Render as ``16 nodes of 8 x h100 (gpu, debug)``."""
        kind = self.gpu or "GPU"
        partitions = f" ({', '.join(self.partitions)})" if self.partitions else ""
        nodes = "node" if self.num_nodes == 1 else "nodes"
        return f"{self.num_nodes} {nodes} of {self.gpus_per_node} x {kind}{partitions}"


@dataclass(frozen=True, kw_only=True)
class SlurmNodes:
    """Groups of nodes with GPUs, the one with most GPUs first."""

    where: str
    groups: tuple[NodeGroup, ...]
    notes: tuple[str, ...] = ()
    """Nodes that were left out."""


def is_sinfo_header(line: str) -> bool:
    """Whether a line names columns, of those needed at least one."""
    cells = [cell.strip() for cell in line.split("|")]
    return len(cells) > 1 and any(name in cells for name in _NEEDED)


def parse_sinfo(text: str, where: str) -> SlurmNodes:
    """Return the nodes with GPUs by kind; raises InputError with every problem of the table.

    Nodes whose GPUs plans do not use, cut into parts or of several kinds, are left out.
    """
    problems = Problems(where)
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if is_sinfo_header(line)), 0)
    header = [cell.strip() for cell in lines[start].split("|")] if lines else []
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        problems.add("line 1", f"has no column {', '.join(missing)}; run `{COMMAND}`")
        problems.stop()
    kinds: dict[str, tuple[str, int]] = {}
    unused: dict[str, str] = {}
    memory: dict[str, float] = {}
    partitions: defaultdict[str, list[str]] = defaultdict(list)
    rows = [(n, line) for n, line in enumerate(lines, start=1) if n > start + 1 and line.strip()]
    for number, line in rows:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != len(header):
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)
            continue
        row = dict(zip(header, cells, strict=True))
        node, found = row["NODELIST"], _gpus(row["GRES"], number, problems)
        if "[" in node or not node:
            message = f"must be one node a row; given {brief(node)}, run sinfo with -N"
            problems.add(f"line {number}: NODELIST", message)
        if why := _unused(found):
            unused[node] = f"{why}: {brief(row['GRES'])}"
        elif found:
            kinds[node] = next(iter(found.items()))
            _add_memory(row.get("MEMORY", ""), node, memory, number, problems)
            partitions[node].append(row.get("PARTITION", "").rstrip("*"))
    notes = _notes(unused)
    if not kinds and not problems.found:
        none = "no node has GPUs that plans use" if notes else "no node has GPUs"
        problems.add("GRES", "; ".join((none, *notes, f"{len(rows)} rows read")))
    if len(kinds) > MAX_GPUS:
        problems.add("file", f"lists {len(kinds):,} nodes, at most {MAX_GPUS:,} are read")
    problems.stop()
    return SlurmNodes(where=where, groups=_groups(kinds, memory, partitions), notes=notes)


def _gpus(gres: str, number: int, problems: Problems) -> dict[str, int]:
    """The kinds and counts of a node's GPUs."""
    key = f"line {number}: GRES"
    entries = [part for part in _split(gres) if part == "gpu" or part.startswith("gpu:")]
    found: Counter[str] = Counter()
    for part in entries:
        match = _GPU.fullmatch(part)
        if match is None:
            problems.add(key, f"must be gpu:KIND:COUNT; given {brief(gres)}")
            return {}
        found[match[1] or ""] += int(match[2])
    if found.total() > MAX_GPUS_PER_NODE:
        problems.add(key, f"{found.total()} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node")
        return {}
    return dict(+found)


def _unused(found: Mapping[str, int]) -> str:
    """Why plans do not use a node's GPUs; empty where they do."""
    if any(_SLICE.search(kind) for kind in found):
        return "parts of GPUs (MIG)"
    return "several kinds of GPU" if len(found) > 1 else ""


def _notes(unused: Mapping[str, str]) -> tuple[str, ...]:
    """Nodes that were left out, by their reason and resources."""
    counts = Counter(unused.values()).most_common()
    notes = [f"left out: {n} {'node' if n == 1 else 'nodes'} with {why}" for why, n in counts]
    more = f"left out: {len(notes) - _MOST_NOTES} more kinds of nodes that plans do not use"
    return (*notes[:_MOST_NOTES], *([more] if len(notes) > _MOST_NOTES else []))


def _split(gres: str) -> list[str]:
    """Entries apart by commas; those inside parentheses belong to an entry."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", gres)]


def _add_memory(
    text: str, node: str, memory: dict[str, float], number: int, problems: Problems
) -> None:
    if text in ("", "N/A", "0"):
        return
    match = _MEMORY.fullmatch(text)
    if match is None:
        problems.add(f"line {number}: MEMORY", f"must be a number of MB; given {brief(text)}")
        return
    memory[node] = float(match[1])


def _groups(
    kinds: dict[str, tuple[str, int]],
    memory: dict[str, float],
    partitions: dict[str, list[str]],
) -> tuple[NodeGroup, ...]:
    members: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for node, kind in kinds.items():
        members[kind].append(node)
    groups = []
    for (gpu, count), nodes in members.items():
        known = [memory[node] for node in nodes if node in memory]
        names = dict.fromkeys(name for node in nodes for name in partitions[node] if name)
        group = NodeGroup(
            gpu=gpu,
            gpus_per_node=count,
            num_nodes=len(nodes),
            memory_mib=min(known) if known else None,
            partitions=tuple(names),
        )
        groups.append(group)
    return tuple(sorted(groups, key=lambda group: -group.num_gpus))
