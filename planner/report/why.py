"""Prints why a layout is not chosen."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from planner.answers.base import Plan
from planner.answers.evidence import MIXED
from planner.answers.layout import short_layout
from planner.answers.nothing_fits import NothingFits
from planner.answers.why import ROUNDING, Comparison, ItemDifference, WhyAnswer
from planner.cost.estimate import item_title
from planner.report.table import Column, Part, Table, show, text_table
from planner.units import format_bytes, format_seconds

SMALL_FRACTION = 0.0005  # items that differ by less of an iteration are summed up
LARGEST = 3  # items that a verdict names on either side at most


def print_why(answer: WhyAnswer, console: Console) -> None:
    """The verdict first, then what it rests on."""
    lines = _nothing(answer.nothing, answer.best) if answer.nothing else _sentences(answer)
    show(console, Text(next(lines), "bold"), *lines)
    if answer.asked is None:
        return
    trained = answer.case.context.traits.training.suffix.removeprefix(", ")
    names = ", ".join(context.traits.name for context in answer.case.contexts)
    show(console, Text(f"trained: {trained}, {names}", "dim") if trained else "")
    both = answer.comparison
    if both is None or answer.verdict == "is the best plan":
        return
    titles = ("layout", "asked", "best")
    layouts = [(name, *values) for name, values in both.layout.items()]
    free = [
        f"{title} {format_bytes(plan.estimate.memory.headroom_bytes)} of "
        f"{format_bytes(plan.estimate.memory.usable_bytes)}"
        for title, plan in (("asked", both.asked), ("best", both.best))
    ]
    show(
        console,
        Text(),
        text_table(titles, layouts, left=titles),
        Text(),
        *_times(both),
        Text(),
        f"memory left free: {', '.join(free)}",
        "" if answer.is_complete else "a time limit struck: either plan may have a faster one",
    )


def _sentences(answer: WhyAnswer) -> Iterator[str]:
    yield _verdict(answer)
    yield from _reasons(answer)
    for title, plan in (("asked", answer.asked), ("best", answer.best)):
        if plan is not None and (title == "best" or answer.verdict != "is the best plan"):
            framework = f"{plan.framework} " if len(answer.case.contexts) > 1 else ""
            seconds, layout = _seconds(plan.estimate.iter_time_s), short_layout(plan.strategy)
            yield f"{title + ':':<6} {seconds} an iteration, {framework}{layout}"


def _nothing(nothing: NothingFits, best: Plan | None) -> Iterator[str]:
    yield from nothing.lines()
    if best is not None and len(nothing.case.narrowing.texts) > 1:
        seconds = format_seconds(best.estimate.iter_time_s)
        yield f"best plan without these options: {seconds} an iteration"
        yield f"  {short_layout(best.strategy)}"


def _verdict(answer: WhyAnswer) -> str:
    options, both = " ".join(answer.case.narrowing.limiting), answer.comparison
    if both is None:
        return f"{options}: fits, where nothing does that is searched without it"
    share = f"{abs(both.slower_by):.2%}"
    words = {
        "is the best plan": "the best plan of all keeps this; nothing else is chosen",
        "ties": f"as fast as the best plan, within rounding ({ROUNDING:.0e} of the time)",
        "slower": f"{share} slower than the best plan",
        "ranked behind": f"{share} faster than the best plan by the model, but ranked behind it",
        "faster": f"{share} faster than the best plan of what is searched without it",
    }
    is_open = answer.verdict in ("slower", "faster") and both.within_error
    inside = ", inside the model's error" if is_open else ""
    return f"{options}: {words[answer.verdict]}{inside}"


def _reasons(answer: WhyAnswer) -> Iterator[str]:
    both = answer.comparison
    if both is None or answer.verdict in ("is the best plan", "ties"):
        return
    if answer.verdict == "faster":
        yield "a rule that only keeps the search small leaves it out of what is searched"
    else:
        # What the asked plan uses that must gain more than it does, most first; of one that is
        # slower anyway, only penalties of 5 % and more.
        least = 1.0 if answer.verdict == "ranked behind" else 1.05
        for one in sorted(both.penalties, key=lambda one: -one.asked / one.best):
            if one.asked / one.best > least:
                words = one.name.replace("_", " ")
                gain = one.asked / one.best - 1.0
                yield f"{words} must gain {gain:.1%} to be chosen: {one.reason}"
    used, of_best = both.asked.num_gpus, both.best.num_gpus
    if used == of_best:
        yield _mostly(both)
    else:
        factor = both.gpu_time_factor - 1.0
        much = f"{abs(factor):.1%} {'more' if factor > 0 else 'less'}"
        much = "the same" if abs(factor) < SMALL_FRACTION else much
        yield f"on {used:,} GPUs, the best plan on {of_best:,}: {much} GPU time per token"
    yield _error_words(both)


def _mostly(both: Comparison) -> str:
    """The largest items for the difference, and the largest against it."""
    sign = 1.0 if both.slower_by > 0 else -1.0
    items = sorted(_folded(both.time), key=lambda item: -sign * item.difference_s)
    largest_s = max((abs(item.difference_s) for item in items), default=0.0)
    # Others are named that are a tenth of the largest at least.
    least_s = max(SMALL_FRACTION * both.asked.estimate.iter_time_s, 0.1 * largest_s)
    large = [item for item in items if abs(item.difference_s) >= least_s]
    along = [item for item in large if sign * item.difference_s > 0][:LARGEST]
    against = [item for item in reversed(large) if sign * item.difference_s < 0][:LARGEST]
    parts = [
        ", ".join(f"{item.name} {_signed(item.difference_s)}" for item in some)
        for some in (along, against)
        if some
    ]
    return f"mostly {'; against it '.join(parts)}" if parts else "in many small items"


def _error_words(both: Comparison) -> str:
    error, ratio = both.ratio_error, 1.0 + both.slower_by
    what = "in several ways" if error.kind == MIXED else f"in {error.kind}"
    verdict = "beyond the usual error"
    if both.within_error:
        verdict = "either may be the faster one"
    elif error.may_tie(ratio):
        behind = f"{both.weighed_ratio - 1.0:.1%} behind as evidence weighs them"
        verdict = f"by time alone either may be the faster one ({behind})"
    elif error.may_reverse(ratio):
        verdict = "likely, not certain"
    return (
        f"{verdict}: ratios of {error.num_pairs} published pairs that differ {what} were off by "
        f"{error.typical:.1%} (median), eight of ten by less than {error.widest:.0%}"
    )


def _folded(items: Iterable[ItemDifference]) -> list[ItemDifference]:
    """Items under the words for them, largest difference first; recomputation is one."""
    sums: dict[str, tuple[float, float]] = {}
    for item in items:
        asked_s, best_s = sums.get(item_title(item.name), (0.0, 0.0))
        sums[item_title(item.name)] = (asked_s + item.asked_s, best_s + item.best_s)
    found = [ItemDifference.of(name, *times) for name, times in sums.items()]
    return sorted(found, key=lambda item: -item.difference_s)


def _signed(seconds: float) -> str:
    if abs(seconds) < 1e-7:  # rounding
        return "0 s"
    return f"{'+' if seconds >= 0 else '-'}{_seconds(abs(seconds))}"


def _seconds(seconds: float) -> str:
    """Seconds as such, also those that make minutes: differences are small beside them."""
    return f"{seconds:,.1f} s" if 60.0 <= seconds < 3600.0 else format_seconds(seconds)


def _times(both: Comparison) -> Iterator[Part]:
    """Times of both, largest difference first; they add up to the total."""
    least_s = SMALL_FRACTION * both.asked.estimate.iter_time_s
    large, small = list[ItemDifference](), list[ItemDifference]()
    for item in _folded(both.time):
        (large if abs(item.difference_s) >= least_s else small).append(item)
    large += [_sum("the rest", small)] if small else []
    stages = (both.asked.strategy.pp, both.best.strategy.pp)
    title = "time" if max(stages) == 1 else "time, mean of all stages"
    yield Table[ItemDifference](
        [*large, _sum("iteration", large)],
        [
            Column(title, "name", right=False),
            Column("asked", lambda item: _seconds(item.asked_s)),
            Column("best", lambda item: _seconds(item.best_s)),
            Column("difference", lambda item: _signed(item.asked_s - item.best_s)),
        ],
        style=lambda item: "bold" if item.name == "iteration" else "",
    )
    if len(set(stages)) > 1:
        num = " and ".join(map(str, dict.fromkeys(stages)))
        yield f"The pipelines have {num} stages: whole pipelines are compared, no single stages."


def _sum(name: str, items: Sequence[ItemDifference]) -> ItemDifference:
    return ItemDifference.of(
        name, sum(item.asked_s for item in items), sum(item.best_s for item in items)
    )
