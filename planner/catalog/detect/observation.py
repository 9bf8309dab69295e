"""What one tool's output tells about one node, in the tool's units."""

from dataclasses import dataclass
from pathlib import Path

from planner.errors import InputError, Problem
from planner.limits import one_line

MAX_PROBLEMS = 20
"""Of one source; a file of another format can have one in every line."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """NVLinks of a node's GPUs.

    ``pairs[i][j]``: links between two GPUs, or the width of their path through a switch.
    """

    pairs: tuple[tuple[int, ...], ...]
    to_switch: int | None = None
    """Links of one GPU to switches; None: the tool does not tell switches from direct links."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The PCIe slot of a GPU, at its best."""

    generation: int
    lanes: int


@dataclass(frozen=True, kw_only=True)
class Nics:
    """Network ports of one rate; ``kind`` is infiniband, ethernet, efa, slingshot or empty."""

    count: int
    gbit_per_s: float
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one source tells about a node; None and empty: not told."""

    where: str
    gpu: str = ""
    """As the tool spells it, or a PCI id such as 10de:2330."""
    num_gpus: int | None = None
    memory_mib: float | None = None
    links: Links | None = None
    slot: Slot | None = None
    nics: Nics | None = None
    host_memory_mib: float | None = None
    num_nodes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The source without its folder, fit for one line."""
        return one_line(Path(self.where).name or self.where)


class Problems:
    """Problems of one source, raised together."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[Problem] = []

    def add(self, key: str, message: str) -> None:
        """Remember one problem."""
        self.found.append(Problem(where=self.where, key=key, message=message))

    def stop(self) -> None:
        """Raise InputError if there is any problem; of very many the first ones, and how many."""
        found = list(dict.fromkeys(self.found))
        if len(found) > MAX_PROBLEMS:
            more = f"{len(found) - MAX_PROBLEMS:,} more problems of this kind and others"
            found[MAX_PROBLEMS:] = [Problem(where=self.where, key="file", message=more)]
        if found:
            raise InputError(found)
