"""Minimal set of limits, or of rules, that cannot be satisfied together.

Every layout violates some of the limits. Layouts are far too many to list, but what matters of one
is only which limits it violates, its pattern, and patterns are few. They are found on demand:

- Of the patterns known, limits suffice for a conflict where every pattern violates one of them.
  Dropping one after the other, later ones first, makes them a minimal core.
- A probe of the whole space then looks for a layout that keeps the core. Where there is one, its
  pattern is new, and the next round starts. Where there is none, the core is a conflict of the
  whole space; and it is minimal, since without any one limit a known layout keeps all others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import Rule
from planner.search.space.space import Enumeration

Row = dict[str, int]
Layout = TypeVar("Layout")
# The limits that a layout violates.
Pattern = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Witness(Generic[Layout]):
    """A layout, and which limits it violates."""

    layout: Layout
    violated: Pattern


@dataclass(frozen=True, kw_only=True)
class Conflict(Generic[Layout]):
    """Limits that no layout keeps together."""

    limits: tuple[str, ...]  # Limits in the order in which they were given
    without: Mapping[str, Layout]  # Layout that satisfies all the other limits, for each of them


def minimal_conflict(
    limits: Sequence[str], probe: Callable[[frozenset[str]], Witness[Layout] | None]
) -> Conflict[Layout] | None:
    """A minimal set of limits that no layout keeps; None where some layout keeps them all.

    ``probe`` gives some layout that keeps the limits named, None where none does. Earlier limits
    are preferred: later ones are in it only where earlier ones alone are in no conflict. Without
    limits where there is no layout at all.
    """
    known: list[Witness[Layout]] = []
    while True:
        core = minimal_core(limits, [witness.violated for witness in known])
        if core is None:
            return None
        found = probe(frozenset(core))
        if found is None:
            break
        if not found.violated.isdisjoint(core):
            raise ValueError(f"the probe broke {sorted(found.violated & set(core))}")
        known.append(found)
    # For each limit of the core a layout that violates no other one of it.
    alone: dict[str, Layout] = {}
    for witness in known:
        broken = witness.violated & set(core)
        if len(broken) == 1:
            alone.setdefault(next(iter(broken)), witness.layout)
    return Conflict(limits=core, without={limit: alone[limit] for limit in core})


def minimal_core(limits: Sequence[str], patterns: Sequence[Pattern]) -> tuple[str, ...] | None:
    """A minimal set of limits of which every pattern violates one; None where there is none.

    It lies among the first limits for which there is one.
    """
    firsts = (limits[:number] for number in range(len(limits) + 1))
    core = next((tuple(first) for first in firsts if _suffice(first, patterns)), None)
    for limit in reversed(core or ()):
        rest = tuple(other for other in core or () if other != limit)
        core = rest if _suffice(rest, patterns) else core
    return core


def _suffice(limits: Sequence[str], patterns: Sequence[Pattern]) -> bool:
    """Every pattern violates one of them."""
    return all(not pattern.isdisjoint(limits) for pattern in patterns)


@dataclass(frozen=True, kw_only=True)
class ConflictingRules:
    """Rules that leave nothing of a narrowed space."""

    rules: tuple[Rule, ...]  # Empty where the options leave nothing by themselves
    each_alone: bool  # Each of them leaves nothing; else only all together, and none can be spared
    violations: Mapping[str, tuple[str, ...]]
    """Violations of each rule by layouts that satisfy as much as possible."""


def conflicting_rules(context: Context, narrowing: Narrowing) -> ConflictingRules | None:
    """The rules that forbid every layout of a narrowed space; None where one is legal."""
    space = _Space(Enumeration(context=context, narrowing=narrowing))
    if space.row([*space.rules, *space.pruning]) is not None:
        return None
    alone = tuple(rule for rule in space.rules if space.row([rule]) is None)
    if alone and space.row([]) is not None:
        said = {rule.name: space.violations(rule, space.nearest(rule, alone)) for rule in alone}
        return ConflictingRules(rules=alone, each_alone=True, violations=said)
    named = {rule.name: rule for rule in (*space.rules, *space.pruning)}

    def probe(kept: frozenset[str]) -> Witness[Row] | None:
        row = space.row([named[name] for name in sorted(kept)])
        if row is None:
            return None
        return Witness(
            layout=row,
            violated=frozenset(name for name, rule in named.items() if not space.holds(rule, row)),
        )

    conflict = minimal_conflict(tuple(named), probe)
    assert conflict is not None
    rules = tuple(named[name] for name in conflict.limits)
    said = {name: space.violations(named[name], row) for name, row in conflict.without.items()}
    return ConflictingRules(rules=rules, each_alone=len(rules) == 1, violations=said)


class _Space:
    """Values of every dimension, the rules that may be in conflict, the options that hold."""

    def __init__(self, enumeration: Enumeration) -> None:
        self.context, self.values = enumeration.context, enumeration.values
        options, self.fixed = enumeration.narrowing.rules, enumeration.narrowing.values
        asked = [rule for rule in enumeration.rules if rule not in options]
        self.rules = [rule for rule in asked if not rule.only_prunes]
        self.pruning = [rule for rule in asked if rule.only_prunes]
        self.options = options

    def holds(self, rule: Rule, row: Mapping[str, int]) -> bool:
        """Return True if one complete row satisfies a rule."""
        columns = {name: np.array([value]) for name, value in row.items()}
        return bool(rule.is_legal(self.context, columns)[0])

    def nearest(self, rule: Rule, broken: Sequence[Rule]) -> Row:
        """A layout that breaks a rule which all break, and as few of the others as can be."""
        kept = [other for other in (*self.rules, *self.pruning) if other not in broken]
        row = self.row(kept) or self.row([other for other in broken if other != rule])
        row = row or self.row([])
        assert row is not None
        return row

    def violations(self, rule: Rule, row: Row) -> tuple[str, ...]:
        """Return how the layout violates the rule, and how it would with the other values given."""
        several = [name for name in rule.needs if len(self.fixed.get(name, ())) > 1]
        rows = [row]
        if len(several) == 1:
            rows = [{**row, several[0]: value} for value in self.values[several[0]]]
        broken = [one for one in rows if not self.holds(rule, one)]
        return tuple(dict.fromkeys(rule.words(self.context, one) for one in broken))

    def row(self, rules: Sequence[Rule]) -> Row | None:
        """Values of all dimensions that keep the options and these rules; None: there are none."""
        asked = [*self.options, *rules]
        needed = {name for rule in asked for name in rule.needs}
        names = [name for name in self.values if name in needed]
        if not all(len(values) for values in self.values.values()):
            return None
        # Depth first, so that of a large space only a part is looked at where a row is found.
        every = Narrowing(values={name: tuple(values) for name, values in self.values.items()})
        space = Enumeration(context=self.context, narrowing=every, part_rows=2**14)
        space.rules = asked
        rest = {name: values[0] for name, values in self.values.items() if name not in needed}
        for part in space.decided({}, names):
            if not names or len(part[names[0]]):
                return {**rest, **{name: int(column[0]) for name, column in part.items()}}
        return None
