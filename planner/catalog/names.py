"""Names that are not in the catalog: the error that offers the nearest known ones."""

from collections.abc import Iterable

from planner.errors import InputError
from planner.spelling import did_you_mean, nearest

__all__ = ["did_you_mean", "nearest", "unknown_name"]

EXAMPLE_NODE, EXAMPLE_ACCELERATOR, EXAMPLE_MACHINE = "dgx-h100", "h100", "frontier"
"""What help and messages name, and tables of the documentation are made for."""
PLAIN_FABRIC = "eth-25g"
"""What a description of a node names where its network plays no part, or is stated apart."""


def unknown_name(
    kind: str,
    name: str,
    known: Iterable[str],
    where: str,
    key: str,
    listing: str = "planner hardware",
) -> InputError:
    """Return the error for a name that is not in the catalog; ``listing`` prints those that are."""
    names = list(known)
    hint = did_you_mean(name, names) or f"{len(names)} are known; `{listing}` lists them"
    return InputError.single(where, key, f"unknown {kind} {name!r}; {hint}")
