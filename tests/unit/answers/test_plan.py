"""Plans inside the margin appear only where nothing else fits, and say so."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from planner.answers.base import Answer
from planner.answers.plan import answer, answered, respecting_margin
from planner.cost.context import Context
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.search import headroom_gib, search, with_headroom
from planner.units import GIB

MARGIN = 0.4


@pytest.fixture
def question(context_of: Callable[..., Context]) -> Callable[[float], Context]:
    """A small model on GPUs of so many GiB, of which a large part is to stay free."""

    def with_gib(hbm_gib: float) -> Context:
        context = context_of(hbm_bytes=hbm_gib * GIB)
        traits = replace(context.traits, memory_uncertainty_fraction=MARGIN)
        return replace(context, traits=traits, margin_fraction=MARGIN)

    return with_gib


class Asked:
    """Answers questions and remembers the margins asked about."""

    def __init__(self) -> None:
        self.margins: list[float] = []

    def __call__(self, contexts: Sequence[Context]) -> Answer:
        self.margins.append(contexts[0].margin_fraction)
        return answer(contexts, top=1)


@pytest.fixture
def least_gib(question: Callable[[float], Context]) -> float:
    """Memory with which something just fits, the margin left free, to 1 %."""
    low, high = 0.1, 40.0
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        has_plan = bool(answer([question(middle)], top=1).plans)
        low, high = (low, middle) if has_plan else (middle, high)
    return high


def test_where_something_fits_the_margin_stays_free(
    question: Callable[[float], Context], least_gib: float
) -> None:
    asked = Asked()
    found = respecting_margin(asked, [question(least_gib)])
    assert asked.margins == [MARGIN]
    assert found.plans[0].estimate.memory.verdict != "tight"
    assert not any("tight" in note for note in found.notes)


def test_where_nothing_fits_tight_plans_say_so(
    question: Callable[[float], Context], least_gib: float
) -> None:
    asked = Asked()
    found = respecting_margin(asked, [question(0.9 * least_gib)])
    assert asked.margins == [MARGIN, 0.0]
    assert found.plans[0].estimate.memory.verdict == "tight"
    assert any(
        str(note).startswith("tight: no plan leaves the margin free") for note in found.notes
    )
    assert any("megatron 40.0%" in str(note) for note in found.notes)


def test_a_given_margin_is_kept(question: Callable[[float], Context], least_gib: float) -> None:
    asked = Asked()
    assert not respecting_margin(asked, [question(0.9 * least_gib)], is_given=True).plans
    assert asked.margins == [MARGIN]


def test_where_not_even_that_fits_nothing_is_said(
    question: Callable[[float], Context],
) -> None:
    asked = Asked()
    found = respecting_margin(asked, [question(0.05)])
    assert asked.margins == [MARGIN, 0.0]
    assert not found.plans
    assert found.contexts[0].margin_fraction == MARGIN


@pytest.mark.parametrize("gib", [38, 60, 66])
def test_no_search_with_less_memory_beats_the_frontier_of_headroom(gib: int) -> None:
    fixed = ["tp=1,pp=1,cp=1,dp=1,micro_batch=1|2"]
    asked = Query.of("gpt3-xl", "1xdgx-h100", global_batch=32, seq_len=2048, fix=fixed)
    question = resolve(asked.with_(pareto="time,headroom"))
    (context,) = question.contexts
    (best,) = search(with_headroom(context, gib), narrowing=question.narrowing, top=0).frontier
    enough = [
        plan.estimate.iter_time_s
        for plan in answered(question, 1).pareto
        if headroom_gib(context, plan.estimate.memory.peak_bytes) >= gib
    ]
    assert min(enough) <= best.iteration_s * (1.0 + 1e-9)
