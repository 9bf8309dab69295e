"""Explanation when nothing fits: limits in conflict, what is missing, and what would fit."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from planner.answers.base import Answer, Deadline, Plan
from planner.answers.changes import UNLIMITED, most_gpus, with_memory
from planner.answers.conflict import GPUS, HOST, Limits, MissingMemory, missing_memory
from planner.answers.layout import short_layout
from planner.answers.remedies import Remedies, Remedy
from planner.answers.row import Row
from planner.answers.whatif import best_within
from planner.errors import NothingFitsError
from planner.frameworks.registry import CURRENT, load_traits
from planner.frameworks.settings import training_frameworks
from planner.layers.adapter_targets import training_problem
from planner.layers.parameters import count_parameters
from planner.query.resolve import Case
from planner.search.conflicts import ConflictingRules, conflicting_rules
from planner.search.feasible import SearchTimeoutError
from planner.spec.strategy import Strategy
from planner.spec.training import Training
from planner.units import format_bytes, format_seconds, plural

MOST_SAID = 3


@dataclass(frozen=True, kw_only=True)
class NothingFits:
    """Reasons why no layout fits, for the framework that comes nearest."""

    case: Case
    forbidding: ConflictingRules | None  # rules that forbid every layout; None where some are legal
    conflict: tuple[str, ...]  # limits none of which can be spared; empty where time ran out
    limits: tuple[str, ...]  # the same in words, with figures
    missing: MissingMemory | None  # None where no layout is legal
    unconstrained: Plan | None  # the best plan if memory were no limit
    remedies: tuple[Remedy, ...]
    is_complete: bool  # no time ran out while looking for changes

    def lines(self) -> list[str]:
        """The explanation as lines of text."""
        context, found = self.case.context, self.forbidding
        cluster, job = context.cluster, context.job
        given = "".join(f" {text}" for text in self.case.narrowing.texts)
        asked = (
            f"{context.model.name} on {cluster.num_accelerators:,} x {cluster.accelerator.name}, "
            f"batch {job.global_batch} x {job.seq_len}, {context.traits.name}{given}"
        )
        why = self._forbidden(found) if found else self._in_conflict()
        rest = (*self._missing(), *self._remedies(), *self._adapters())
        return [f"nothing fits: {asked}", *why, *rest]

    def _forbidden(self, found: ConflictingRules) -> Iterator[str]:
        options = [text for text in self.conflict if text.startswith("--")]
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
            words = "; ".join(said[:MOST_SAID]) or rule.message.splitlines()[0].rstrip(".")
            yield f"  {rule.name}: {words}{more}"

    def _in_conflict(self) -> Iterator[str]:
        if not self.conflict:
            return
        together = "no layout keeps all of these limits; without any one of them something fits:"
        yield together if len(self.conflict) > 1 else "no layout keeps:"
        yield from (f"  {text}" for text in self.limits)
        cluster = self.case.context.cluster
        if GPUS not in self.conflict:
            most = most_gpus(self.case.context)
            if most > cluster.num_accelerators:
                yield f"  more GPUs alone do not help (looked at up to {most:,})"

    def _missing(self) -> Iterator[str]:
        short = self.missing
        if short is None:
            return
        least = "" if short.is_least else "at most "
        where = "" if short.limit == HOST else f" on stage {short.ledger.stage}"
        more = f"{format_bytes(short.missing_bytes)} more of {short.limit}"
        yield f"nearest layout: {least}{more} per GPU needed{where}"
        yield f"  {short_layout(short.strategy)}"
        if short.limit != HOST:
            items = short.ledger.items[:3]
            listed = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in items)
            yield f"  of {format_bytes(short.ledger.peak_bytes)} there: {listed}, ..."

    def _remedies(self) -> Iterator[str]:
        if not self.remedies:
            within = "no change that lets anything fit was found in the time given"
            yield "none of the changes tried lets anything fit" if self.is_complete else within
            return
        against = ""
        if ideal := self.unconstrained:
            seconds = format_seconds(ideal.estimate.iter_time_s)
            where = f"{seconds} an iteration on {plural(ideal.num_gpus, 'GPU')}"
            against = f"; GPU time per token against {where} if memory were no limit"
        yield f"what would fit{against}:"
        width = max(len(one.change.words) for one in self.remedies)
        for one in self.remedies:
            factor = one.time_factor
            cost = "" if factor is None else f"  {factor - 1.0:+7.1%}"
            about = "" if one.plan.is_optimal else " or less"
            seconds = f"{format_seconds(one.plan.estimate.iter_time_s):>8}{about}"
            yield f"  {one.change.words:<{width}}  {seconds}{cost}"
            yield f"      {short_layout(one.plan.strategy)}"

    def _adapters(self) -> Iterator[str]:
        """A sentence on adapters beside frozen weights, where memory lacks and these would fit.

        ``bytes · parameters / GPUs``, sharded over all of them. Excludes adapters (about a
        hundredth of the parameters, with states), activations and the loss.
        """
        context = self.case.context
        if self.missing is None or context.traits.training.is_frozen:
            return
        parameters = count_parameters(context.model) / context.cluster.num_accelerators
        offering = training_frameworks("lora")
        kernels = load_traits(offering[0], CURRENT).kernels
        both = {Training(mode="lora"): "in 16 bits", Training(mode="qlora"): "in 4 bits"}
        fitting = [
            f"{format_bytes(one.frozen_linear_bytes * parameters)} {words} (--train {one.mode})"
            for one, words in both.items()
            # A fifth is for adapters, their states and activations.
            if one.frozen_linear_bytes * parameters <= 0.8 * context.usable_bytes
            and training_problem(context.model, one, kernels)[0] != "--train"
        ]
        if fitting:
            usable = format_bytes(context.usable_bytes)
            yield (
                f"frozen weights would take {' or '.join(fitting)} of {usable} per GPU, without "
                f"gradients or states of theirs; --framework {', '.join(offering)} plans adapters "
                "beside them"
            )


class RemedyRow(Row):
    """A change of the question after which something fits."""

    change: str
    options: list[str]
    cluster: str | None
    gpus: int
    framework: str
    iter_time_s: float
    time_factor: float | None
    proved_optimal: bool
    strategy: Strategy


class NothingFitsRow(Row):
    """Reasons why nothing fits."""

    framework: str
    rules: dict[str, list[str]]
    """Rules that leave no layout, by name: how layouts violate each, with numbers."""
    each_rule_alone: bool | None
    """Any of them leaves nothing."""
    conflict: list[str]
    """Options that cannot hold together."""
    limits: list[str]
    nearest: MissingMemory | None
    ideal_iter_time_s: float | None
    """Iteration time if memory were no limit."""
    changes: list[RemedyRow]

    @classmethod
    def of(cls, nothing: NothingFits) -> "NothingFitsRow":
        """The explanation as data."""
        found, ideal = nothing.forbidding, nothing.unconstrained
        rules: dict[str, list[str]] = {}
        if found:
            said = found.violations
            rules = {rule.name: list(said.get(rule.name, ())) for rule in found.rules}
        return cls(
            framework=nothing.case.context.traits.name,
            rules=rules,
            each_rule_alone=found.each_alone if found else None,
            conflict=list(nothing.conflict),
            limits=list(nothing.limits),
            nearest=nothing.missing,
            ideal_iter_time_s=ideal.estimate.iter_time_s if ideal else None,
            changes=[
                RemedyRow(
                    change=one.change.words,
                    options=list(one.change.options),
                    cluster=one.change.cluster or None,
                    gpus=one.plan.num_gpus,
                    framework=one.plan.framework,
                    iter_time_s=one.plan.estimate.iter_time_s,
                    time_factor=one.time_factor,
                    proved_optimal=one.plan.is_optimal,
                    strategy=one.plan.strategy,
                )
                for one in nothing.remedies
            ],
        )


def explain_nothing(case: Case, deadline: Deadline | None = None) -> NothingFits:
    """Find out why nothing fits."""
    deadline = deadline or Deadline()
    until = deadline.within(Deadline.SHORTAGE_S)
    lacking = [(missing_memory(one, case.narrowing, until), one) for one in case.contexts]
    lacking.sort(key=lambda pair: pair[0].missing_bytes if pair[0] else math.inf)
    missing, context = lacking[0]
    case = replace(case, contexts=tuple(one for _, one in lacking))
    until = deadline.within(Deadline.CHANGES_S)
    endless = case.of(with_memory(context, hbm=UNLIMITED, host=UNLIMITED))
    unconstrained = best_within(endless, until) if missing else None
    found = Remedies(asked=case, deadline=until, unconstrained=unconstrained).found()
    is_complete = not until.is_over
    until = deadline.within(Deadline.CONFLICT_S)
    limits_kept = Limits(case=case.of(context), deadline=until)
    conflict: tuple[str, ...] = ()
    with suppress(SearchTimeoutError):
        conflict = limits_kept.conflict()
    return NothingFits(
        case=case.of(context),
        forbidding=None if missing else conflicting_rules(context, case.narrowing),
        conflict=conflict,
        limits=tuple(map(limits_kept.in_words, conflict)),
        missing=missing,
        unconstrained=unconstrained,
        remedies=tuple(found),
        is_complete=is_complete,
    )


def nothing_fits(
    case: Case, result: Answer | None = None, deadline: Deadline | None = None
) -> NothingFitsError:
    """Explain an empty answer: what is in conflict, what is missing, and what would fit."""
    if result is not None and not all(one.is_complete for one in result.searches):
        return NothingFitsError(
            "nothing that fits was found in the time given; more time may find something"
        )
    return NothingFitsError("\n".join(explain_nothing(case, deadline).lines()))
