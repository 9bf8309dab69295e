"""Brute force for repairs: every strategy, split, policy and set of modules.

Uses only the rules, ``iteration_s``, ``fits`` and what brute_force.py says of policies.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from brute_force import all_splits, part_splits, said_of

from planner.cost.context import Context, with_modules
from planner.cost.policies import offers_activation_offload
from planner.cost.stage import StageModel
from planner.cost.stage_model import stage_model
from planner.search.near import MOST_CHANGES
from planner.search.space.interleaving import fits_chunks, has_equal_chunks
from planner.search.space.legality import RULES
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import (
    LAYER_POLICY_NAMES,
    OFFLOAD_CODES,
    PLACEMENT_NAMES,
    SCHEDULES,
    Strategy,
)
from planner.spec.strategy import StrategyColumns as Columns

DECIDED = tuple(name for name in Columns.__dataclass_fields__ if name != "num_micro_batches")


def every_strategy(context: Context, own_percent: int = 100) -> Columns:
    """All combinations of small values that no rule (but those that prune) breaks.

    Of ``offload_percent`` those that a search tries, and the strategy's own.
    """
    gpus = context.cluster.num_accelerators
    degrees = list(range(1, gpus + 1))
    batch = context.job.global_batch
    is_partial = context.traits.support.partial_offload_zero_stages
    percents = (25, 50, 75, 100) if is_partial else (100,)
    num_experts = context.model.moe.num_experts if context.model.moe else 1
    values: dict[str, list[int]] = {
        **dict.fromkeys(("tp", "cp", "pp", "dp"), degrees),
        "vpp": list(range(1, context.model.num_blocks + 1)),
        "schedule": list(range(len(SCHEDULES))),
        "ep": list(range(1, num_experts + 1)),
        "etp": degrees,
        "micro_batch": list(range(1, batch + 1)),
        "sequence_parallel": [0, 1],
        "zero_stage": [0, 1, 2, 3],
        "dp_replicate": degrees,
        "offload": list(range(len(OFFLOAD_CODES))),
        "offload_percent": sorted({*percents, own_percent}) if len(percents) > 1 else [100],
        "placement": list(range(len(PLACEMENT_NAMES))),
    }
    columns: dict[str, np.ndarray] = {}
    for name, options in values.items():
        length = len(next(iter(columns.values()))) if columns else 1
        columns = {key: np.repeat(column, len(options)) for key, column in columns.items()}
        columns[name] = np.tile(np.array(options), length)
        for rule in RULES:
            if name in rule.needs and set(rule.needs) <= set(columns) and not rule.only_prunes:
                legal = rule.is_legal(context, columns)
                columns = {key: column[legal] for key, column in columns.items()}
    columns["num_micro_batches"] = batch // (columns["dp"] * columns["micro_batch"])
    return Columns(**columns)


@dataclass(frozen=True)
class Least:
    changes: int
    seconds: float


def _uniform(strategy: Strategy) -> int | None:
    """The policy of all layers, -1 for none, None for a mixture."""
    lists = strategy.policy_counts
    used = [k for k in range(3) if any(lists[k])]
    if not used:
        return -1
    return used[0] if len(used) == 1 and lists[used[0]] == strategy.layers_per_stage else None


def keeps_split(strategy: Strategy, pp: int, layers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Whether splits of one row are the strategy's; with other stages its layers follow."""
    kept = keeps_policies(strategy, pp, layers, counts)
    if pp != strategy.pp and _uniform(strategy) is not None:
        return kept
    own = np.array(strategy.layers_per_stage)
    same = (layers == own).all(axis=1) if len(own) == pp else np.zeros(len(layers), dtype=bool)
    return kept & same


def keeps_policies(
    strategy: Strategy, pp: int, layers: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Whether splits leave the policies as the strategy has them."""
    uniform, lists = _uniform(strategy), strategy.policy_counts
    if uniform is not None:
        wanted = np.stack([layers * (k == uniform) for k in range(3)])
        return np.asarray((counts == wanted).all(axis=(0, 2)))
    if {len(one) for one in lists} != {pp}:
        return np.zeros(len(layers), dtype=bool)
    return np.asarray((counts == np.array(lists)[:, None, :]).all(axis=(0, 2)))


def rows_of_force(
    context: Context, strategy: Strategy, at_most: int, num_gpus: int | None
) -> Iterator[Least]:
    """Every legal strategy's least, by ascending changes of columns; of so many GPUs dp follows."""
    columns = every_strategy(context, strategy.offload_percent)
    decided = DECIDED
    if num_gpus is not None:
        columns = columns.take(np.flatnonzero(columns.num_gpus == num_gpus))
        decided = tuple(name for name in DECIDED if name != "dp")
    own = strategy.columns()
    distance = sum((getattr(columns, n) != getattr(own, n)[0]) * 1 for n in decided)
    support = context.traits.support
    if strategy.etp == support.usual_etp(strategy.tp, strategy.ep):
        # It follows from tp and ep, and is a decision only where it no longer does.
        follows = columns.etp == support.usual_etp(columns.tp, columns.ep)
        distance = distance + 1 * ~follows - 1 * (columns.etp != own.etp[0])
    distance = np.asarray(distance)
    kept = strategy.recompute_modules or context.traits.recompute.selected
    best, order = at_most, np.argsort(distance, kind="stable")
    columns, distance = columns.take(order), distance[order]
    for least in range(at_most + 1):
        if least > best:
            return
        index = np.flatnonzero(distance == least)
        sets = {kept, *context.module_sets} if len(index) else ()
        for modules in sets:
            model = stage_model(with_modules(context, modules), columns.take(index))
            for row in range(len(index)):
                own = model.take(np.array([row]))
                one = _least(context, strategy, own, modules != kept)
                if one is not None:
                    one = replace(one, changes=one.changes + least)
                    best = min(best, one.changes)
                    yield one


def _least(context: Context, strategy: Strategy, model: StageModel, other: bool) -> Least | None:
    """Whether the split of one row changes, and the least time if so; ``other``: its modules do."""
    one = model.strategy
    offers = bool(offers_activation_offload(context, one)[0])
    pp, vpp = int(one.pp[0]), int(one.vpp[0])
    kinds = tuple(kind for kind in LAYER_POLICY_NAMES if offers or kind != "offloaded")
    layers, counts = all_splits(context.model.num_blocks, pp, kinds)
    many = model.take(np.zeros(len(layers), dtype=int))
    legal = np.asarray(fits_chunks(layers, many.strategy.vpp))
    if has_equal_chunks(one)[0]:
        legal = (layers == layers[:, :1]).all(axis=1) & (layers[:, 0] % vpp == 0)
    legal &= many.fits(layers, counts)
    if other:
        legal &= counts[0].any(axis=1)
    kept = keeps_policies(strategy, pp, layers, counts)
    legal &= kept | _can_be_said(context, layers, counts, vpp)
    if not legal.any():
        return None
    changes = 1 * ~(keeps_split(strategy, pp, layers, counts) & (not other))
    fewest = int(changes[legal].min())
    seconds = many.iteration_s(layers, counts)[legal & (changes == fewest)]
    return Least(changes=fewest, seconds=float(seconds.min()))


def _can_be_said(context: Context, layers: np.ndarray, counts: np.ndarray, vpp: int) -> np.ndarray:
    """Splits that one policy of the framework can make."""
    said = np.zeros(len(layers), dtype=bool)
    num_layers, pp = int(layers[0].sum()), layers.shape[1]
    for how, kinds in said_of(context, EVERYTHING):
        if how == "all":
            wanted = np.stack([layers * (kind == kinds[0]) for kind in LAYER_POLICY_NAMES[1:]])
            said |= (counts == wanted).all(axis=(0, 2))
            continue
        own_layers, own_counts = part_splits(num_layers, pp, vpp, kinds[0])
        every = {one.tobytes() for one in _rows(own_layers, own_counts)}
        said |= np.array([one.tobytes() in every for one in _rows(layers, counts)], dtype=bool)
    return said


def _rows(layers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate([layers, *counts], axis=1))


def force(context: Context, strategy: Strategy, num_gpus: int | None = None) -> Least | None:
    every = rows_of_force(context, strategy, MOST_CHANGES, num_gpus)
    found = (one for one in every if one.changes <= MOST_CHANGES)
    return min(found, key=lambda one: (one.changes, one.seconds), default=None)
