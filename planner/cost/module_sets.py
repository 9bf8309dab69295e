"""Cost of selective recomputation for every set of modules it could repeat."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from itertools import combinations

import numpy as np

from planner.cost.context import Context, with_modules
from planner.cost.layer import LayerCosts, distinct_shapes, layer_costs, layer_shape, shape_columns
from planner.cost.layer_time import PricingInputs, exposed_s, op_items
from planner.layers.block import LayerGroup, layer_groups
from planner.layers.op import LayerShape, Op
from planner.layers.saved import without_module
from planner.spec.strategy import StrategyColumns
from planner.spec.traits import RecomputeModule
from planner.units import Array, Index, Rows

ModuleSet = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SelectiveCosts:
    """Costs of one layer under selective recomputation; C, or S x C for several sets of modules."""

    added_s: Array
    saved_bytes: Array
    lead_saved_bytes: Array  # Bytes that a leading layer keeps in excess of another layer
    workspace_bytes: Array

    def __getitem__(
        self, index: Rows | int | slice | tuple[Rows | slice, Rows]
    ) -> "SelectiveCosts":
        """Return some of the sets, or one set per strategy."""
        return SelectiveCosts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def _groups(context: Context, shape: LayerShape) -> tuple[LayerGroup, ...]:
    """Kinds of layers before any policy."""
    bare = with_modules(context, ())
    return layer_groups(bare.model, shape, bare.traits)


def _under_each(
    op: Op, sets: Sequence[tuple[RecomputeModule, ...]], names: set[str]
) -> tuple[list[Op], list[int]]:
    """The op under the sets, once for all that touch it alike, and the place of every set's."""
    # Modules that change what the op repeats or keeps.
    touched = set()
    for module in {module.name: module for modules in sets for module in modules}.values():
        after = without_module(op, module, names)
        if len(after.kept) < len(op.kept) or np.any(after.selective_fraction):
            touched.add(module.name)
    found: dict[tuple[str, ...], Op] = {}
    keys = []
    for modules in sets:
        keys.append(tuple(module.name for module in modules if module.name in touched))
        if keys[-1] not in found:
            found[keys[-1]] = reduce(lambda op, one: without_module(op, one, names), modules, op)
    places = {key: place for place, key in enumerate(found)}
    return list(found.values()), [places[key] for key in keys]


def module_sets(context: Context) -> tuple[ModuleSet, ...]:
    """Every set of modules with an effect of its own on the model, smaller sets first.

    Only the selected policy where that counts matmuls, which excludes others.
    """
    recompute = context.traits.recompute
    if any(module.keeps for module in recompute.chosen):
        return (recompute.selected,)
    groups = _groups(context, LayerShape.all_of(1.0, context.job.seq_len))
    sizes = range(len(recompute.modules) + 1)
    sets = [names for size in sizes for names in combinations(recompute.modules, size)]
    # What each set does to every op; equal for sets that do the same.
    columns = []
    for group in groups:
        names = {op.name for op in group.ops}
        for op in group.ops:
            under, places = _under_each(op, sets, names)
            effect = [
                (float(np.max(one.selective_fraction)), tuple(t.name for t in one.kept))
                for one in under
            ]
            columns.append([effect[place] for place in places])
    effects = list(zip(*columns, strict=True))
    seen = {effects[0]}
    found: list[ModuleSet] = []
    for modules, done in zip(sets[1:], effects[1:], strict=True):
        if done not in seen:
            seen.add(done)
            found.append(tuple(module.name for module in modules))
    return tuple(found) or (recompute.selected,)


def selective_options(
    context: Context, strategy: StrategyColumns, sets: tuple[ModuleSet, ...], pace: Array
) -> SelectiveCosts:
    """Costs under each set of modules, S x C; the sums of planner.cost.layer.layer_costs.

    Per op the share of its forward that the set repeats, and the tensors it does not drop.
    """
    rows, index = distinct_shapes(strategy, context.traits.kernels)
    traits = context.traits
    inputs = PricingInputs(job=context.job, cluster=context.cluster, traits=traits, strategy=rows)
    by_name = {module.name: module for module in context.traits.recompute.modules}
    chosen = [tuple(by_name[name] for name in names) for names in sets]
    groups = _groups(context, layer_shape(rows, context.job))
    shape = (len(sets), len(rows))
    added, kept, largest = np.zeros(shape), [], np.zeros(shape)
    whole = np.zeros(len(rows))
    total = sum(group.num_layers for group in groups)
    for group in groups:
        # Seconds repeated and bytes kept by a layer of the kind under each set.
        repeated, stays = np.zeros(shape), np.zeros(shape)
        names = {op.name for op in group.ops}
        for op in group.ops:
            forward_s = exposed_s(op_items(op, inputs))
            under, places = _under_each(op, chosen, names)
            for place, one in enumerate(under):
                alike = np.equal(places, place)
                if np.any(one.selective_fraction):
                    repeated[alike] += one.selective_fraction * forward_s
                stays[alike] += one.kept_bytes
        added += repeated * (group.num_layers / total)
        kept.append(stays)
        largest = np.maximum(largest, stays)
        whole = np.maximum(whole, sum(op.saved_bytes for op in group.ops))
    # The mean over the layers behind the leading ones, and a leading layer's.
    behind = [group.num_layers - group.num_leading for group in groups]
    pairs = zip(behind, kept, strict=True)
    body = np.asarray(sum(number * value for number, value in pairs) / max(sum(behind), 1))
    leading = sum(group.num_leading for group in groups)
    first = zip(groups, kept, strict=True)
    lead = np.asarray(sum(group.num_leading * value for group, value in first) / max(leading, 1))
    lead = lead if leading else body
    return SelectiveCosts(
        added_s=pace * added[:, index],
        saved_bytes=body[:, index],
        lead_saved_bytes=(lead - body)[:, index],
        workspace_bytes=(whole - largest)[:, index],
    )


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """All sets of modules at once, for bounds: no set is better than this; and one real set."""

    bound: SelectiveCosts
    """Keeps the least that any set keeps, at the best rate of bytes saved per second, or adds the
    least."""
    best: SelectiveCosts  # Costs of the set with the best rate, for every shape
    best_set: Index  # Its position among the sets

    def at(self, index: Index, pace: Array) -> "Relaxed":
        """Return that of every strategy, of a shape and a pace each."""
        bound, best = self.bound[index], self.best[index]
        return Relaxed(
            bound=replace(bound, added_s=pace * bound.added_s),
            best=replace(best, added_s=pace * best.added_s),
            best_set=self.best_set[index],
        )


def relaxed_options(options: SelectiveCosts, *, by_rate: bool = True) -> Relaxed:
    """Relax the choice of modules for every shape.

    ``options`` are S x shapes, those of no module first.

    Where a layer cannot be without any policy (not ``by_rate``), a set that saves little may cost
    less than its share at the best rate: then the bound adds the least that any set adds.
    """
    nothing, options = options[0], options[1:]
    saved = nothing.saved_bytes - options.saved_bytes
    rates = np.where(saved > 0, saved / np.maximum(options.added_s, 1e-15), 0.0)
    best = rates.argmax(axis=0)
    every = np.arange(options.added_s.shape[1])
    fastest = rates[best, every]
    most = np.maximum(saved.max(axis=0), 0.0)
    at_rate = most / np.where(fastest > 0, fastest, 1.0)
    added = at_rate if by_rate else options.added_s.min(axis=0)
    bound = SelectiveCosts(
        added_s=added,
        saved_bytes=nothing.saved_bytes - most,
        lead_saved_bytes=options.lead_saved_bytes.min(axis=0),
        workspace_bytes=options.workspace_bytes.min(axis=0),
    )
    return Relaxed(bound=bound, best=options[best, every], best_set=best)


@dataclass(kw_only=True)
class LayerTable:
    """Costs by layer shape; shapes it has not met are priced when they are asked for."""

    context: Context
    _shapes: StrategyColumns | None = None
    _place: dict[tuple[int, ...], int] = field(default_factory=dict)
    _costs: LayerCosts | None = None
    _options: dict[tuple[ModuleSet, ...], SelectiveCosts] = field(default_factory=dict)
    _relaxed: dict[tuple[tuple[ModuleSet, ...], bool], Relaxed] = field(default_factory=dict)

    def _index(self, strategy: StrategyColumns) -> Index:
        """Return the row of every strategy's shape in the table, which grows if need be."""
        kernels = self.context.traits.kernels
        rows, index = distinct_shapes(strategy, kernels)
        columns = (getattr(rows, name).tolist() for name in shape_columns(kernels))
        keys = list(zip(*columns, strict=True))
        new = [row for row, key in enumerate(keys) if key not in self._place]
        if new or self._shapes is None:
            added = rows.take(np.array(new, dtype=int))
            known = [] if self._shapes is None else [self._shapes]
            self._shapes = StrategyColumns.concatenate([*known, added])
            self._place |= {keys[row]: len(self._place) + i for i, row in enumerate(new)}
            self._costs, self._options, self._relaxed = None, {}, {}
        places = np.array([self._place[key] for key in keys], dtype=int)
        return places[index]

    def costs(self, strategy: StrategyColumns) -> LayerCosts:
        """Return the costs as :func:`layer_costs` gives them."""
        index = self._index(strategy)
        assert self._shapes is not None
        if self._costs is None:
            self._costs = layer_costs(self.context, self._shapes)
        return self._costs.take(index)

    def options(
        self, strategy: StrategyColumns, sets: tuple[ModuleSet, ...]
    ) -> tuple[SelectiveCosts, Index]:
        """Costs under each set of modules by shape (S x shapes), and the shape of every row."""
        index = self._index(strategy)
        assert self._shapes is not None
        if sets not in self._options:
            even = np.ones(len(self._shapes))
            self._options[sets] = selective_options(self.context, self._shapes, sets, even)
        return self._options[sets], index

    def relaxed(
        self, strategy: StrategyColumns, sets: tuple[ModuleSet, ...], *, by_rate: bool
    ) -> tuple[Relaxed, Index]:
        """The choice among these sets relaxed, by shape, and the shape of every row."""
        options, index = self.options(strategy, sets)
        key = (sets, by_rate)
        if key not in self._relaxed:
            self._relaxed[key] = relaxed_options(options, by_rate=by_rate)
        return self._relaxed[key], index
