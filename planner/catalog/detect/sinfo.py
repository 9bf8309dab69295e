"""``sinfo -N -o "%N|%c|%m|%G|%P"``: the nodes of a Slurm cluster.

One row per node and partition, fields apart by ``|``, named by the header; memory in MB of
1024 KB, GPUs as generic resources such as ``gpu:h100:8(S:0-1)``.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from planner.catalog.detect.observation import MAX_GPUS, MAX_NODES, Problems, shown

COMMAND = 'sinfo -N -o "%N|%c|%m|%G|%P"'
ARGUMENTS = ("sinfo", "-N", "-o", "%N|%c|%m|%G|%P")
_NEEDED = ("NODELIST", "GRES")
_GPU = re.compile(r"gpu(?::([^:,()=]+))?:(\d{1,5})(?:\([^)]*\))?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,12})\+?", re.ASCII)
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


def parse_sinfo(text: str, where: str) -> SlurmNodes:
    """Return the nodes with GPUs by kind; raises InputError with every problem of the table."""
    problems = Problems(where)
    lines = [line for line in text.splitlines() if line.strip()]
    header = [cell.strip() for cell in lines[0].split("|")] if lines else []
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        problems.add("line 1", f"has no column {', '.join(missing)}; run `{COMMAND}`")
        problems.stop()
    kinds: dict[str, tuple[str, int]] = {}
    memory: dict[str, float] = {}
    partitions: defaultdict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(lines[1:], start=2):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != len(header):
            message = f"has {len(cells)} of {len(header)} columns; is the file cut off?"
            problems.add(f"line {number}", message)
            continue
        row = dict(zip(header, cells, strict=True))
        node, found = row["NODELIST"], _gpus(row["GRES"], number, problems)
        if "[" in node or not node:
            message = f"must be one node a row; given {shown(node)}, run sinfo with -N"
            problems.add(f"line {number}: NODELIST", message)
        if found:
            kinds[node] = found
            _add_memory(row.get("MEMORY", ""), node, memory, number, problems)
            partitions[node].append(row.get("PARTITION", "").rstrip("*"))
    if not kinds and not problems.found:
        problems.add("GRES", f"no node has GPUs; {len(lines) - 1} rows read")
    if len(kinds) > MAX_NODES:
        problems.add("file", f"lists {len(kinds):,} nodes, at most {MAX_NODES:,} are read")
    problems.stop()
    return SlurmNodes(where=where, groups=_groups(kinds, memory, partitions))


def _gpus(gres: str, number: int, problems: Problems) -> tuple[str, int] | None:
    """The kind and count of a node's GPUs, None without any."""
    key = f"line {number}: GRES"
    entries = [part for part in _split(gres) if part == "gpu" or part.startswith("gpu:")]
    matches = [_GPU.fullmatch(part) for part in entries]
    if any(match is None for match in matches):
        problems.add(key, f"must be gpu:KIND:COUNT; given {shown(gres)}")
        return None
    found = [(match[1] or "", int(match[2])) for match in matches if match and int(match[2])]
    if len(found) > 1:
        problems.add(key, f"one node with several kinds of GPU; given {shown(gres)}")
        return None
    if not found:
        return None
    if _SLICE.search(found[0][0]):
        message = f"{shown(found[0][0])} is a part of a GPU (MIG), which plans do not use"
        problems.add(key, message)
        return None
    if found[0][1] > MAX_GPUS:
        problems.add(key, f"{found[0][1]} GPUs, at most {MAX_GPUS:,} are a node")
        return None
    return found[0]


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
        problems.add(f"line {number}: MEMORY", f"must be a number of MB; given {shown(text)}")
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
