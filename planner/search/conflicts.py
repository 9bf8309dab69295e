"""Rules that leave nothing of a narrowed space, as few of them as say so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.search.space.narrow import Narrowing, minimal_conflict
from planner.search.space.rule import Rule
from planner.search.space.space import Enumeration

Row = dict[str, int]


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
    names = minimal_conflict(
        tuple(named), lambda kept: space.row([named[name] for name in sorted(kept)]) is not None
    )
    rules = tuple(named[name] for name in names)
    said = {}
    for rule in rules:
        # Since none can be spared, some layout keeps the others.
        row = space.row([other for other in rules if other != rule])
        assert row is not None
        said[rule.name] = space.violations(rule, row)
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
