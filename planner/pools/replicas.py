"""Whole replicas in every pool, with as many sequences each that all pools are done together.

Every pool runs a layout of the whole model of its own; gradients are summed over pools behind the
last micro-batch. Source: Whale (arXiv 2011.09208, USENIX ATC 2022, hardware-aware load balance of
data parallelism).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.build import stage_model
from planner.cost.context import Context
from planner.cost.policies import with_recomputed_mtp
from planner.cost.stage import fits, iteration_s
from planner.cost.subject import subject_of
from planner.layers.adapter_sizes import adapter_params
from planner.layers.parameters import count_parameters
from planner.spec.cluster import LevelSpec
from planner.spec.strategy import Strategy, StrategyColumns
from planner.units import Array, Index


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What a pool takes for every number of sequences, and the layout that takes it."""

    seconds: Array
    """By number of sequences, from none; infinite where no layout runs so many."""
    layout: Index
    """Position of the layout."""


def shares_of(context: Context, layouts: Sequence[Strategy]) -> Shares:
    """The fastest of some layouts for every number of sequences up to the global batch.

    A layout runs whole micro-batches on every replica, with its own split of layers; interleaving
    needs them in multiples of its stages. What it keeps in flight grows with their number.
    """
    batch = context.job.global_batch
    seconds, layout = np.full(batch + 1, np.inf), np.full(batch + 1, -1)
    for position, strategy in enumerate(layouts):
        each = strategy.dp * strategy.micro_batch
        step = strategy.pp if strategy.vpp > 1 else 1
        first = strategy.pp if context.traits.support.fills_pipeline else step
        numbers = np.arange(step, batch // each + 1, step)
        numbers = numbers[numbers >= first]
        if not len(numbers):
            continue
        taken = _times_s(context, strategy, numbers)
        better = taken < seconds[numbers * each]
        seconds[numbers * each] = np.where(better, taken, seconds[numbers * each])
        layout[numbers * each] = np.where(better, position, layout[numbers * each])
    return Shares(seconds=seconds, layout=layout)


def _times_s(context: Context, strategy: Strategy, numbers: Index) -> Array:
    """An iteration of a layout with so many micro-batches each; infinite where it does not fit."""
    subject = subject_of(context, strategy)
    rows = vars(subject.columns.take(np.zeros(len(numbers), dtype=int)))
    columns = StrategyColumns(**{**rows, "num_micro_batches": numbers})
    model = stage_model(subject.context, columns)
    if subject.mtp_policy is not None:
        model = with_recomputed_mtp(model, subject.mtp_policy)
    layers = np.repeat(subject.layers, len(numbers), axis=0)
    counts = np.repeat(subject.counts, len(numbers), axis=1)
    taken = iteration_s(model, layers, counts)
    return np.where(fits(model, layers, counts), taken, np.inf)


def balanced(pools: Sequence[Shares]) -> tuple[int, ...] | None:
    """Sequences of every pool, of which each has some, that are done soonest; None: impossible.

    ``min max_k t_k(b_k)`` over ``Σ b_k = B``, exactly: the least slowest pool for every number of
    sequences of the pools before, pool by pool.
    """
    batch = len(pools[0].seconds) - 1
    best = pools[0].seconds.copy()
    best[0] = np.inf
    chosen: list[Index] = []
    for pool in pools[1:]:
        now, own = np.full(batch + 1, np.inf), np.zeros(batch + 1, dtype=int)
        for number in np.flatnonzero(np.isfinite(pool.seconds)).tolist():
            if not number:
                continue
            slowest = np.maximum(best[: batch + 1 - number], pool.seconds[number])
            better = slowest < now[number:]
            now[number:] = np.where(better, slowest, now[number:])
            own[number:] = np.where(better, number, own[number:])
        best = now
        chosen.append(own)
    if not np.isfinite(best[batch]):
        return None
    shares, left = list[int](), batch
    for own in reversed(chosen):
        shares.append(int(own[left]))
        left -= shares[-1]
    return (left, *reversed(shares))


def trained_bytes(context: Context) -> float:
    """Bytes of all gradients as they are reduced."""
    training = context.traits.training
    trained = (
        adapter_params(context.model, training, joined=context.traits.kernels.joins_adapters)
        if training.is_frozen
        else count_parameters(context.model)
    )
    return float(trained) * context.traits.states.gradient_reduce_bytes


def exchange_s(num_bytes: float, between: LevelSpec, num_accelerators: Sequence[int]) -> float:
    """``2 (k-1)/k · G / (n · rate) + 2 (k-1) · latency``: gradients summed over k pools.

    Inside a pool gradients are reduced and scattered first, so that each of its n accelerators
    sends its share of all G bytes; n is that of the smallest pool, rate that of one accelerator
    between pools, ring over pools. Whether shards of two pools are of the same parameters does not
    change the bytes. Source: hierarchical all-reduce, BlueConnect (MLSys 2019). Nothing hides
    behind computation; excludes contention with other traffic.
    """
    number = len(num_accelerators)
    rate = min(num_accelerators) * between.achieved_bytes_per_s
    wire_s = 2.0 * (number - 1) / number * num_bytes / rate
    return wire_s + 2.0 * (number - 1) * between.latency_s
