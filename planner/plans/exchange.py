"""Every way to keep the replicas of a plan in step: what it sends, takes and keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.buckets import BucketPoint, bucket_curve
from planner.cost.estimate import Estimate, estimate
from planner.cost.exchange import asynchronous_s, replica_group, sent_bytes
from planner.cost.subject import Subject, subject_of
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import changing_profiles
from planner.plans.plan import Plan
from planner.search.space.legality import violations
from planner.spec.exchange import METHODS, PLAIN, GradientExchange, read_exchange

BUCKETS = (1e6, 4e6, 1e7, 4e7, 1e8, 4e8, 1e18)
"""Gradients in one message; the last is all of them."""
ASYNCHRONOUS = "async-server"
USUAL = (PLAIN, *(read_exchange(name) for name in METHODS))
"""Every way, with its usual number."""
EXCHANGED = ("data_parallel", "gradient_exchange")
"""Items of time that an exchange decides."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of exchange for a plan; figures are None where the plan's layout cannot have it."""

    exchange: GradientExchange
    iter_time_s: float | None = None
    exposed_s: float | None = None
    """Of it, what the exchange adds to computation."""
    sent_bytes: float | None = None
    """By a GPU to other replicas, in a mean iteration."""
    peak_bytes: float | None = None
    starts: tuple[tuple[str, str], ...] = ()
    """Frameworks and profiles that have it for such a layout."""
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Exchanges:
    """What a plan's replicas could exchange otherwise, and its buckets by size."""

    plan: Plan
    num_replicas: int
    ways: tuple[Way, ...]
    """The plan's own first."""
    buckets: tuple[BucketPoint, ...]
    """Of plain reductions; empty where each replica is alone."""


def exchanges(plan: Plan, asked: Sequence[GradientExchange] = USUAL) -> Exchanges:
    """Price every way asked for, and the plan's own."""
    own = plan.context.traits.exchange
    context = replace(plan.context, traits=replace(plan.context.traits, exchange=PLAIN))
    replicas = int(replica_group(context, plan.strategy.columns()).size[0])
    has_buckets = plan.strategy.dp > 1
    return Exchanges(
        plan=plan,
        num_replicas=replicas,
        ways=tuple(_way(plan, exchange) for exchange in dict.fromkeys((own, *asked))),
        buckets=bucket_curve(context, plan.strategy, BUCKETS) if has_buckets else (),
    )


def _way(plan: Plan, exchange: GradientExchange) -> Way:
    starts = () if exchange.is_plain else _starting(plan, exchange)
    way = Way(exchange=exchange, starts=starts)
    context = replace(plan.context, traits=replace(plan.context.traits, exchange=exchange))
    broken = next((one.message for one in violations(context, plan.strategy)), "")
    if broken:
        return replace(way, why_not=broken)
    subject, found = subject_of(context, plan.strategy), estimate(context, plan.strategy)
    elements = _elements(subject)
    exposed_s = sum(found.time[name].exposed_s for name in EXCHANGED if name in found.time)
    seconds = found.iter_time_s
    if exchange.name == ASYNCHRONOUS:
        seconds, exposed_s = _asynchronous(subject, found, exposed_s)
    return replace(
        way,
        iter_time_s=seconds,
        exposed_s=exposed_s,
        sent_bytes=float(sent_bytes(context, subject.columns, elements)[0]),
        peak_bytes=found.memory.peak_bytes,
    )


def _starting(plan: Plan, exchange: GradientExchange) -> tuple[tuple[str, str], ...]:
    """Profiles that have it and shard states as the plan does."""
    return tuple(
        (name, profile)
        for name, profile in changing_profiles(exchange)
        if plan.strategy.zero_stage in load_traits(name, profile).support.zero_stages
    )


def _elements(subject: Subject) -> np.ndarray:
    """Gradients that the first stage's ranks exchange with other replicas."""
    layers = subject.layers[0, 0] * subject.parts.params
    shards = subject.parts.num_shards if subject.strategy.zero_stage else 1.0
    return np.asarray((layers + subject.end_params(0)) / shards)


def _asynchronous(subject: Subject, found: Estimate, exposed_s: float) -> tuple[float, float]:
    """An iteration beside which gradients go to servers and weights come from them."""
    alone_s = found.iter_time_s - exposed_s
    server_s = float(asynchronous_s(subject.context, subject.columns, _elements(subject))[0])
    return max(alone_s, server_s), max(server_s - alone_s, 0.0)
