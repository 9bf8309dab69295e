"""One question asked otherwise: the best plans side by side, and how sure their ratio is."""

import math
from dataclasses import dataclass

from planner.answers.base import Answer, Plan
from planner.answers.evidence import kinds_of_difference, ratio_error


@dataclass(frozen=True, kw_only=True)
class Side:
    """A question and its answer."""

    label: str
    """What was said otherwise: ``precision=fp8``; empty of the question as asked."""
    answer: Answer | None
    """None where nothing fits."""
    why_none: str = ""

    @property
    def plan(self) -> Plan | None:
        """The best plan."""
        return self.answer.plans[0] if self.answer and self.answer.plans else None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times the tokens per second, and where eight of ten such ratios lie."""

    value: float
    lower: float
    upper: float
    basis: str
    """What the range comes from."""

    @property
    def is_open(self) -> bool:
        """Either may be the faster one."""
        return self.lower <= 1.0 <= self.upper


def speed(asked: Plan, other: Plan) -> Ratio:
    """Tokens per second of the other plan over those of the plan as asked.

    Of layouts of one job the range is that of published pairs that differ in the same
    (planner.answers.evidence). Else both times err as their ranges say, and the logarithms of
    what each may be off are added in quadrature, as of independent errors: what both share
    cancels, so the range is rather too wide.
    """
    value = other.estimate.tokens_per_s / asked.estimate.tokens_per_s
    if asked.context == other.context:
        error = ratio_error(kinds_of_difference(asked.strategy, other.strategy))
        basis = f"of {error.num_pairs} published pairs that differ so"
        width = 1.0 + (0.0 if asked.strategy == other.strategy else error.widest)
        return Ratio(value=value, lower=value / width, upper=value * width, basis=basis)
    slower = [_share(plan, "upper") for plan in (asked, other)]
    faster = [_share(plan, "lower") for plan in (asked, other)]
    return Ratio(
        value=value,
        lower=value / math.exp(math.hypot(faster[0], slower[1])),
        upper=value * math.exp(math.hypot(slower[0], faster[1])),
        basis="of both times, as if they erred independently",
    )


def _share(plan: Plan, end: str) -> float:
    """Logarithm of how far an end of a plan's range lies from its time."""
    made = plan.estimate
    end_s = made.iter_time_s_upper if end == "upper" else made.iter_time_s_lower
    return abs(math.log(end_s / made.iter_time_s))


def usd_per_token(plan: Plan) -> float | None:
    """Price of a token; None where the node has none."""
    price = plan.context.cluster.node.usd_per_hour
    if price is None:
        return None
    per_gpu_s = price / plan.context.cluster.node.num_accelerators / 3600.0
    return per_gpu_s * plan.num_gpus / plan.estimate.tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Versus:
    """The question as asked, and otherwise."""

    asked: Side
    others: tuple[Side, ...]

    def ratio(self, other: Side) -> Ratio | None:
        """How fast the other side is; None where either has no plan."""
        if self.asked.plan is None or other.plan is None:
            return None
        return speed(self.asked.plan, other.plan)

    @property
    def sides(self) -> tuple[Side, ...]:
        """As asked first."""
        return (self.asked, *self.others)
