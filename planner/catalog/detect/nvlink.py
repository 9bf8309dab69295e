"""From links between pairs of GPUs to groups, their shape and their rate."""

from dataclasses import dataclass

from planner.catalog.detect.observation import Links
from planner.catalog.hardware_file import AcceleratorFile
from planner.spec.cluster import Topology


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Groups of GPUs that NVLink joins, all of one size and shape."""

    group: int
    """GPUs of a group; 1: no NVLink."""
    links: int
    """Of one GPU."""
    topology: Topology


def link_gb_per_s(accelerator: AcceleratorFile) -> float | None:
    """Return the rate of one NVLink per direction, None for accelerators without."""
    whole, links = accelerator.scale_up_gb_per_s_per_direction, accelerator.nvlinks
    return whole.value / links.value if whole and links else None


def most_links(accelerator: AcceleratorFile) -> int:
    """Return how many NVLinks one accelerator has."""
    return accelerator.nvlinks.value if accelerator.nvlinks else 0


def joined(links: Links, most: int) -> Joined | None:
    """Return how GPUs with at most so many links are joined; None: no shape this program knows.

    More links in a row than a GPU has are paths through a switch.
    """
    pairs = links.pairs
    size = len(pairs)
    rows = [sum(row) for row in pairs]
    if links.to_switch:
        return Joined(group=size, links=links.to_switch, topology="switch")
    if not any(rows):
        return Joined(group=1, links=0, topology="switch")
    if max(rows) > most and links.to_switch is None:
        widths = {pairs[i][j] for i in range(size) for j in range(size) if i != j}
        whole = len(widths) == 1
        return Joined(group=size, links=widths.pop(), topology="switch") if whole else None
    groups = _groups(pairs)
    group = len(groups[0])
    shapes = {_shape(pairs, members) for members in groups}
    if len({len(members) for members in groups}) > 1 or len(set(rows)) > 1 or len(shapes) > 1:
        return None
    shape = shapes.pop()
    return Joined(group=group, links=rows[0], topology=shape) if shape else None


def _groups(pairs: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """GPUs that reach each other over links."""
    left, groups = set(range(len(pairs))), []
    while left:
        reached, edge = set(), {min(left)}
        while edge:
            reached |= edge
            edge = {j for i in edge for j, count in enumerate(pairs[i]) if count} - reached
        groups.append(sorted(reached))
        left -= reached
    return groups


def _shape(pairs: tuple[tuple[int, ...], ...], members: list[int]) -> Topology | None:
    degrees = {sum(1 for j in members if pairs[i][j]) for i in members}
    if degrees == {len(members) - 1}:
        return "fully_connected"
    if degrees == {2}:
        return "ring"
    return "hybrid_cube_mesh" if degrees == {4} and len(members) == 8 else None
