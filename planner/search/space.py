"""Enumerates strategies as columns, dropping branches as soon as a rule forbids them."""

from dataclasses import dataclass

import numpy as np

from planner.cost.context import Context
from planner.search.rules import RULES, WHOLE_CLUSTER, Rule
from planner.spec.strategy import OFFLOAD_CODES, PLACEMENT_NAMES, SCHEDULES, StrategyColumns
from planner.units import Array

MAX_MICRO_BATCH = 64
LONG_SEQUENCE_TOKENS = 16384
"""From this sequence length on, context parallelism is searched."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Legal strategies, and how many branches each rule dropped."""

    strategy: StrategyColumns
    num_configurations: int
    """Branches looked at: legal strategies plus every dropped branch, each counted once."""
    dropped: dict[str, int]


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def chunk_counts(num_layers: int, *, uneven: bool) -> list[int]:
    """Virtual stages worth trying: at most one per layer, and equal chunks at some pp."""
    fillers = (0, 1, 2) if uneven else (0,)
    counts = {d for filler in fillers for d in divisors(num_layers + filler)}
    return sorted(count for count in counts if count <= num_layers)


def dimension_values(context: Context) -> dict[str, list[int]]:
    """Values each dimension takes before any rule, in the order they are decided."""
    model, job, cluster = context.model, context.job, context.cluster
    domain = cluster.node.scale_up.num_accelerators
    tp = {d for d in divisors(model.num_heads) if d <= domain} | {1, 2, 4, 8}
    placements = context.placements or context.traits.support.placements[:1]
    powers = [2**i for i in range(cluster.num_accelerators.bit_length())]
    cp = powers if job.seq_len >= LONG_SEQUENCE_TOKENS else [1]
    return {
        "tp": sorted(tp),
        "cp": cp,
        "pp": list(range(1, min(model.num_blocks, cluster.num_accelerators) + 1)),
        "dp": [d for d in divisors(job.global_batch) if d <= cluster.num_accelerators],
        "dp_replicate": [1],
        "ep": divisors(model.moe.num_experts) if model.moe else [1],
        "micro_batch": [d for d in divisors(job.global_batch) if d <= MAX_MICRO_BATCH],
        "schedule": [i for i, name in enumerate(SCHEDULES) if name in context.schedules],
        "vpp": chunk_counts(model.num_blocks, uneven=context.traits.support.uneven_stages),
        "zero_stage": sorted(
            {*context.traits.support.zero_stages, *context.traits.support.zero_stages_with_pp}
        ),
        "offload": [
            i for i, code in enumerate(OFFLOAD_CODES) if code in context.traits.support.offload
        ],
        "placement": [PLACEMENT_NAMES.index(name) for name in placements],
    }


def _cross(columns: dict[str, Array], name: str, values: list[int]) -> dict[str, Array]:
    """Cartesian product of the rows so far with the values of one more dimension."""
    num_rows = len(next(iter(columns.values()))) if columns else 1
    crossed = {key: np.repeat(column, len(values)) for key, column in columns.items()}
    crossed[name] = np.tile(np.asarray(values, dtype=np.int64), num_rows)
    return crossed


def _apply(
    context: Context, rules: list[Rule], columns: dict[str, Array], dropped: dict[str, int]
) -> dict[str, Array]:
    for rule in rules:
        legal = rule.is_legal(context, columns)
        num_illegal = int(len(legal) - np.count_nonzero(legal))
        if num_illegal:
            dropped[rule.name] = dropped.get(rule.name, 0) + num_illegal
            columns = {name: column[legal] for name, column in columns.items()}
    return columns


def enumerate_space(
    context: Context,
    fixed: dict[str, list[int]] | None = None,
    *,
    uses_all: bool = False,
) -> Space:
    """Decide dimension after dimension; every rule is asked as soon as it can be.

    ``fixed`` replaces the values of some dimensions; ``uses_all`` leaves out layouts of a part of
    the cluster.
    """
    values = {**dimension_values(context), **(fixed or {})}
    columns: dict[str, Array] = {}
    dropped: dict[str, int] = {}
    pending = [*RULES, WHOLE_CLUSTER] if uses_all else list(RULES)
    for name, candidates in values.items():
        columns = _cross(columns, name, candidates)
        ready = [rule for rule in pending if set(rule.needs) <= columns.keys()]
        pending = [rule for rule in pending if rule not in ready]
        columns = _apply(context, ready, columns, dropped)
    num_micro_batches = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    sequence_parallel = (columns["tp"] > 1) & context.traits.support.sequence_parallel
    strategy = StrategyColumns(
        num_micro_batches=num_micro_batches,
        sequence_parallel=sequence_parallel.astype(np.int64),
        **columns,
    )
    return Space(
        strategy=strategy,
        num_configurations=len(strategy) + sum(dropped.values()),
        dropped=dropped,
    )
