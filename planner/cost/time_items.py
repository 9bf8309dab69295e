"""Iteration time by item: a stage's work, the bubble, the tail; of the slowest stage or of all."""

from dataclasses import replace

import numpy as np

from planner.cost.layer_time import TimeItems, add_items, all_exposed, scale_items
from planner.cost.pipeline import makespan_s
from planner.cost.stage_model import PricedStrategy
from planner.cost.step_terms import PER_ITERATION
from planner.cost.time_terms import items_of, p2p_s, shown_alone, straggler_factor
from planner.schedules.closed_form import one_f_one_b_makespan_s
from planner.spec.items import item
from planner.units import Array


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
    inputs=("strategy.pp", "strategy.vpp", "strategy.num_micro_batches"),
    also=(one_f_one_b_makespan_s, p2p_s),
)
def _common_items(subject: PricedStrategy, seconds: Array) -> TimeItems:
    """What no stage has for itself; ``seconds``: of every stage per micro-batch."""
    columns, slowest_s = subject.columns, seconds.max(axis=1)
    filled_s = subject.model.bubble_filled_s
    makespan = makespan_s(columns, slowest_s, seconds.sum(axis=1), filled_s)
    # Seconds of the makespan in which the slowest stage works.
    computing = subject.strategy.num_micro_batches * slowest_s
    pace = straggler_factor(subject.context, columns)
    bubble, waiting = (makespan - computing) / pace, makespan * (1.0 - 1.0 / pace)
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
    seconds, num = subject.model.time_s(*subject.split), subject.strategy.num_micro_batches
    tails = subject.model.step_end_s(subject.layers)
    pp, head = subject.strategy.pp, subject.strategy.head_stage
    split = np.vstack([subject.layers, subject.counts[:, 0, :]])
    # One stage of every kind, times the share of the stages that are of its kind.
    kinds = [(stage == 0, stage == head, *split[:, stage]) for stage in range(pp)]
    items: TimeItems = {}
    for kind in dict.fromkeys(kinds):
        each = stage_items(subject, kinds.index(kind))
        items = add_items(items, scale_items(each, kinds.count(kind) / pp))
    pace = straggler_factor(subject.context, subject.columns)
    uneven = num * (seconds.max(axis=1) - seconds.mean(axis=1)) / pace
    uneven = uneven + tails.max(axis=1) - tails.mean(axis=1)
    items["pipeline.imbalance"] = shown_alone(uneven)
    return items | _common_items(subject, seconds)
