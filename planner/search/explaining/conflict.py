"""Which limits cannot be kept together: a minimal set of them.

Every layout violates some of the limits. Layouts are far too many to list, but what matters of one
is only which limits it violates, its pattern, and patterns are few. They are found on demand:

- Of the patterns known, limits suffice for a conflict where every pattern violates one of them.
  Dropping one after the other, later ones first, makes them a minimal core.
- A probe of the whole space then looks for a layout that keeps the core. Where there is one, its
  pattern is new, and the next round starts. Where there is none, the core is a conflict of the
  whole space; and it is minimal, since without any one limit a known layout keeps all others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Layout = TypeVar("Layout")
Pattern = frozenset[str]
"""The limits that a layout violates."""


@dataclass(frozen=True, kw_only=True)
class Witness(Generic[Layout]):
    """A layout, and which limits it violates."""

    layout: Layout
    violated: Pattern


@dataclass(frozen=True, kw_only=True)
class Conflict(Generic[Layout]):
    """Limits that no layout keeps together."""

    limits: tuple[str, ...]
    """In the order in which they were given."""
    without: Mapping[str, Layout]
    """For each of them a layout that keeps all the others."""


Probe = Callable[[frozenset[str]], Witness[Layout] | None]
"""Some layout that keeps the limits named; None where none does."""


def minimal_conflict(limits: Sequence[str], probe: Probe[Layout]) -> Conflict[Layout] | None:
    """A minimal set of limits that no layout keeps; None where some layout keeps them all.

    Earlier limits are preferred: later ones are in it only where earlier ones alone are in no
    conflict. Without limits where there is no layout at all.
    """
    known: list[Witness[Layout]] = []
    while True:
        core = minimal_core(limits, [witness.violated for witness in known])
        if core is None:
            return None
        found = probe(frozenset(core))
        if found is None:
            return Conflict(limits=core, without=_without(core, known))
        if not found.violated.isdisjoint(core):
            raise ValueError(f"the probe broke {sorted(found.violated & set(core))}")
        known.append(found)


def _without(core: Sequence[str], known: Iterable[Witness[Layout]]) -> dict[str, Layout]:
    """For each limit of the core a layout that violates no other one of it."""
    alone: dict[str, Layout] = {}
    for witness in known:
        broken = witness.violated & set(core)
        if len(broken) == 1:
            alone.setdefault(next(iter(broken)), witness.layout)
    return {limit: alone[limit] for limit in core}


def minimal_core(limits: Sequence[str], patterns: Sequence[Pattern]) -> tuple[str, ...] | None:
    """A minimal set of limits of which every pattern violates one; None where there is none.

    It lies among the first limits for which there is one.
    """
    for number in range(len(limits) + 1):
        if _suffice(limits[:number], patterns):
            return _shrunk(tuple(limits[:number]), patterns)
    return None


def _shrunk(core: tuple[str, ...], patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """The core less every limit it does without, later ones first."""
    for limit in reversed(core):
        rest = tuple(other for other in core if other != limit)
        if _suffice(rest, patterns):
            core = rest
    return core


def _suffice(limits: Sequence[str], patterns: Sequence[Pattern]) -> bool:
    """Every pattern violates one of them."""
    return all(not pattern.isdisjoint(limits) for pattern in patterns)
