"""The legal layouts nearest to a given one: the ordinary search, narrowed to few changed fields.

The distance between two strategies is the number of searched fields that differ, plus one where
the split differs: layers per stage, policies of layers and recomputed modules together. For
d = 0, 1, 2, ... all legal strategies at distance d are looked at; the first d at which one fits
is the least there is. With another pp the layers per stage follow and count nothing.

The given strategy may break any rule, so fields keep its own value even where no search would
try it, and rules that only prune a search do not apply.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.cost.context import Context, with_modules
from planner.cost.module_sets import module_sets
from planner.cost.policies import offers_activation_offload
from planner.cost.stage_model import stage_model
from planner.errors import InputError
from planner.search.ranking.exploration import explored
from planner.search.ranking.goals import Goal
from planner.search.search import FoundLayout, Progress, no_progress, search
from planner.search.space.expressions import OFF_BY_DEFAULT
from planner.search.space.interleaving import fits_chunks, has_equal_chunks
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import GPUS, Rule
from planner.search.space.space import Enumeration, dimension_values, take
from planner.spec.strategy import (
    LAYER_POLICY_NAMES,
    POLICIES,
    SEARCHED_FIELDS,
    Strategy,
    StrategyColumns,
    gpus_of,
    split_values,
)
from planner.units import Array, Index, Mask

# With more changed fields it is another layout, not a repair.
MOST_CHANGES = 5
# Layouts in a row that are not accepted before the search gives up.
MAX_REJECTIONS = 30
# Layers per stage, policies of layers and recomputed modules, as one change.
SPLIT = "split"
# Shapes whose strategies are priced at once, so that memory stays bounded.
CHUNK_SHAPES = 2**9

Accepts = Callable[[Strategy], bool]


@dataclass(frozen=True, kw_only=True)
class Near:
    """The fastest layouts among the nearest that fit; none where there are none."""

    found: tuple[FoundLayout, ...]
    num_changes: int
    """Changes of each layout; without any layout, the greatest distance searched completely."""
    num_configurations: int  # Looked at, those that some rule dropped among them
    is_complete: bool = True  # no time limit struck; else layouts as near may be faster
    gave_up: bool = False  # Too many layouts in a row were not accepted


def nearest(
    context: Context,
    origin: Strategy,
    *,
    accepts: Accepts = lambda _strategy: True,
    num_gpus: int | None = None,
    top: int = 1,
    time_limit_s: float | None = None,
    progress: Progress = no_progress,
) -> Near:
    """Find the ``top`` fastest accepted layouts with the fewest changes.

    With ``num_gpus`` all layouts use just these; dp follows from the other degrees and is no
    change. Policies that change become one that the framework can express.
    """
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    space = Neighborhood(context=context, origin=origin, num_gpus=num_gpus, deadline=deadline)
    found: dict[tuple[object, ...], FoundLayout] = {}
    searched, num_rejected = -1, 0
    for num_changes in range(MOST_CHANGES + 1):
        progress(f"layouts with {num_changes} changes", num_changes / (MOST_CHANGES + 1))
        try:
            for one in space.at(num_changes):
                if _family(one.strategy) in found:
                    continue
                if accepts(one.strategy):
                    num_rejected = 0
                    found[_family(one.strategy)] = one
                else:
                    num_rejected += 1
                if len(found) == top or num_rejected == MAX_REJECTIONS:
                    break
        except InputError:  # more shapes than a search may hold: no proof beyond this distance
            break
        is_over = space.is_late or num_rejected == MAX_REJECTIONS
        if found or not is_over:
            searched = num_changes
        if found or is_over:
            break
    return Near(
        found=tuple(found.values()),
        num_changes=searched,
        num_configurations=space.num_configurations,
        is_complete=not space.is_late,
        gave_up=not found and num_rejected == MAX_REJECTIONS,
    )


def _family(strategy: Strategy) -> tuple[object, ...]:
    """Return the fields in which alternatives differ; of layouts equal in them one is enough."""
    fields = [getattr(strategy, name) for name in SEARCHED_FIELDS if name != "offload_percent"]
    return (*fields, strategy.recompute_modules)


@dataclass(kw_only=True)
class Neighborhood:
    """All layouts by their distance from one that may be illegal."""

    context: Context
    origin: Strategy
    num_gpus: int | None = None
    deadline: float | None = None  # Deadline on the clock of time.monotonic
    num_configurations: int = 0
    is_late: bool = False

    def __post_init__(self) -> None:
        context = with_modules(self.context, self.origin.recompute_modules)
        self.context = replace(context, module_sets=(), ranking="time")
        own = self.origin.columns()
        self.values = {name: int(getattr(own, name)[0]) for name in SEARCHED_FIELDS}
        self.policy = _only_policy(self.origin)
        # Every value that some legal strategy may have: any other breaks a rule by itself.
        support, job = self.context.traits.support, self.context.job
        whole = replace(self.context, placements=support.placements, schedules=support.schedules)
        found = dimension_values(whole, Narrowing(allowed=frozenset(OFF_BY_DEFAULT)))
        values = {name: set(each) for name, each in found.items()}
        most = min(self.context.cluster.num_accelerators, job.seq_len // 2)
        # Each cp rank takes two equal slices of a sequence; a search tries powers of two only.
        values["cp"] |= {cp for cp in range(2, most + 1) if job.seq_len % (2 * cp) == 0}
        if len(values["offload_percent"]) > 1:
            values["offload_percent"].add(self.values["offload_percent"])
        if self.context.model.moe is not None:
            values["etp"].add(self.values["etp"])
        self.domain = {name: tuple(sorted(each)) for name, each in values.items()}

    def at(self, num_changes: int) -> Iterator[FoundLayout]:
        """Yield the layouts at this distance that fit, fastest first."""
        kept = sorted(self._with_own_split(num_changes), key=lambda one: one.iteration_s)
        # Layouts asked of a search at first; eight times as many whenever those do not do.
        num_rows, seen = 4, set[Strategy]()
        while True:
            found = [*kept[:num_rows], *self._searched(num_changes, num_rows)]
            found = sorted(found, key=lambda one: one.iteration_s)[:num_rows]
            for one in found:
                # A search of other splits finds the origin's own as well, which is one nearer.
                is_nearer = len(self.changed_fields(one.strategy)) < num_changes
                if one.strategy not in seen and not is_nearer:
                    seen.add(one.strategy)
                    yield one
            if len(found) < num_rows or self.is_late:
                return
            num_rows *= 8

    def changes(
        self, columns: Mapping[str, Array], names: Sequence[str] = SEARCHED_FIELDS
    ) -> dict[str, Mask]:
        """Rows in which each of the fields counts as changed; etp may follow from tp and ep."""
        usual_etp = self.context.traits.support.usual_etp
        changed = {name: columns[name] != self.values[name] for name in names}
        if "etp" in changed and self.origin.etp == usual_etp(self.origin.tp, self.origin.ep):
            changed["etp"] = columns["etp"] != usual_etp(columns["tp"], columns["ep"])
        if self.num_gpus is not None:
            changed.pop("dp", None)
        return changed

    def changed_fields(self, other: Strategy) -> tuple[str, ...]:
        """Names of the fields that count as changed in another layout, the split last."""
        changed = self.changes(vars(other.columns()))
        names = tuple(name for name in changed if changed[name][0])
        return names if self._keeps_split(other) else (*names, SPLIT)

    def _keeps_split(self, other: Strategy) -> bool:
        own = self.origin
        selected = self.context.traits.recompute.selected
        if other.layers_under["selective"] and other.recompute_modules not in (None, selected):
            return False
        if own.pp != other.pp and self.policy == _only_policy(other):
            return self.policy is not None
        same_policies = self.policy == _only_policy(other) if self.policy else False
        same_policies |= own.policy_counts == other.policy_counts
        return same_policies and own.layers_per_stage == other.layers_per_stage

    def rules(self, most: int, *, is_moved: bool = False) -> tuple[Rule, ...]:
        """Rules of the layouts at this distance, the split left aside; asked field by field.

        ``is_moved``: pp is among the changes.
        """
        made = []
        for place in range(most + 1, len(SEARCHED_FIELDS)):
            names = SEARCHED_FIELDS[:place]
            made.append(_rule(f"near_by_{names[-1]}", names, partial(self._is_near, most, names)))
        made.append(_rule("near", SEARCHED_FIELDS, lambda columns: self._distance(columns) == most))
        if is_moved:
            made.append(_rule("moved", ("pp",), lambda columns: columns["pp"] != self.origin.pp))
        if self.num_gpus is not None:
            made.append(_rule("gpus", GPUS, lambda columns: gpus_of(columns) == self.num_gpus))
        return tuple(made)

    def _distance(
        self, columns: Mapping[str, Array], names: Sequence[str] = SEARCHED_FIELDS
    ) -> Index:
        changed = self.changes(columns, names)
        length = len(columns[names[-1]])
        return np.asarray(sum(changed.values(), np.zeros(length, dtype=np.int64)))

    def _is_near(self, most: int, names: Sequence[str], columns: Mapping[str, Array]) -> Mask:
        return np.asarray(self._distance(columns, names) <= most)

    def _searched(self, num_changes: int, num_rows: int) -> Iterator[FoundLayout]:
        """The fastest layouts whose layers per stage are not the origin's."""
        every = dict.fromkeys((self.context.traits.recompute.selected, *module_sets(self.context)))
        if num_changes > 0:
            free = replace(self.context, module_sets=tuple(every))
            yield from self._search(free, self.rules(num_changes - 1), LAYER_POLICY_NAMES, num_rows)
        if num_changes > 0 and self.policy is not None:
            rules = self.rules(num_changes, is_moved=True)
            yield from self._search(self.context, rules, (self.policy,), num_rows)

    def _search(
        self, context: Context, rules: tuple[Rule, ...], kinds: tuple[str, ...], num_rows: int
    ) -> Iterator[FoundLayout]:
        limit_s = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)
        result = search(
            context,
            top=num_rows,
            narrowing=Narrowing(values=self.domain, rules=rules, kinds=kinds),
            with_frontier=False,
            goal=Goal(order="fastest"),
            time_limit_s=limit_s,
        )
        self.num_configurations += result.num_configurations
        self.is_late |= not result.is_complete and self._is_over()
        for found in result.plans:
            modules = found.strategy.recompute_modules
            if modules in (None, self.context.traits.recompute.selected):
                modules = self.origin.recompute_modules
            yield replace(found, strategy=replace(found.strategy, recompute_modules=modules))

    def _is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _with_own_split(self, num_changes: int) -> Iterator[FoundLayout]:
        """Layouts that fit with the layers per stage and the policies as they are."""
        split = self._own_split()
        if split is None or self.origin.pp not in self.domain["pp"]:
            return
        layers, counts = split
        enumeration = Enumeration(
            context=self.context,
            narrowing=Narrowing(
                values={**self.domain, "pp": (self.origin.pp,)},
                rules=self.rules(num_changes),
                kinds=LAYER_POLICY_NAMES if self.policy is None else (self.policy,),
            ),
        )
        exploration, num_shapes = explored(enumeration, deadline=self.deadline)
        self.num_configurations += num_shapes + sum(enumeration.dropped.values())
        for start in range(0, num_shapes, CHUNK_SHAPES):
            self.is_late |= self._is_over()
            if self.is_late:
                return
            part = take(exploration.shapes.columns, slice(start, start + CHUNK_SHAPES))
            strategy, _place = enumeration.strategies_of(part)
            self.num_configurations += len(strategy)
            seconds = self._times(strategy, layers, counts)
            for row in np.flatnonzero(np.isfinite(seconds)).tolist():
                made = Strategy(
                    **strategy.values(row),
                    **split_values(layers, dict(zip(POLICIES, counts, strict=True))),
                    recompute_modules=self.origin.recompute_modules,
                )
                time_s = float(seconds[row])
                yield FoundLayout(
                    strategy=made, iteration_s=time_s, weighed_s=time_s, is_optimal=True
                )

    def _own_split(self) -> tuple[Array, Array] | None:
        """The origin's layers (P) and policies (K x P); None where no layout can have them."""
        own = self.origin
        layers, num_layers = own.layers_per_stage, self.context.model.num_blocks
        if len(layers) != own.pp or min(layers) < 1 or sum(layers) != num_layers:
            return None
        numbers = np.array(layers, dtype=float)
        if self.policy is not None:
            return numbers, np.stack([numbers * (self.policy == name) for name in POLICIES])
        if {len(counts) for counts in own.policy_counts} != {own.pp}:
            return None
        counts = np.array(own.policy_counts, dtype=float)
        return (numbers, counts) if (counts.sum(axis=0) <= numbers).all() else None

    def _times(self, strategy: StrategyColumns, layers: Array, counts: Array) -> Array:
        """Iteration time of every row under one split; infinite where it does not fit."""
        model = stage_model(self.context, strategy)
        rows = np.broadcast_to(layers, (len(model), len(layers)))
        chosen = np.broadcast_to(counts[:, None, :], (len(counts), *rows.shape))
        legal = np.asarray(fits_chunks(rows, strategy.vpp))
        must_be_equal = has_equal_chunks(strategy)
        is_equal = (layers == layers[0]).all() & (layers[0] % strategy.vpp == 0)
        legal = np.where(must_be_equal, is_equal, legal) & model.fits(rows, chosen)
        if counts[POLICIES.index("offloaded")].any():
            legal &= offers_activation_offload(self.context, strategy)
        return np.where(legal, model.iteration_s(rows, chosen), np.inf)


def _only_policy(strategy: Strategy) -> str | None:
    """The one policy of all layers, ``none`` where none is under any; None: they differ."""
    used = [
        name for name, counts in zip(POLICIES, strategy.policy_counts, strict=True) if any(counts)
    ]
    if not used:
        return "none"
    whole = dict(zip(POLICIES, strategy.policy_counts, strict=True))[used[0]]
    return used[0] if len(used) == 1 and whole == strategy.layers_per_stage else None


def _rule(
    name: str, needs: tuple[str, ...], is_legal: Callable[[Mapping[str, Array]], Mask]
) -> Rule:
    return Rule(
        name=name, needs=needs, message=name, check=lambda _, columns: {"": is_legal(columns)}
    )
