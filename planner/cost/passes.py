"""Work of a chunk of layers on a micro-batch, pass by pass and item by item."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.layer_time import COMM_ITEMS
from planner.cost.pipeline import layer_weight_gradient_s
from planner.cost.stage_model import PricedStrategy
from planner.cost.time_terms import p2p_s, straggler_factor
from planner.schedules.closed_form import chunk_layers
from planner.schedules.simulate import ChunkTimes, device_orders, num_chunks, simulate
from planner.spec.strategy import V_SHAPED
from planner.units import Array

# By item of time.
Seconds = Mapping[str, float]
TRANSFER = "pipeline.p2p"
RECOMPUTE, COMPUTE, SHARDING = "recompute", "compute", "sharding"
PARAMETERS, ACTIVATIONS = "offload.parameters", "offload.activations"
# In the order in which they are drawn.
DRAWN = (RECOMPUTE, TRANSFER, SHARDING, PARAMETERS, ACTIVATIONS, COMPUTE, *COMM_ITEMS)


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


def chunk_shares(subject: PricedStrategy, stages: list[int]) -> Array:
    """Return the share of its stage's layers that each chunk has."""
    strategy, chunks = subject.strategy, len(stages)
    if strategy.vpp == 1 or strategy.schedule in V_SHAPED:
        return np.full(chunks, strategy.pp / chunks)
    layers = np.array(chunk_layers(strategy.layers_per_stage, strategy.vpp), dtype=float)
    return layers / subject.layers[0, stages]


def _kind(address: str) -> str:
    """What an item of time counts as in a pass."""
    head = address.partition(".")[0]
    return head if head in (RECOMPUTE, COMPUTE, SHARDING) else address


def chunk_passes(subject: PricedStrategy) -> tuple[ChunkPasses, ...]:
    """Seconds of every chunk by pass and item; a stage's chunks sum to ``StageModel.time_s``.

    Layers as :func:`chunk_layers` deals them out, equal shares in V-shaped schedules.
    W is the layers' weight gradients, B the rest of backward, with what is recomputed. Embedding
    and head stand on the first and the last chunk, a third of their kernels each in F, B and W,
    their collectives in the pass that has them.
    What a stage has once per micro-batch (transfers, prefetch that nothing hides) is spread evenly
    over its chunks and both passes.
    """
    stages = chunk_stages(subject)
    shares = chunk_shares(subject, stages)
    pace = float(straggler_factor(subject.context, subject.columns)[0])
    weight_s = pace * float(layer_weight_gradient_s(subject.context, subject.columns)[0])
    each = [
        (term, _kind(address), pace * float(one.exposed_s[0]))
        for term in subject.work
        for address, one in term.items_at(subject.parts.costs).items()
    ]
    found = []
    for chunk, (stage, share) in enumerate(zip(stages, shares.tolist(), strict=True)):
        held = {per: number * share for per, number in subject.numbers(stage).items()}
        once = 1.0 / stages.count(stage)
        held |= {"first": 1.0 * (chunk == 0), "last": 1.0 * (chunk == len(stages) - 1)}
        held |= {"stage": once, "offloading": once * (held["offloaded"] > 0)}
        forward, backward, weight = (dict.fromkeys(DRAWN, 0.0) for _ in range(3))
        for term, kind, seconds in each:
            for total, part in zip((forward, backward, weight), term.passes, strict=True):
                total[kind] += held[term.per] * part * seconds
        backward[COMPUTE] -= held["layer"] * weight_s
        weight[COMPUTE] += held["layer"] * weight_s
        found.append(ChunkPasses(stage=stage, forward=forward, backward=backward, weight=weight))
    return tuple(found)


def chunk_times(subject: PricedStrategy) -> ChunkTimes:
    """Seconds of every chunk (:func:`passes.chunk_passes`); a transfer is one boundary's crossing.

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
