"""Why a layout is not chosen: illegal, too large, or slower than the best plan, item by item."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.plans.differences import differences
from planner.plans.limits import narrowing_of
from planner.plans.plan import Plan
from planner.plans.relaxations import Relaxation
from planner.plans.whynot import NothingFits, explain_nothing
from planner.search.search import Progress, SearchResult, search
from planner.search.space.narrow import Narrowing

ROUNDING = 1e-5
"""Relative difference of times up to which two plans are as fast: that of the stage problem."""

Verdict = Literal["is the best plan", "ties", "slower", "faster", "illegal", "does not fit"]


@dataclass(frozen=True, kw_only=True)
class ItemDifference:
    """One item of iteration time in both plans."""

    name: str
    asked_s: float
    best_s: float

    @property
    def difference_s(self) -> float:
        """What the plan asked for takes more."""
        return self.asked_s - self.best_s


@dataclass(frozen=True, kw_only=True)
class WhyAnswer:
    """The best plan under the user's options beside the best of all."""

    contexts: tuple[Context, ...]
    narrowing: Narrowing
    best: Plan | None
    """Of the space without the options, but for --allow; None where nothing fits in it."""
    asked: Plan | None
    """Of the space under the options; None where nothing fits in it."""
    nothing: NothingFits | None
    """Why nothing fits under the options."""
    is_complete: bool
    """No time limit struck."""
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The answer in a word."""
        if self.asked is None:
            assert self.nothing is not None
            return "illegal" if self.nothing.forbidding else "does not fit"
        if self.best is None:
            return "faster"
        if self._is_same:
            return "is the best plan"
        slower = self.slower_by
        if abs(slower) <= ROUNDING and self._uses_all:
            return "ties"
        return "slower" if slower > 0 or not self._uses_all else "faster"

    @property
    def _is_same(self) -> bool:
        asked, best = self.asked, self.best
        assert asked is not None
        assert best is not None
        return (asked.framework, asked.strategy) == (best.framework, best.strategy)

    @property
    def _uses_all(self) -> bool:
        """The plan asked for uses as many GPUs as the best one."""
        asked, best = self.asked, self.best
        assert asked is not None
        assert best is not None
        return asked.strategy.num_gpus >= best.strategy.num_gpus

    @property
    def slower_by(self) -> float:
        """Fraction of the best plan's time that the asked one takes more."""
        assert self.asked is not None
        assert self.best is not None
        return self.asked.estimate.iter_time_s / self.best.estimate.iter_time_s - 1.0

    @property
    def options(self) -> list[str]:
        """The options that narrow the space."""
        return _options(self.narrowing)

    def items(self) -> list[ItemDifference]:
        """Every item of either plan, by what the asked one takes more; sums to the difference."""
        if self.asked is None or self.best is None:
            return []
        asked, best = self.asked.estimate.time, self.best.estimate.time
        found = [
            ItemDifference(
                name=name,
                asked_s=asked[name].exposed_s if name in asked else 0.0,
                best_s=best[name].exposed_s if name in best else 0.0,
            )
            for name in dict.fromkeys((*asked, *best))
        ]
        return sorted(found, key=lambda item: -item.difference_s)

    def differences(self) -> dict[str, tuple[str, str]]:
        """What the layouts differ in: asked, best."""
        if self.asked is None or self.best is None:
            return {}
        return differences(self.asked.strategy, self.best.strategy)


def why(
    contexts: Sequence[Context],
    narrowing: Narrowing,
    *,
    notes: Sequence[str] = (),
    time_limit_s: float | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> WhyAnswer:
    """Compare the best plan under the options with the best plan without them."""
    allowed = narrowing_of(tuple(t for t in narrowing.texts if t.startswith("--allow ")))
    asked, of_asked = _best_plan(contexts, narrowing, time_limit_s, progress)
    best, of_best = _best_plan(contexts, allowed, time_limit_s, progress)
    return WhyAnswer(
        contexts=tuple(contexts),
        narrowing=narrowing,
        best=best,
        asked=asked,
        nothing=_nothing(contexts, narrowing, best) if asked is None else None,
        is_complete=all(result.is_complete for result in (*of_asked, *of_best)),
        notes=tuple(notes),
    )


def _nothing(contexts: Sequence[Context], narrowing: Narrowing, best: Plan | None) -> NothingFits:
    """Why nothing fits; where there is one option only, the best plan without it is known."""
    texts = _options(narrowing)
    known = [
        Relaxation(
            words=f"without {text}",
            context=best.context,
            strategy=best.strategy,
            iteration_s=best.estimate.iter_time_s,
            is_optimal=best.is_optimal,
        )
        for text in texts
        if best is not None and len(texts) == len(contexts) == 1
    ]
    return explain_nothing(contexts, narrowing, known=known)


def _options(narrowing: Narrowing) -> list[str]:
    """Options that narrow the space."""
    return [text for text in narrowing.texts if not text.startswith("--allow ")]


def _best_plan(
    contexts: Sequence[Context],
    narrowing: Narrowing,
    time_limit_s: float | None,
    progress: Progress,
) -> tuple[Plan | None, list[SearchResult]]:
    """The plan that `planner plan` would put first: most GPUs, then least time."""
    results = [
        search(
            context,
            top=1,
            narrowing=narrowing,
            with_frontier=False,
            time_limit_s=time_limit_s,
            progress=progress,
        )
        for context in contexts
    ]
    found = [
        (context, result.plans[0])
        for context, result in zip(contexts, results, strict=True)
        if result.plans
    ]
    if not found:
        return None, results
    context, one = min(found, key=lambda pair: (-pair[1].strategy.num_gpus, pair[1].iteration_s))
    plan = Plan(
        context=context,
        strategy=one.strategy,
        estimate=estimate(context, one.strategy),
        is_optimal=one.is_optimal,
    )
    return plan, results
