"""The largest micro-batch and the longest sequence: against every value asked one by one."""

from dataclasses import replace
from typing import Any

import pytest

from planner.answers.base import Deadline
from planner.answers.conflict import HBM, HOST
from planner.answers.largest import (
    BATCH,
    MICRO_BATCH,
    SEQUENCE,
    STEPS_PER_DOUBLING,
    LargestAnswer,
    largest,
)
from planner.query.query import Query
from planner.query.resolve import Case, resolve
from planner.search.feasible import first_feasible
from planner.search.space.narrow import narrowing_of

LAYOUT = ("tp=2", "pp=1", "dp=1", "cp=1", "recompute=none", "offload=none")


PRIME = 17  # a batch that only micro-batches of one sequence divide, or of all


def answered(*fix: str, has_batch: bool = False, **options: object) -> LargestAnswer:
    told: Any = {"cluster": "2xa100-40", "forbid": ("offload",), **options}
    asked = resolve(Query.of("gpt3-xl", fix=fix, **told))
    case = Case(contexts=asked.contexts, narrowing=asked.narrowing)
    return largest(case, has_batch=has_batch, keeps_margin=False)


def fits(answer: LargestAnswer, micro_batch: int, seq_len: int) -> bool:
    """Whether any layout holds so much, by a search of its own."""
    context = answer.case.context
    batch = micro_batch * context.cluster.num_accelerators * 4
    job = replace(context.job, global_batch=batch, seq_len=seq_len)
    texts = (*answer.case.narrowing.texts, f"--fix micro_batch={micro_batch}")
    return first_feasible(replace(context, job=job), narrowing_of(texts)) is not None


@pytest.mark.parametrize("fix", [LAYOUT, ("tp=2", "pp=1", "recompute=full"), ()])
def test_the_value_fits_and_the_next_one_does_not(fix: tuple[str, ...]) -> None:
    answer = answered(*fix)
    batch, length = answer.found
    assert (batch.quantity, length.quantity) == (MICRO_BATCH, SEQUENCE)
    for one in (batch, length):
        assert one.beyond is not None
        assert one.value < one.beyond <= one.value * (1.0 + 1.0 / STEPS_PER_DOUBLING) + 1
        assert one.binds == (HBM,)
        assert one.plan.estimate.memory.fits
    assert fits(answer, batch.value, batch.fixed)
    assert not fits(answer, batch.beyond or 0, batch.fixed)
    assert fits(answer, length.fixed, length.value)
    assert not fits(answer, length.fixed, length.beyond or 0)


def test_a_batch_that_is_given_binds_where_it_divides_into_less() -> None:
    free = answered(*LAYOUT).found[0].value
    assert free < PRIME
    found = answered(*LAYOUT, has_batch=True, global_batch=PRIME).found[0]
    assert (found.value, found.beyond) == (1, free)
    assert found.binds == (BATCH,)
    divided = answered(*LAYOUT, has_batch=True, global_batch=3 * free).found[0]
    assert divided.value == free
    assert divided.binds == (HBM,)


def test_a_fixed_micro_batch_leaves_the_sequence_alone_to_be_found() -> None:
    (one,) = answered(*LAYOUT, "micro_batch=2").found
    alone = answered(*LAYOUT).found[1]
    assert (one.quantity, one.fixed) == (SEQUENCE, 2)
    assert one.value < alone.value


def test_offloading_is_told_apart_where_it_allows_more() -> None:
    fix = ("tp=1", "pp=1", "cp=1")
    both = answered(*fix, framework="deepspeed", forbid=()).found[0]
    assert both.value > both.resident.value > 0
    assert both.plan.strategy.offload != "none"
    alone = answered(*fix, framework="deepspeed").found[0]
    assert (alone.value, alone.beyond) == (both.resident.value, both.resident.beyond)


def test_odd_degrees_get_lengths_that_they_divide() -> None:
    found = answered("cp=3", "tp=1", "pp=1", cluster="3xa100-40").found[-1]
    assert found.value > 0
    assert found.value % 3 == 0


def test_host_memory_binds_where_more_of_it_would_do() -> None:
    fix = ("tp=1", "pp=1", "dp=1", "offload=optimizer:host")
    place = {"cluster": "1xa100-40@4GiB", "framework": "deepspeed", "forbid": ()}
    found = answered(*fix, **place).found[0]
    assert found.value == 0
    assert found.binds == (HOST,)


def test_time_that_is_over_leaves_at_least_what_was_found() -> None:
    asked = resolve(Query.of("gpt3-xl", "2xa100-40"))
    answer = largest(
        Case(contexts=asked.contexts), has_batch=False, keeps_margin=False, deadline=Deadline(0.0)
    )
    assert all(one.is_cut for one in answer.found)
    assert not any(one.value for one in answer.found)
