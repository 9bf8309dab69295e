"""When nothing fits: which limits are in conflict, what is missing, and what would fit."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.cost.context import Context
from planner.errors import NothingFitsError
from planner.plans.clock import Clock
from planner.plans.differences import short_layout
from planner.plans.frozen import frozen_words
from planner.plans.limits import GPUS, HOST, Limits, more_nodes
from planner.plans.plan import Answer
from planner.plans.relaxations import Ideal, Relaxation, ideal_of, relaxations
from planner.plans.shortfall import Shortfall, shortfall
from planner.search.explaining.feasible import OutOfTimeError
from planner.search.explaining.forbidden import Forbidding, forbidding
from planner.search.space.narrow import Narrowing
from planner.search.space.rule import Rule
from planner.search.space.space import EVERYTHING
from planner.units import format_bytes, format_seconds

CONFLICT_S, SHORTFALL_S, CHANGES_S = 10.0, 5.0, 20.0
"""Seconds after which looking for an explanation gives up and says what it has."""
ALL_S = CONFLICT_S + SHORTFALL_S + CHANGES_S

LARGEST_ITEMS = 3
MOST_SAID = 3


@dataclass(frozen=True, kw_only=True)
class NothingFits:
    """Why no layout fits, for the framework that comes nearest."""

    contexts: tuple[Context, ...]
    context: Context
    narrowing: Narrowing
    forbidding: Forbidding | None
    """Rules that forbid every layout; None where some are legal."""
    conflict: tuple[str, ...]
    """Limits that no layout keeps together; none can be spared. Empty where time ran out."""
    shortfall: Shortfall | None
    """None where no layout is legal."""
    ideal: Ideal | None
    """The best plan if memory were no limit."""
    relaxations: tuple[Relaxation, ...]
    is_complete: bool
    """No time ran out while looking for changes."""

    @property
    def limits(self) -> tuple[str, ...]:
        """The conflict in words, with figures."""
        limits = Limits(context=self.context, narrowing=self.narrowing)
        return tuple(limits.in_words(name) for name in self.conflict)


def explain_nothing(
    contexts: Sequence[Context],
    narrowing: Narrowing = EVERYTHING,
    *,
    known: Sequence[Relaxation] = (),
    limit_s: float = ALL_S,
) -> NothingFits:
    """Find out why nothing fits; nothing must, in any of the contexts.

    ``known`` are best plans of changed questions that need no search any more.
    """
    share = min(limit_s / ALL_S, 1.0)
    until = time.monotonic() + share * SHORTFALL_S
    by_context = [(context, shortfall(context, narrowing, deadline=until)) for context in contexts]
    context, short = min(
        by_context, key=lambda pair: pair[1].missing_bytes if pair[1] else float("inf")
    )
    others = [other for other in contexts if other is not context]
    until = time.monotonic() + share * CHANGES_S
    ideal = ideal_of(context, narrowing, until) if short else None
    found = relaxations(
        [context, *others],
        narrowing,
        ideal=ideal,
        deadline=until,
        known=known,
    )
    is_complete = time.monotonic() < until
    return NothingFits(
        contexts=tuple(contexts),
        context=context,
        narrowing=narrowing,
        forbidding=None if short else forbidding(context, narrowing),
        conflict=_conflict(context, narrowing, share * CONFLICT_S),
        shortfall=short,
        ideal=ideal,
        relaxations=tuple(found),
        is_complete=is_complete,
    )


def _conflict(context: Context, narrowing: Narrowing, limit_s: float) -> tuple[str, ...]:
    deadline = time.monotonic() + limit_s
    try:
        found = Limits(context=context, narrowing=narrowing, deadline=deadline).conflict()
    except OutOfTimeError:
        return ()
    return found.limits if found else ()


def nothing_fits(
    contexts: Sequence[Context],
    narrowing: Narrowing,
    result: Answer | None = None,
    clock: Clock | None = None,
) -> NothingFitsError:
    """Explain an empty answer: what is in conflict, what is missing, and what would fit."""
    if result is not None and not all(one.is_complete for one in result.searches):
        text = "nothing that fits was found in the time given; more time may find something"
        return NothingFitsError(text)
    left_s = clock.left_s() if clock else ALL_S
    found = explain_nothing(contexts, narrowing, limit_s=left_s)
    return NothingFitsError("\n".join(explanation(found)))


def explanation(nothing: NothingFits) -> list[str]:
    """The explanation as lines of text."""
    return [
        _head(nothing),
        *(_forbidden(nothing) if nothing.forbidding else _in_conflict(nothing)),
        *_missing(nothing),
        *_changes(nothing),
        *_frozen(nothing),
    ]


def _head(nothing: NothingFits) -> str:
    context, cluster = nothing.context, nothing.context.cluster
    given = "".join(f" {text}" for text in nothing.narrowing.texts)
    return (
        f"nothing fits: {context.model.name} on {cluster.num_accelerators:,} x "
        f"{cluster.accelerator.name}, batch {context.job.global_batch} x {context.job.seq_len}, "
        f"{context.traits.name}{given}"
    )


def _forbidden(nothing: NothingFits) -> Iterator[str]:
    """The rules that forbid, with what they allow."""
    found = nothing.forbidding
    assert found is not None
    options = [text for text in nothing.conflict if text.startswith("--")]
    with_options = f" with {', '.join(options)}" if options else ""
    if not found.rules:
        yield f"no layout is legal{with_options}: the search looks at no such values"
        return
    several = len(found.rules) > 1
    which = "these rules together forbid it" if several else "this rule forbids it"
    if several and found.each_alone:
        which = "each of these rules forbids it"
    yield f"no layout is legal{with_options}; {which}:"
    for rule in found.rules:
        said = found.violations.get(rule.name, ())
        more = f"; and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
        yield f"  {rule.name}: {'; '.join(said[:MOST_SAID]) or _general(rule)}{more}"


def _general(rule: Rule) -> str:
    return rule.message.splitlines()[0].rstrip(".")


def _in_conflict(nothing: NothingFits) -> Iterator[str]:
    if not nothing.conflict:
        return
    several = len(nothing.conflict) > 1
    yield "the fewest limits that no layout keeps together:" if several else "no layout keeps:"
    yield from (f"  {text}" for text in nothing.limits)
    cluster = nothing.context.cluster
    if GPUS not in nothing.conflict:
        most = max(more_nodes(nothing.context)) * cluster.node.num_accelerators
        if most > cluster.num_accelerators:
            yield f"  more GPUs alone do not help (looked at up to {most:,})"


def _missing(nothing: NothingFits) -> Iterator[str]:
    short = nothing.shortfall
    if short is None:
        return
    least = "" if short.is_least else "at most "
    where = "" if short.limit == HOST else f" on stage {short.stage}"
    yield (
        f"nearest layout: {least}{format_bytes(short.missing_bytes)} more of {short.limit} per GPU "
        f"needed{where}"
    )
    yield f"  {short_layout(short.strategy)}"
    if short.limit != HOST:
        items = short.ledger.items[:LARGEST_ITEMS]
        listed = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in items)
        yield f"  of {format_bytes(short.ledger.peak_bytes)} there: {listed}, ..."


def _changes(nothing: NothingFits) -> Iterator[str]:
    if not nothing.relaxations:
        yield (
            "none of the changes tried lets anything fit"
            if nothing.is_complete
            else "no change that lets anything fit was found in the time given"
        )
        return
    ideal = nothing.ideal
    against = (
        f"; GPU time per token against {format_seconds(ideal.iteration_s)} an iteration on "
        f"{ideal.strategy.num_gpus:,} GPUs if memory were no limit"
        if ideal
        else ""
    )
    yield f"what would fit{against}:"
    width = max(len(one.words) for one in nothing.relaxations)
    for one in nothing.relaxations:
        factor = one.time_factor
        cost = "" if factor is None else f"  {factor - 1.0:+7.1%}"
        about = "" if one.is_optimal else " or less"
        seconds = f"{format_seconds(one.iteration_s):>8}{about}"
        yield f"  {one.words:<{width}}  {seconds}{cost}"
        yield f"      {short_layout(one.strategy)}"


def _frozen(nothing: NothingFits) -> Iterator[str]:
    """What training adapters only would take, where memory is what lacks."""
    words = frozen_words(nothing.context) if nothing.shortfall else ""
    if words:
        yield words
