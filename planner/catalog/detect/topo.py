"""``nvidia-smi topo -m``: how the GPUs of one host are joined.

A matrix of GPUs (``GPU0`` ...) and NICs; ``NV4`` is a bond of four NVLinks, ``PIX``, ``PXB``,
``PHB``, ``NODE`` and ``SYS`` are paths over PCIe. Rates are not told.
"""

import re

from planner.catalog.detect.observation import Links, Observation, Problems
from planner.limits import MAX_GPUS_PER_NODE, brief

COMMAND = "nvidia-smi topo -m"
_GPU = re.compile(r"GPU\d{1,4}", re.ASCII)
_NIC = re.compile(
    r"NIC\d{1,4}|mlx\w+|hns\w+|bnxt\w+|irdma\w+|ib\w+|rdma\w+|efa\w+|hfi\w+|cxi\w+", re.ASCII
)
_CELL = re.compile(r"NV(\d{1,2})|X|PIX|PXB|PHB|NODE|SYS|SOC|PSB|C2C|NS|N/A", re.ASCII)
_MOST_LINKS = 72


def is_topo_header(line: str) -> bool:
    """Whether a line is the header of the matrix, also where its indent was lost in copying."""
    words = line.split()
    if not words or _GPU.fullmatch(words[0]) is None:
        return False
    return line[:1].isspace() or any(_GPU.fullmatch(word) for word in words[1:])


def parse_topo(text: str, where: str) -> Observation:
    """Return the links between the GPUs; raises InputError with every problem of the matrix."""
    problems = Problems(where)
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if is_topo_header(line)), None)
    if start is None:
        problems.add("line 1", f"has no header with GPU0; run `{COMMAND}`")
        problems.stop()
    columns = lines[start or 0].split()
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    nics = [name for name in columns if _NIC.fullmatch(name)]
    if len(set(gpus)) < len(gpus):
        problems.add("line 1", "names a GPU twice")
        problems.stop()
    if len(gpus) > MAX_GPUS_PER_NODE:
        problems.add("file", f"has {len(gpus):,} GPUs, at most {MAX_GPUS_PER_NODE:,} are a node")
        problems.stop()
    rows: dict[str, list[int]] = {}
    known = set(gpus)
    for number, line in enumerate(lines[(start or 0) + 1 :], start=(start or 0) + 2):
        name, *cells = line.split() or [""]
        if name in known and name not in rows:
            rows[name] = _counts(cells[: len(gpus)], len(gpus), f"line {number}: {name}", problems)
    missing = [name for name in gpus if name not in rows]
    if missing:
        problems.add("file", f"has no row of {', '.join(missing[:8])}; is it cut off?")
    problems.stop()
    pairs = tuple(tuple(rows[name]) for name in gpus)
    for i, row in enumerate(pairs):
        for j in range(i):
            if row[j] != pairs[j][i]:
                message = f"{gpus[i]} has {row[j]} links to {gpus[j]}, which has {pairs[j][i]} back"
                problems.add(gpus[i], message)
    problems.stop()
    return Observation(
        where=where, num_gpus=len(gpus), links=Links(pairs=pairs), notes=_nic_notes(len(nics))
    )


def _counts(cells: list[str], num_gpus: int, key: str, problems: Problems) -> list[int]:
    """NVLinks of one GPU to each other one."""
    if len(cells) < num_gpus:
        problems.add(key, f"has {len(cells)} of {num_gpus} columns; is the file cut off?")
        return []
    counts = []
    for cell in cells:
        match = _CELL.fullmatch(cell)
        if match is None or int(match[1] or 0) > _MOST_LINKS:
            message = f"unknown path; given {brief(cell)}, allowed NV#, PIX, PXB, PHB, NODE, SYS, X"
            problems.add(key, message)
            return []
        counts.append(int(match[1] or 0))
    return counts


def _nic_notes(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    ports = "network port" if count == 1 else "network ports"
    return (f"{count} {ports}, rates not told (an NCCL topology file tells them)",)
