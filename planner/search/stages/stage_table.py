"""Cost of every stage of one strategy for every number of layers, under its best policies.

Which layers of a stage are recomputed or offloaded touches no other stage, so it is decided here,
for each stage and number of layers, before layers are dealt out.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from planner.cost.context import Rowed
from planner.cost.stage import SELECTIVE, StageModel
from planner.search.stages.capacity import ROUNDING, Limits, stage_limits
from planner.spec.strategy import POLICIES
from planner.units import Array, Index

# Looked at together: 200 MiB.
MOST_CELLS = 2**20


@dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of layers that are looked at together."""

    first: int
    last: int
    step: int  # Policies take so many layers at a time


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Numbers of layers of each stage, and which policies are free for them."""

    numbers: Array
    fewest: Array
    most: Array
    free: tuple[bool, ...]  # the policies whose counts are all looked at

    @cached_property
    def parts(self) -> list[Part]:
        """Runs of numbers with few enough choices at once."""
        num_stages = max(int((self.most >= self.fewest).sum()), 1)
        # 2**26 cells of one table take some ten seconds. Beyond it (hundreds of layers under
        # several policies) layers are put under policies in steps, and nothing is proved.
        most = min(MOST_CELLS, 2**26 // len(self.numbers)) // num_stages
        found: list[Part] = []
        size = 0
        for number in self.numbers.astype(int).tolist():
            # The least step with few enough choices, or all layers at once.
            step = next(
                (
                    step
                    for step in range(1, number)
                    if _num_choices(number, sum(self.free), step) <= max(most, 1)
                ),
                max(number, 1),
            )
            size += _num_choices(number, sum(self.free), step) * num_stages
            if found and size <= MOST_CELLS and step == found[-1].step:
                found[-1] = Part(first=found[-1].first, last=number, step=step)
            else:
                size = _num_choices(number, sum(self.free), step) * num_stages
                found.append(Part(first=number, last=number, step=step))
        return found

    def grid(self, part: Part) -> tuple[Index, Array, Array]:
        """Stage, layers and counts of every choice within the range of its stage."""
        kinds = sum(self.free)
        size = (part.last - part.first + 1) * _num_choices(part.last, kinds, part.step)
        choices = (_kept_choices if size <= 2**14 else _made_choices)(part, self.free)
        inside = (choices[0] >= self.fewest[:, None]) & (choices[0] <= self.most[:, None])
        stage, column = np.nonzero(inside)
        return stage, choices[0, column], choices[1:, column]


def _num_choices(number: int, kinds: int, step: int) -> int:
    """Ways to put at most ``number`` layers under so many policies: ``C(n + k, k)``."""
    steps = number if step == 1 else number // step + 1
    return math.comb(steps + kinds, kinds)


def _made_choices(part: Part, free: tuple[bool, ...]) -> Array:
    """Numbers of layers and all counts of the policies that are free, one column per choice."""
    columns = []
    for number in range(part.first, part.last + 1):
        some = np.unique([*range(0, number + 1, part.step), number])
        axes = [some if is_free else some[:1] for is_free in free]
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
        grid = grid[:, grid.sum(axis=0) <= number]
        columns.append(np.concatenate([np.full((1, grid.shape[1]), number), grid]))
    return np.concatenate(columns, axis=1).astype(float)


_kept_choices = lru_cache(maxsize=256)(_made_choices)


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """Rows are stages, columns numbers of layers."""

    layers: Array  # the numbers, ascending
    seconds: Array  # Per micro-batch; infinite where so many layers do not fit, or are not allowed
    tail_s: Array
    counts: Array  # Layers under each policy, K x stages x numbers
    is_whole: bool = True  # every choice was looked at: none was left out for want of time or room


@dataclass(frozen=True, kw_only=True)
class _Cells(Rowed):
    """Ways to hold some layers on some stage, as flat columns."""

    stage: Index
    layers: Array
    counts: Array
    seconds: Array


def stage_table(
    model: StageModel,
    slowest_s: float,
    limits: Limits | None = None,
    deadline: float = np.inf,
) -> StageTable:
    """Tabulate the one strategy in ``model`` for stages of at most ``slowest_s``.

    ``limits`` are its own, where they are at hand. After ``deadline``, of time.monotonic(), what is
    left is left out.
    """
    num_stages = int(model.strategy.pp[0])
    limits = limits or stage_limits(model, num_stages)
    by_time = np.floor((slowest_s - limits.fixed_s[0]) / model.layer_s[0] + ROUNDING)
    most = np.minimum(limits.most[0], by_time)
    others = np.maximum(most, 0.0).sum() - np.maximum(most, 0.0)
    fewest = np.maximum(limits.fewest[0], model.num_layers - others)
    numbers = np.arange(fewest.min(), max(most.max(), fewest.min()) + 1.0)
    # As few selective layers as fit follow from the counts of the other policies.
    free = tuple(
        saves and policy != SELECTIVE
        for policy, saves in enumerate(model.saves(leading=False)[:, 0].tolist())
    )
    ranges = Ranges(numbers=numbers, fewest=fewest, most=most, free=free)
    cells, is_whole = _in_parts(partial(_linear_cells, model, limits), ranges, deadline)
    if model.num_leading:
        free = tuple(model.saves(leading=True)[:, 0].tolist())
        most = np.where(np.arange(num_stages) == 0, most, -1.0)
        ranges = Ranges(numbers=numbers, fewest=fewest, most=most, free=free)
        first, is_first_whole = _in_parts(partial(_all_cells, model), ranges, deadline)
        cells = _joined(cells.take(cells.stage > 0), first)
        is_whole &= is_first_whole
    return _best(model, cells, numbers, num_stages, is_whole=is_whole)


def _in_parts(
    find: Callable[[Ranges, Part], _Cells], ranges: Ranges, deadline: float
) -> tuple[_Cells, bool]:
    """The fastest of what is found part by part, and whether all of it was looked at."""
    found = _fastest(find(ranges, ranges.parts[0]))
    for part in ranges.parts[1:]:
        if time.monotonic() > deadline:
            return found, False
        found = _joined(found, _fastest(find(ranges, part)))
    return found, ranges.parts[-1].step == 1


def _linear_cells(model: StageModel, limits: Limits, ranges: Ranges, part: Part) -> _Cells:
    """All counts of full and offloaded layers, with as few selective ones as fit.

    Bytes fall evenly with each layer under a policy: none is selective where the rest fits, else
    ``ceil(excess / saved)`` are, the workspace of recomputation counted to the excess.
    """
    saves = model.saves(leading=False)[:, 0]
    exact = [policy for policy in range(len(POLICIES)) if policy != SELECTIVE]
    stage, layers, counts = ranges.grid(part)
    saved = (limits.layer_bytes - limits.policy_bytes)[:, 0, stage]
    room = limits.room_bytes[0, stage]
    for policy in exact:
        less = np.minimum(room, limits.policy_room_bytes[policy, 0, stage])
        room = np.where(counts[policy] > 0, less, room)
    used = layers * limits.layer_bytes[0, stage] - (counts * saved).sum(axis=0)
    # 1e-14: relative error of sums of bytes.
    legal = used <= room * (1.0 + 1e-14)
    if saves[SELECTIVE]:
        less = np.minimum(room, limits.policy_room_bytes[SELECTIVE, 0, stage])
        number = np.maximum(np.ceil((used - less) / saved[SELECTIVE] - ROUNDING), 1.0)
        fits = number <= layers - counts.sum(axis=0)
        counts[SELECTIVE] = np.where(~legal & fits, number, 0.0)
        legal |= fits
    away = (counts * model.policies.host_bytes).any(axis=0)
    if away.any():
        at = stage[None, :].astype(float)
        host = model.host_bytes(layers[None, :], counts[:, None, :], at)[0]
        legal &= host <= model.host_limit_bytes[0]
    legal &= layers <= limits.max_layers[0, stage] + ROUNDING
    seconds = layers * model.layer_s[0] + limits.fixed_s[0, stage]
    seconds = seconds + (counts * model.policies.added_s).sum(axis=0)
    seconds = seconds + ((counts > 0) * model.policies.fill_s).sum(axis=0)
    cells = _Cells(stage=stage, layers=layers, counts=counts, seconds=seconds)
    return cells.take(np.asarray(legal))


def _all_cells(model: StageModel, ranges: Ranges, part: Part) -> _Cells:
    """All counts of all policies: leading layers keep amounts of their own, offloaded ones too."""
    stage, layers, counts = ranges.grid(part)
    at, one, each = stage[None, :].astype(float), layers[None, :], counts[:, None, :]
    legal = model.held_bytes(one, each, at)[0] <= model.held_limit_bytes[0]
    legal &= model.host_bytes(one, each, at)[0] <= model.host_limit_bytes[0]
    return _Cells(
        stage=stage, layers=layers, counts=counts, seconds=model.time_s(one, each, at)[0]
    ).take(legal)


def _fastest(cells: _Cells) -> _Cells:
    """The fastest way for every stage and number of layers."""
    layers = cells.layers.astype(int)
    place = cells.stage * (layers.max(initial=0) + 1) + layers
    order = np.lexsort((cells.seconds, place))
    _, first = np.unique(place[order], return_index=True)
    return cells.take(order[first])


def _joined(first: _Cells, second: _Cells) -> _Cells:
    return _Cells(
        stage=np.concatenate([first.stage, second.stage]),
        layers=np.concatenate([first.layers, second.layers]),
        counts=np.concatenate([first.counts, second.counts], axis=1),
        seconds=np.concatenate([first.seconds, second.seconds]),
    )


def _best(
    model: StageModel, cells: _Cells, numbers: Array, num_stages: int, *, is_whole: bool
) -> StageTable:
    """The fastest cell for every stage and number of layers."""
    cells = _fastest(cells)
    column = (cells.layers - numbers[0]).astype(int)
    shape = (num_stages, len(numbers))
    table = np.full(shape, np.inf)
    found = np.zeros((len(POLICIES), *shape))
    table[cells.stage, column] = cells.seconds
    found[:, cells.stage, column] = cells.counts
    every = np.repeat(np.arange(float(num_stages)), len(numbers))
    tails = model.step_end_s(np.tile(numbers, num_stages)[None, :], every[None, :])[0]
    return StageTable(
        layers=numbers,
        seconds=table,
        tail_s=tails.reshape(shape),
        counts=found,
        is_whole=is_whole,
    )
