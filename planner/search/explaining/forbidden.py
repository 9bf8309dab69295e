"""Which rules make a narrowed space empty: each that does so alone, else a minimal set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.cost.context import Context
from planner.search.explaining.conflict import Witness, minimal_conflict
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import Rule
from planner.search.space.space import Enumeration, take
from planner.units import Array

CHUNK_ROWS = 2**14
Row = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Forbidding:
    """Rules that leave nothing of a narrowed space."""

    rules: tuple[Rule, ...]
    """Empty where the options leave nothing by themselves."""
    each_alone: bool
    """Each of them leaves nothing; else only all together, and none can be spared."""
    violations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By rule, what layouts that keep as much as can be do against it."""


def forbidding(context: Context, narrowing: Narrowing) -> Forbidding | None:
    """The rules that forbid every layout of a narrowed space; None where one is legal."""
    space = _Space(Enumeration(context=context, narrowing=narrowing))
    if space.row([*space.rules, *space.pruning]) is not None:
        return None
    alone = tuple(rule for rule in space.rules if space.row([rule]) is None)
    if alone and space.row([]) is not None:
        said = {rule.name: space.violations(rule, space.nearest(rule, alone)) for rule in alone}
        return Forbidding(rules=alone, each_alone=True, violations=said)
    named = {rule.name: rule for rule in (*space.rules, *space.pruning)}

    def probe(kept: frozenset[str]) -> Witness[Row] | None:
        row = space.row([named[name] for name in sorted(kept)])
        if row is None:
            return None
        broken = frozenset(name for name, rule in named.items() if not space.holds(rule, row))
        return Witness(layout=row, violated=broken)

    conflict = minimal_conflict(tuple(named), probe)
    assert conflict is not None
    rules = tuple(named[name] for name in conflict.limits)
    said = {name: space.violations(named[name], row) for name, row in conflict.without.items()}
    return Forbidding(rules=rules, each_alone=len(rules) == 1, violations=said)


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
        """Whether one complete row keeps a rule."""
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
        """What the layout does against the rule, and what it would with the other values asked."""
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
        found = self._first({}, names, asked)
        if found is None:
            return None
        rest = {name: values[0] for name, values in self.values.items() if name not in needed}
        return {**rest, **found}

    def _first(
        self, columns: dict[str, Array], names: Sequence[str], rules: Sequence[Rule]
    ) -> Row | None:
        """Depth first, so that of a large space only a part is looked at where a row is found."""
        if not names:
            return {name: int(column[0]) for name, column in columns.items()}
        name, *left = names
        values = np.asarray(self.values[name], dtype=np.int64)
        num_rows = len(next(iter(columns.values()))) if columns else 1
        known = {*columns, name}
        ready = [rule for rule in rules if name in rule.needs and known.issuperset(rule.needs)]
        step = max(CHUNK_ROWS // len(values), 1)
        for start in range(0, num_rows, step):
            rows = np.arange(start, min(start + step, num_rows))
            part = {key: np.repeat(column[rows], len(values)) for key, column in columns.items()}
            part[name] = np.tile(values, len(rows))
            for rule in ready:
                part = take(part, np.flatnonzero(rule.is_legal(self.context, part)))
            found = self._first(part, left, rules) if len(part[name]) else None
            if found is not None:
                return found
        return None
