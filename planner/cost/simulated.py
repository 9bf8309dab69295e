"""One strategy's pipeline by event simulation, beside the closed form."""

import numpy as np

from planner.cost.build import layer_times, link_seconds, slowest_pace
from planner.cost.subject import Subject
from planner.cost.weight_gradient import layer_weight_gradient_s
from planner.schedules.orders import device_orders, num_chunks
from planner.schedules.simulate import ChunkTimes, simulate
from planner.spec.strategy import V_SHAPED


def _stage_of(subject: Subject, chunks: int) -> list[int]:
    """The stage of every chunk: round robin, or down and up again."""
    if subject.strategy.schedule in V_SHAPED:
        return [min(chunk, chunks - 1 - chunk) for chunk in range(chunks)]
    return [chunk % subject.strategy.pp for chunk in range(chunks)]


def chunk_times(subject: Subject) -> ChunkTimes:
    """Seconds of every chunk: an equal share of its stage's layers and recomputation.

    F is the layers' forward, W their weight gradients, B the rest of backward, with what is
    recomputed, all at the pace of the slowest accelerator. Embedding and head stand on the first
    and the last chunk, a third of their time each in F, B and W. A transfer is one crossing of a
    boundary.
    """
    strategy, parts, model = subject.strategy, subject.parts, subject.model
    chunks = num_chunks(strategy.schedule, strategy.pp, strategy.vpp)
    stage, share = _stage_of(subject, chunks), strategy.pp / chunks
    times = layer_times(subject.context, subject.columns, parts)
    layers, selective, full = (values[0, stage] * share for values in subject.split)
    pace = slowest_pace(subject.context, subject.columns)
    weight = pace * layer_weight_gradient_s(subject.context, subject.columns)
    forward, backward = pace * times.forward, pace * times.backward - weight
    redo = selective * model.selective_s + full * model.full_s
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
