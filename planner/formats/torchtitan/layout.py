"""Which layers a pipeline stage holds, and the names of schedules.

Sources: torchtitan/distributed/pipeline_parallel.py, torch/distributed/pipelining/schedules.py.
"""

import re
from collections.abc import Sequence

from planner.schedules.interleaved import chunk_layers
from planner.spec.strategy import V_SHAPED, Strategy

INTERLEAVED = "Interleaved1F1B"
SCHEDULE_NAMES = {
    "1f1b": "1F1B",
    "interleaved": INTERLEAVED,
    "gpipe": "GPipe",
    "zb-interleaved": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""By the planner's name; interleaved is 1f1b with several chunks per stage."""
OTHER_SCHEDULES = ("LoopedBFS", "PipelineScheduleSingle", "PipelineScheduleMulti")
SINGLE = ("1f1b", "gpipe")
"""Schedules with one chunk per stage."""
MAX_PARTS = 100_000


def schedule_named(name: str) -> str:
    """The planner's name of a schedule; ``other``: torch has it, empty: there is none."""
    by_name = {theirs.lower(): ours for ours, theirs in SCHEDULE_NAMES.items()}
    others = {theirs.lower(): "other" for theirs in OTHER_SCHEDULES}
    return {**others, **by_name}.get(name.lower(), "")


def schedule_of(strategy: Strategy) -> str:
    """The name torch has for a strategy's schedule; KeyError where it has none."""
    is_interleaved = strategy.schedule == "1f1b" and strategy.vpp > 1
    return SCHEDULE_NAMES["interleaved" if is_interleaved else strategy.schedule]


def parts_of(strategy: Strategy) -> list[list[str]]:
    """Names of the modules of every model part, from embedding to head."""
    counts = _chunk_counts(strategy)
    last = len(counts) - 1
    parts: list[list[str]] = []
    first = 0
    for index, count in enumerate(counts):
        layers = [f"layers.{layer}" for layer in range(first, first + count)]
        embedding = ["tok_embeddings"] if index == 0 else []
        parts.append([*embedding, *layers, *(["norm", "lm_head"] if index == last else [])])
        first += count
    return parts


def _chunk_counts(strategy: Strategy) -> Sequence[int]:
    if strategy.vpp == 1:
        return strategy.layers_per_stage
    if strategy.schedule in V_SHAPED:
        halves = [layers // 2 for layers in strategy.layers_per_stage]
        return [*halves, *reversed(halves)]
    return chunk_layers(strategy.layers_per_stage, strategy.vpp)


def layers_in(part: Sequence[str]) -> list[int]:
    """Numbers of the layers that a model part names."""
    matches = (re.fullmatch(r"layers\.(\d{1,6})", name, re.ASCII) for name in part)
    return [int(match[1]) for match in matches if match]


def per_rank(counts: Sequence[int], pp: int, schedule: str) -> tuple[int, ...]:
    """Layers of every pipeline rank, from those of every model part."""
    num_parts = len(counts)
    if schedule in V_SHAPED:
        return tuple(counts[rank] + counts[num_parts - 1 - rank] for rank in range(pp))
    return tuple(sum(counts[rank::pp]) for rank in range(pp))


def num_parts(
    num_layers: int, pp: int, schedule: str, per_part: int | None, first: int, last: int
) -> int:
    """How many model parts torchtitan makes where they are not listed."""
    if per_part:
        return -(-(num_layers + first + last) // per_part)
    return pp if schedule in SINGLE else 2 * pp


def default_counts(num_layers: int, parts: int, first: int, last: int) -> list[int] | None:
    """Layers of every part where they are not listed; None where torchtitan refuses them.

    The embedding weighs as much as ``first`` layers, the head as ``last``.
    """
    if not 1 <= parts <= MAX_PARTS:
        return None
    base, extra = divmod(num_layers + first + last, parts)
    if parts == 1:
        return [num_layers]
    if base == 0 or max(first, last) > base:
        return None
    weights = [first, *([0] * (parts - 2)), last]
    wanted = [base + (i < extra) - weight for i, weight in enumerate(weights)]
    return wanted if sum(wanted) == num_layers and min(wanted) >= 0 else None
