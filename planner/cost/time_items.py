"""Iteration time by item: of the slowest stage, of all, and of chunks pass by pass."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.layer_time import COMM_ITEMS, TimeItems, add_items, all_exposed, scale_items
from planner.cost.overlap import straggler_slowdown
from planner.cost.pipeline import layer_weight_gradient_s, makespan_s
from planner.cost.stage_model import PricedStrategy
from planner.cost.stage_parts import Per
from planner.cost.step_terms import PER_ITERATION
from planner.cost.time_terms import SHARES, items_of, p2p_s, shown_alone
from planner.schedules.closed_form import chunk_layers, one_f_one_b_makespan_s
from planner.schedules.simulate import ChunkTimes, device_orders, num_chunks, simulate
from planner.spec.items import item
from planner.spec.strategy import V_SHAPED
from planner.units import Array

# By item of time.
Seconds = Mapping[str, float]
TRANSFER = "pipeline.p2p"
RECOMPUTE, COMPUTE, SHARDING = "recompute", "compute", "sharding"
PARAMETERS, ACTIVATIONS = "offload.parameters", "offload.activations"
# In the order in which they are drawn.
DRAWN = (RECOMPUTE, TRANSFER, SHARDING, PARAMETERS, ACTIVATIONS, COMPUTE, *COMM_ITEMS)


def step_end_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """:func:`step_terms.step_end_terms` of one stage: of two rows the larger sum."""
    items = items_of(subject.step_end, subject.numbers(stage), subject.parts.costs)
    return {
        name: replace(one, exposed_s=np.atleast_2d(one.exposed_s).max(axis=0))
        for name, one in items.items()
    }


@item(
    "time.pipeline",
    text="What pipelining costs the slowest stage. bubble + p2p: waiting for other stages, and "
    "transfers between stages that are not hidden.",
    inputs=(
        "strategy.pp",
        "strategy.vpp",
        "strategy.num_micro_batches",
    ),
    also=(one_f_one_b_makespan_s, p2p_s),
)
def _common_items(subject: PricedStrategy, seconds: Array) -> TimeItems:
    """What no stage has for itself; ``seconds``: of every stage per micro-batch."""
    columns, slowest_s = subject.columns, seconds.max(axis=1)
    filled_s = subject.model.bubble_filled_s
    makespan = makespan_s(columns, slowest_s, seconds.sum(axis=1), filled_s)
    # Seconds of the makespan in which the slowest stage works.
    computing = subject.strategy.num_micro_batches * slowest_s
    pace = straggler_slowdown(columns.num_gpus)
    bubble = (makespan - computing) / pace
    waiting = makespan * (1.0 - 1.0 / pace)
    return {
        "pipeline.bubble": shown_alone(bubble),
        "synchronisation": shown_alone(waiting),
    } | common_step_end_items(subject)


def common_step_end_items(subject: PricedStrategy) -> TimeItems:
    """Behind every stage's tail: what an iteration takes however layers are split."""
    return {name: all_exposed(price(subject.parts)) for name, price in PER_ITERATION.items()}


def _work_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """A stage's work on all micro-batches, by item."""
    items = items_of(subject.work, subject.numbers(stage), subject.parts.costs)
    return scale_items(items, float(subject.strategy.num_micro_batches))


def time_items(subject: PricedStrategy) -> tuple[TimeItems, int]:
    """Items of one iteration, whose exposed seconds sum to it, and the slowest stage."""
    seconds = subject.model.time_s(*subject.split)
    stage = int(seconds[0].argmax())
    tail = int(subject.model.step_end_s(subject.layers)[0].argmax())
    items = _work_items(subject, stage) | _common_items(subject, seconds)
    return items | step_end_items(subject, tail), stage


def stage_items(subject: PricedStrategy, stage: int) -> TimeItems:
    """One stage's own work of an iteration: its micro-batches and its tail, without waiting."""
    return _work_items(subject, stage) | step_end_items(subject, stage)


@item("time.pipeline.imbalance", title="waiting for the slowest stage")
def pipeline_items(subject: PricedStrategy) -> TimeItems:
    """Items of the mean stage, whose exposed seconds sum to the iteration with what waiting adds.

    ``Σ_i item_i / p`` over the p stages, and ``pipeline.imbalance``:
    ``m (max_i T_i - Σ_i T_i / p)`` and the same of the tails, what stages wait for the slowest one.
    So pipelines of any lengths can be compared: times p, items are seconds of the whole pipeline.
    """
    seconds = subject.model.time_s(*subject.split)
    num = subject.strategy.num_micro_batches
    tails = subject.model.step_end_s(subject.layers)
    pp, head = subject.strategy.pp, subject.strategy.head_stage
    split = np.vstack([subject.layers, subject.counts[:, 0, :]])
    # One stage of every kind, times the share of the stages that are of its kind.
    kinds = [(stage == 0, stage == head, *split[:, stage]) for stage in range(pp)]
    items: TimeItems = {}
    for kind in dict.fromkeys(kinds):
        each = stage_items(subject, kinds.index(kind))
        items = add_items(items, scale_items(each, kinds.count(kind) / pp))
    pace = straggler_slowdown(subject.columns.num_gpus)
    uneven = num * (seconds.max(axis=1) - seconds.mean(axis=1)) / pace
    uneven = uneven + tails.max(axis=1) - tails.mean(axis=1)
    items["pipeline.imbalance"] = shown_alone(uneven)
    return items | _common_items(subject, seconds)


@dataclass(frozen=True, kw_only=True)
class ChunkPasses:
    """Exposed seconds of a chunk and micro-batch, at the pace of the slowest accelerator."""

    stage: int
    forward: Seconds
    backward: Seconds  # Gradients of inputs, with what is recomputed before them
    weight: Seconds  # Gradients of weights


def chunk_stages(subject: PricedStrategy) -> list[int]:
    """The stage of every chunk: round robin, or down and up again."""
    strategy = subject.strategy
    chunks = num_chunks(strategy.schedule, strategy.pp, strategy.vpp)
    if strategy.schedule in V_SHAPED:
        return [min(chunk, chunks - 1 - chunk) for chunk in range(chunks)]
    return [chunk % strategy.pp for chunk in range(chunks)]


def chunk_numbers(subject: PricedStrategy) -> list[dict[Per, float]]:
    """:meth:`PricedStrategy.numbers` by chunk, each with its share of its stage's layers.

    Layers as :func:`chunk_layers` deals them out, equal shares in V-shaped schedules.
    """
    strategy, stages, found = subject.strategy, chunk_stages(subject), list[dict[Per, float]]()
    shares = np.full(len(stages), strategy.pp / len(stages))
    if strategy.vpp > 1 and strategy.schedule not in V_SHAPED:
        layers = np.array(chunk_layers(strategy.layers_per_stage, strategy.vpp), dtype=float)
        shares = layers / subject.layers[0, stages]
    for chunk, (stage, share) in enumerate(zip(stages, shares.tolist(), strict=True)):
        held = {per: number * share for per, number in subject.numbers(stage).items()}
        once = 1.0 / stages.count(stage)
        held |= {"first": 1.0 * (chunk == 0), "last": 1.0 * (chunk == len(stages) - 1)}
        found.append(held | {"stage": once, "offloading": once * (held["offloaded"] > 0)})
    return found


def _kind(address: str) -> str:
    """Name under which a pass draws an item: of some groups the group's, else its own."""
    head = address.partition(".")[0]
    return head if head in (RECOMPUTE, COMPUTE, SHARDING) else address


def chunk_passes(subject: PricedStrategy) -> tuple[ChunkPasses, ...]:
    """Seconds of every chunk by pass and item; a stage's chunks sum to ``StageModel.time_s``.

    W is the layers' weight gradients, B the rest of backward, with what is recomputed. Embedding
    and head stand on the first and the last chunk, a third of their kernels each in F, B and W,
    their collectives in the pass that has them.
    What a stage has once per micro-batch (transfers, prefetch) is spread over chunks and passes.
    """
    pace = float(straggler_slowdown(subject.columns.num_gpus)[0])
    weight_s = pace * float(layer_weight_gradient_s(subject.context, subject.columns)[0])
    each = [
        (term, _kind(address), pace * float(one.exposed_s[0]))
        for term in subject.work
        for address, one in term.items_at(subject.parts.costs).items()
    ]
    found = []
    for stage, held in zip(chunk_stages(subject), chunk_numbers(subject), strict=True):
        forward, backward, weight = (dict.fromkeys(DRAWN, 0.0) for _ in range(3))
        for term, kind, seconds in each:
            for total, part in zip((forward, backward, weight), SHARES[term.passes], strict=True):
                total[kind] += held[term.per] * part * seconds
        backward[COMPUTE] -= held["layer"] * weight_s
        weight[COMPUTE] += held["layer"] * weight_s
        found.append(ChunkPasses(stage=stage, forward=forward, backward=backward, weight=weight))
    return tuple(found)


def chunk_times(subject: PricedStrategy) -> ChunkTimes:
    """Seconds of every chunk (:func:`chunk_passes`); a transfer is one boundary's crossing.

    Transfers occupy nobody here: they delay who waits for them.
    """

    def computing(items: Seconds) -> float:
        return sum(items.values()) - items.get(TRANSFER, 0.0)

    passes, crossings = chunk_passes(subject), 2.0 * subject.strategy.vpp
    return ChunkTimes(
        forward_s=[computing(each.forward) for each in passes],
        backward_s=[computing(each.backward) for each in passes],
        weight_s=[computing(each.weight) for each in passes],
        p2p_s=float(p2p_s(subject.parts)[0]) / crossings,
    )


def simulated_makespan_s(subject: PricedStrategy) -> float:
    """Seconds from the first forward to the last backward, from the schedule's own order.

    Where the optimizer does not wait for all stages, the longest a stage needs. Unlike the closed
    form it knows which stage is slow and how long its forward is, and transfers delay only who
    waits for them. Excludes what sending and receiving cost the sender.
    """
    strategy = subject.strategy
    orders = device_orders(strategy.schedule, strategy.pp, strategy.num_micro_batches, strategy.vpp)
    run = simulate(orders, chunk_times(subject))
    in_step = subject.context.traits.overlap.optimizer_waits_for_all_stages
    return run.makespan_s if in_step else run.span_s
