"""One strategy's pipeline by event simulation, beside the closed form."""

from planner.cost.build import link_seconds
from planner.cost.passes import TRANSFER, Seconds, chunk_passes
from planner.cost.subject import Subject
from planner.schedules.simulate import ChunkTimes, device_orders, simulate


def _work_s(seconds: Seconds) -> float:
    return sum(seconds.values()) - seconds.get(TRANSFER, 0.0)


def chunk_times(subject: Subject) -> ChunkTimes:
    """Seconds of every chunk (:func:`passes.chunk_passes`); a transfer is one boundary's crossing.

    Transfers occupy nobody here: they delay who waits for them.
    """
    passes = chunk_passes(subject)
    crossings = 2.0 * subject.strategy.vpp
    return ChunkTimes(
        forward_s=[_work_s(each.forward) for each in passes],
        backward_s=[_work_s(each.backward) for each in passes],
        weight_s=[_work_s(each.weight) for each in passes],
        p2p_s=float(link_seconds(subject.context, subject.columns, subject.parts)[0]) / crossings,
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
