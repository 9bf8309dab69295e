"""One strategy's pipeline by event simulation, beside the closed form."""

import numpy as np

from planner.cost.build import link_seconds, slowest_pace
from planner.cost.layer_times import layer_times
from planner.cost.subject import Subject
from planner.cost.weight_gradient import layer_weight_gradient_s
from planner.schedules.interleaved import chunk_layers
from planner.schedules.orders import device_orders, num_chunks
from planner.schedules.simulate import ChunkTimes, simulate
from planner.spec.strategy import V_SHAPED
from planner.units import Array


def _stage_of(subject: Subject, chunks: int) -> list[int]:
    """The stage of every chunk: round robin, or down and up again."""
    if subject.strategy.schedule in V_SHAPED:
        return [min(chunk, chunks - 1 - chunk) for chunk in range(chunks)]
    return [chunk % subject.strategy.pp for chunk in range(chunks)]


def _shares(subject: Subject, chunks: int) -> Array:
    """Of its stage's layers, how many each chunk holds."""
    strategy = subject.strategy
    if strategy.vpp == 1 or strategy.schedule in V_SHAPED:
        return np.full(chunks, strategy.pp / chunks)
    layers = np.array(chunk_layers(strategy.layers_per_stage, strategy.vpp), dtype=float)
    return layers / subject.layers[0, _stage_of(subject, chunks)]


def chunk_times(subject: Subject) -> ChunkTimes:
    """Seconds of every chunk: its layers, and their share of what its stage recomputes.

    Layers as :func:`interleaved.chunk_layers` deals them out, equal shares in V-shaped schedules.
    F is the layers' forward, W their weight gradients, B the rest of backward, with what is
    recomputed, all at the pace of the slowest accelerator. Embedding and head stand on the first
    and the last chunk, a third of their time each in F, B and W. A transfer is one crossing of a
    boundary.
    """
    strategy, parts, model = subject.strategy, subject.parts, subject.model
    chunks = num_chunks(strategy.schedule, strategy.pp, strategy.vpp)
    stage, share = _stage_of(subject, chunks), _shares(subject, chunks)
    times = layer_times(subject.context, subject.columns, parts)
    layers, counts = subject.layers[0, stage] * share, subject.counts[:, 0, stage] * share
    pace = slowest_pace(subject.context, subject.columns)
    weight = pace * layer_weight_gradient_s(subject.context, subject.columns)
    forward, backward = pace * times.forward, pace * times.backward - weight
    redo = (counts * model.policies.added_s).sum(axis=0)
    ends = np.zeros(chunks)
    ends[0] += model.first_s[0] / 3.0
    ends[-1] += model.last_s[0] / 3.0
    crossings = 2.0 * strategy.vpp
    return ChunkTimes(
        forward_s=(layers * forward + ends).tolist(),
        backward_s=(layers * backward + redo + ends).tolist(),
        weight_s=(layers * weight + ends).tolist(),
        p2p_s=float(link_seconds(subject.context, subject.columns, parts)[0]) / crossings,
    )


def simulated_makespan_s(subject: Subject) -> float:
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
