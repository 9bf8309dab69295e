"""Work of a chunk of layers on a micro-batch, pass by pass and item by item."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.layer import EndCosts
from planner.cost.layer_passes import layer_times
from planner.cost.layer_time import COMM_ITEMS, TimeItems, comm_items
from planner.cost.pipeline import layer_weight_gradient_s
from planner.cost.stage import FULL, OFFLOADED, SELECTIVE
from planner.cost.stage_model import PricedStrategy
from planner.cost.time_terms import exposed_p2p_s, p2p_s, straggler_factor
from planner.schedules.closed_form import chunk_layers
from planner.schedules.simulate import ChunkTimes, device_orders, num_chunks, simulate
from planner.spec.strategy import V_SHAPED
from planner.units import Array

# By item of time; in the order in which they are drawn.
Seconds = Mapping[str, float]
TRANSFER = "pipeline.p2p"
RECOMPUTE, COMPUTE, SHARDING = "recompute", "compute", "sharding"
PARAMETERS, ACTIVATIONS = "offload.parameters", "offload.activations"


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


def _pass(
    subject: PricedStrategy, items: TimeItems, sharded: Array, whole: Array
) -> dict[str, float]:
    """A layer's pass: kernels, collectives, and what gathers and host transfers add."""
    priced = subject.parts.costs.items_at(items)
    exposed = {name: float(one.exposed_s[0]) for name, one in priced.items()}
    total = sum(exposed.values())
    comms = {name: seconds for name, seconds in exposed.items() if name in COMM_ITEMS}
    return {
        SHARDING: float(sharded[0]) - total,
        PARAMETERS: float(whole[0] - sharded[0]),
        COMPUTE: total - sum(comms.values()),
        **comms,
    }


def _ends(
    subject: PricedStrategy, pace: float, chunk: int, last: int
) -> tuple[float, float, tuple[Seconds, Seconds]]:
    """Seconds of embedding and head on a chunk.

    Of their kernels; of gathers and reductions of their weights and gradients; of their collectives
    in forward and backward, by item.
    """
    costs, kernels, exchange = subject.parts.costs, 0.0, 0.0
    comms: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for name, is_here in (("first", chunk == 0), ("last", chunk == last)):
        if not is_here:
            continue
        gathers = pace * float(subject.parts.end_exchange_s(name)[0])  # type: ignore[arg-type]
        kernels += float(getattr(subject.model, f"{name}_s")[0]) - gathers
        exchange += gathers
        end: EndCosts = getattr(costs, name)
        for found, items in zip(comms, (end.forward, end.backward), strict=True):
            for item, one in costs.items_at(comm_items(items)).items():
                seconds = pace * float(one.exposed_s[0])
                found[item] = found.get(item, 0.0) + seconds
                kernels -= seconds
    return kernels, exchange, comms


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
    times = layer_times(subject.parts)
    costs = subject.parts.costs
    weight_s = float(layer_weight_gradient_s(subject.context, subject.columns)[0])
    forward = _pass(subject, costs.forward, times.sharded_forward, times.forward)
    backward = _pass(subject, costs.backward, times.sharded_backward, times.backward)
    backward[COMPUTE] -= weight_s
    pace = float(straggler_factor(subject.context, subject.columns)[0])
    policies = subject.model.policies
    policy_s = policies.added_s[:, 0]
    link_s = p2p_s(subject.parts)
    link = exposed_p2p_s(subject.parts, times, link_s)
    found = []
    for chunk, (stage, share) in enumerate(zip(stages, shares.tolist(), strict=True)):
        layers = pace * float(subject.layers[0, stage]) * share
        counts = subject.counts[:, 0, stage] * share
        kernels_s, exchange_s, comms = _ends(subject, pace, chunk, len(stages) - 1)
        moved = float(counts[OFFLOADED] * policy_s[OFFLOADED]) / 2.0
        again = counts[[SELECTIVE, FULL]] @ policy_s[[SELECTIVE, FULL]]
        # What a stage adds to a micro-batch whatever its layers, half of it in either pass.
        fill = (subject.counts[OFFLOADED, 0, stage] > 0) * policies.fill_s[OFFLOADED, 0]
        once = {
            TRANSFER: pace * float(link[0]) / 2.0,
            SHARDING: pace * float(times.sharding_fill[0]) / 2.0,
            PARAMETERS: pace * float(times.offload_fill[0]) / 2.0,
            ACTIVATIONS: float(fill) / 2.0,
        }
        base = {name: seconds / stages.count(stage) for name, seconds in once.items()}
        base[SHARDING] += exchange_s / 2.0
        base[ACTIVATIONS] += moved
        both = []
        for own, added in zip((forward, backward), comms, strict=True):
            parts = (base, {name: layers * value for name, value in own.items()}, added)
            names = dict.fromkeys(name for part in parts for name in part)
            each = {name: sum(part.get(name, 0.0) for part in parts) for name in names}
            each[COMPUTE] += kernels_s / 3.0
            both.append(each)
        found.append(
            ChunkPasses(
                stage=stage,
                forward=both[0],
                backward={RECOMPUTE: float(again), **both[1]},
                weight={COMPUTE: layers * weight_s + kernels_s / 3.0},
            )
        )
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
