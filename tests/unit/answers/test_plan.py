"""Plans inside the margin appear only where nothing else fits; what was found is remembered."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import planner

from planner.answers import cache
from planner.answers.base import Answer
from planner.answers.plan import answer, answer_or_raise, respecting_margin
from planner.cost.context import Context
from planner.query.query import Query
from planner.query.resolve import resolve
from planner.search.ranking.goals import Goal
from planner.search.search import headroom_gib, search, with_headroom
from planner.search.space.narrow import narrowing_of
from planner.search.space.space import EVERYTHING
from planner.units import GIB

MARGIN = 0.4


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
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


def test_where_not_even_that_fits_nothing_is_said(question: Callable[[float], Context]) -> None:
    asked = Asked()
    found = respecting_margin(asked, [question(0.05)])
    assert asked.margins == [MARGIN, 0.0]
    assert not found.plans
    assert found.contexts[0].margin_fraction == MARGIN


def test_no_search_with_less_memory_beats_the_frontier_of_headroom() -> None:
    fixed = ["tp=1,pp=1,cp=1,dp=1,micro_batch=1|2"]
    asked = Query.of("gpt3-xl", "1xdgx-h100", global_batch=32, seq_len=2048, fix=fixed)
    question = resolve(asked.with_(pareto="time,headroom"))
    (context,) = question.contexts
    plans = [plan.estimate for plan in answer_or_raise(question, 1).pareto]
    for gib in (38, 60, 66):
        (best,) = search(with_headroom(context, gib), narrowing=question.narrowing, top=0).frontier
        enough = (one for one in plans if headroom_gib(context, one.memory.peak_bytes) >= gib)
        least_s = min(one.iter_time_s for one in enough)
        assert least_s <= best.iteration_s * (1.0 + 1e-9), gib


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of what was found before; whatever is found is worth keeping."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PLANNER_CACHE")
    monkeypatch.setattr(cache, "WORTH_KEEPING_S", 0.0)
    return tmp_path / "planner"


def test_the_same_question_again_has_the_same_result_without_a_search(
    kept: Path, context_of: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = replace(context_of(), ranking="simplicity")
    ask: Any = {"narrowing": EVERYTHING, "top": 3, "with_ladder": True}
    found = cache.remembered(context, **ask)
    monkeypatch.setattr(cache, "search", None)
    assert cache.remembered(context, **ask) == replace(found, is_remembered=True)
    assert len(list(kept.iterdir())) == 1


def test_the_screen_is_the_same_and_says_so(kept: Path) -> None:
    words = ("plan", "llama3-8b", "1xdgx-h100", "--global-batch", "64", "-v")
    first, again = (" ".join(planner(*words).out.split()) for _ in range(2))
    assert kept.exists()
    assert again == re.sub(r"(in [0-9.]+ s);", r"\1, remembered;", first)


@pytest.mark.parametrize(
    "changed",
    [
        lambda context: {"context": replace(context, model=replace(context.model, num_layers=3))},
        lambda context: {"context": context.with_job(seq_len=512)},
        lambda context: {"context": context.with_node(host_memory_bytes=GIB)},
        lambda context: {"context": replace(context, margin_fraction=0.01)},
        lambda _: {"narrowing": narrowing_of(["--where tp<=2"])},
        lambda _: {"narrowing": narrowing_of(["--allow cross-domain-tp"])},
        lambda _: {"goal": Goal(longest_s=lambda gpus: 1e3 / gpus)},
        lambda _: {"goal": Goal(order="gpu_seconds")},
        lambda _: {"top": 2},
    ],
)
def test_another_question_is_searched(
    kept: Path, context_of: Callable[..., Context], changed: Callable[[Context], dict[str, Any]]
) -> None:
    asked: dict[str, Any] = {"context": context_of(), "narrowing": EVERYTHING, "top": 1}
    cache.remembered(**asked)
    assert not cache.remembered(**asked | changed(asked["context"])).is_remembered
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("spoilt", [b"", b"{}", b"\xff\x00", "half", "other"])
def test_what_is_not_as_it_was_written_is_searched_anew(
    kept: Path, context_of: Callable[..., Context], spoilt: bytes | str
) -> None:
    found = cache.remembered(context_of(), narrowing=EVERYTHING)
    (entry,) = kept.iterdir()
    whole = entry.read_bytes()
    changed = {"half": whole[: len(whole) // 2], "other": whole.replace(b"0", b"1")}
    entry.write_bytes(spoilt if isinstance(spoilt, bytes) else changed[spoilt])
    again = cache.remembered(context_of(), narrowing=EVERYTHING)
    assert replace(again, seconds=found.seconds) == found
    assert cache.remembered(context_of(), narrowing=EVERYTHING).is_remembered


def test_nothing_is_kept_where_it_cannot_be_or_is_not_wanted(
    kept: Path, context_of: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write_text("no folder")
    assert cache.remembered(context_of(), narrowing=EVERYTHING).plans
    kept.unlink()
    monkeypatch.setenv("PLANNER_CACHE", "off")
    assert cache.remembered(context_of(), narrowing=EVERYTHING).plans
    assert not kept.exists()


def test_the_oldest_goes_where_there_is_no_more_room(
    kept: Path, context_of: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_KEPT", 2)
    for seq_len in (256, 512, 1024):
        cache.remembered(context_of(seq_len=seq_len), narrowing=EVERYTHING)
    assert len(list(kept.iterdir())) == 2
    assert not cache.remembered(context_of(seq_len=256), narrowing=EVERYTHING).is_remembered


def test_tables_of_rules_are_part_of_the_program() -> None:
    assert {Path(path).suffix for path, _ in cache._sources()} == {".py", ".yaml"}
