"""One iteration slice by slice: what every pipeline stage does when, up to the estimate's time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.estimate import NEGLIGIBLE_FRACTION
from planner.cost.layer_time import TimeItems
from planner.cost.ledger import StageLedger
from planner.cost.stage_model import PricedStrategy, iteration_time_s
from planner.cost.time_items import (
    ChunkPasses,
    Seconds,
    chunk_passes,
    common_step_end_items,
    step_end_items,
)
from planner.schedules.closed_form import Slot
from planner.schedules.simulate import ChunkTimes, device_orders, simulate

WAIT = "wait"
# Kinds of slices of the pipeline; a whole backward is (B, W), and named by its first.
PASSES = {"F": "forward", "B": "backward", "W": "weight gradient"}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One stage does one thing: a pass of a micro-batch, an item of the tail, or waiting."""

    start_s: float
    end_s: float
    kind: str  # one of PASSES, ``forward and backward``, WAIT, or an item of time
    seconds: Seconds  # Seconds of a pass by item; they sum to its length
    slot: Slot = ()  # Operations of the schedule; none outside the pipeline


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Every stage's slices, one behind the other; they sum to the iteration."""

    iteration_s: float
    stages: tuple[tuple[Slice, ...], ...]
    simulated_s: float  # the pipeline by event simulation
    modelled_s: float
    """Seconds by the closed form of the estimate. If it is longer than the simulation, stages wait
    at its end; if shorter, slices are that much shorter too."""


def _seconds(slot: Slot, passes: Sequence[ChunkPasses], scale: float) -> dict[str, float]:
    """Return the seconds of a slot by item, without items that take no time."""
    total: dict[str, float] = {}
    for kind, chunk, _ in slot:
        own = {"F": passes[chunk].forward, "B": passes[chunk].backward, "W": passes[chunk].weight}
        for name, seconds in own[kind].items():
            total[name] = total.get(name, 0.0) + scale * seconds
    return _worth_a_slice(total, sum(total.values()))


def _worth_a_slice(items: Seconds, whole_s: float) -> dict[str, float]:
    """Return the items without rounding errors of differences."""
    least_s = NEGLIGIBLE_FRACTION * whole_s
    return {name: seconds for name, seconds in items.items() if seconds > least_s}


def _exposed(items: TimeItems, whole_s: float) -> dict[str, float]:
    return _worth_a_slice({name: float(one.exposed_s[0]) for name, one in items.items()}, whole_s)


def _in_turn(start_s: float, items: Seconds) -> Iterator[Slice]:
    """Yield one slice per item, one after the other."""
    for name, seconds in items.items():
        end = start_s + seconds
        yield Slice(start_s=start_s, end_s=end, kind=name, seconds={name: seconds})
        start_s = end


def _with_waits(start_s: float, end_s: float, slices: Sequence[Slice]) -> Iterator[Slice]:
    """The slices from start to end, with waiting where nothing is done."""
    now, rounding_s = start_s, 1e-12 * end_s
    for each in slices:
        if each.start_s > now + rounding_s:
            yield Slice(start_s=now, end_s=each.start_s, kind=WAIT, seconds={})
        yield each
        now = each.end_s
    if end_s > now + rounding_s:
        yield Slice(start_s=now, end_s=end_s, kind=WAIT, seconds={})


def timeline(subject: PricedStrategy) -> Timeline:
    """The schedule's event simulation with every stage's tail behind it.

    Transfers that show hold up the stage that waits for them; those that hide take no time. The
    tail follows when the pipeline is done, as in :meth:`StageModel.iteration_s`, then what is the
    same for all stages. Where the optimizer does not wait for all stages, each has its own
    iteration from its first forward on. Excludes gradient reduction beside the last backward.
    """
    strategy, context = subject.strategy, subject.context
    passes = chunk_passes(subject)
    orders = device_orders(strategy.schedule, strategy.pp, strategy.num_micro_batches, strategy.vpp)
    run = simulate(
        orders,
        ChunkTimes(
            forward_s=[sum(each.forward.values()) for each in passes],
            backward_s=[sum(each.backward.values()) for each in passes],
            weight_s=[sum(each.weight.values()) for each in passes],
        ),
    )
    in_step = context.traits.overlap.optimizer_waits_for_all_stages
    tail_s = float(subject.model.step_end_s(subject.layers).max())
    iteration_s = iteration_time_s(subject)
    modelled_s = iteration_s - tail_s - float(subject.model.constant_s[0])
    simulated_s = run.makespan_s if in_step else run.span_s
    scale = min(1.0, modelled_s / simulated_s)
    common = _exposed(common_step_end_items(subject), iteration_s)
    stages = []
    for stage, ran in enumerate(run.runs):
        begin = 0.0 if in_step else scale * ran[0][0]
        own = []
        for start, end, slot in ran:
            kinds = [operation.kind for operation in slot]
            both = "F" in kinds and "B" in kinds
            own.append(
                Slice(
                    start_s=scale * start,
                    end_s=scale * end,
                    kind="forward and backward" if both else PASSES[kinds[0]],
                    seconds=_seconds(slot, passes, scale),
                    slot=slot,
                )
            )
        own += _in_turn(begin + modelled_s, _exposed(step_end_items(subject, stage), iteration_s))
        own += _in_turn(begin + modelled_s + tail_s, common)
        stages.append(tuple(_with_waits(begin, begin + iteration_s, own)))
    return Timeline(
        iteration_s=iteration_s,
        stages=tuple(stages),
        simulated_s=simulated_s,
        modelled_s=modelled_s,
    )


ACTIVATIONS, TRANSIENT, REST = "activations", "transient", "buffers and overhead"
OUTPUTS = "outputs kept"
# Groups of items that are always there, by the first word of the ledger's names; others: REST.
STATES = {
    "weights": "weights",
    "frozen_weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
}
GROUPS = (*dict.fromkeys(STATES.values()), REST, OUTPUTS, ACTIVATIONS, TRANSIENT)


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """Bytes of one rank of a stage, by group, from each moment to the next."""

    stage: int
    times_s: tuple[float, ...]  # Times at which something changes; the last is the iteration's end
    bytes_by_group: dict[str, tuple[float, ...]]
    """Bytes by group of GROUPS; one value for every time but the last."""

    @property
    def total_bytes(self) -> tuple[float, ...]:
        """All groups together."""
        return tuple(map(sum, zip(*self.bytes_by_group.values(), strict=True)))


def memory_curve(ledger: StageLedger, slices: Sequence[Slice], *, keeps_sent: bool) -> MemoryCurve:
    """The ledger of a stage's fullest moment, spread over its slices.

    Activations: ``bytes · held / most held``, held chunks being those whose forward began and
    whose weight gradient has not ended; transients while a backward runs; all else is there
    throughout, freed blocks that the allocator keeps with it. With ``keeps_sent`` logits and what
    was sent on gather up to the fullest moment and stay to the last backward. So the highest point
    is the ledger's peak. Chunks are taken to keep the same.
    """
    groups = dict.fromkeys(GROUPS, 0.0)
    for item in ledger.items:
        head = item.name.partition(".")[0]
        group = head if head in (ACTIVATIONS, TRANSIENT) else STATES.get(head, REST)
        # What some pipelines keep of every micro-batch to the end is a group of its own.
        if keeps_sent and item.name in ("activations.sent_on", "kept_logits"):
            group = OUTPUTS
        groups[group] += item.num_bytes
    kinds = [[operation.kind for operation in each.slot] for each in slices]
    in_backward = np.array(["B" in kind for kind in kinds])
    begun = np.cumsum([kind.count("F") for kind in kinds])
    ended = np.array([kind.count("W") for kind in kinds])
    # A chunk is held until its weight gradient ends, that slice included.
    held = begun - np.cumsum(ended) + ended
    most_held = max(held.max(initial=0), 1)
    fullest = begun[(held == most_held) & in_backward].max(initial=1)
    # Outputs are let go behind the last slice of the pipeline.
    is_pipeline = np.cumsum([bool(each.slot) for each in slices[::-1]])[::-1] > 0
    share = {
        ACTIVATIONS: held / most_held,
        OUTPUTS: is_pipeline * np.minimum(begun / fullest, 1.0),
        TRANSIENT: in_backward * 1.0,
    }
    every = np.ones(len(slices))
    return MemoryCurve(
        stage=ledger.stage,
        times_s=(*(each.start_s for each in slices), slices[-1].end_s),
        bytes_by_group={
            name: tuple((num_bytes * share.get(name, every)).tolist())
            for name, num_bytes in groups.items()
        },
    )
