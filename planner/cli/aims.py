"""Reads what a plan is to be best at: objective, limits, what to trade off, and the time limit."""

from planner.cli.collector import Collector
from planner.cli.limits import check_price
from planner.errors import InputError
from planner.limits import MAX_TIME_LIMIT_S, brief
from planner.plans.objectives import OBJECTIVES, WORDS, Aim, JobLimits, check_known
from planner.spec.cluster import ClusterSpec
from planner.spelling import did_you_mean
from planner.units import parse_duration, parse_usd

MAX_TRADED = 3


def _objective(collector: Collector, option: str, word: str) -> str | None:
    name = word.strip().lower()
    if name not in WORDS:
        hint = did_you_mean(name, tuple(WORDS))
        known = ", ".join(WORDS)
        text = f"unknown objective {word.strip()!r}; allowed are {known}. {hint}"
        collector.add(option, text.strip())
    return WORDS.get(name)


def read_aim(
    collector: Collector,
    *,
    objective: str,
    pareto: str,
    tokens: str | None,
    deadline: str | None,
    min_tokens_per_s: str | None,
    budget: str | None,
) -> Aim:
    """Return the aim; what is wrong with an option, or missing, is noted."""
    if tokens is None:
        for option, given in (("--deadline", deadline), ("--budget", budget)):
            if given is not None:
                collector.add(option, "needs --tokens, the tokens of the whole job, such as 15T")
    limits = JobLimits(
        total_tokens=None if tokens is None else collector.count("--tokens", tokens) or 1,
        deadline_s=collector.parsed("--deadline", deadline, parse_duration),
        min_tokens_per_s=collector.count("--min-tokens-per-s", min_tokens_per_s),
        budget_usd=collector.parsed("--budget", budget, parse_usd),
    )
    name = _objective(collector, "--objective", objective) or "iteration_s"
    if OBJECTIVES[name].needs_limit and deadline is min_tokens_per_s is budget is None:
        message = (
            f"{OBJECTIVES[name].word} needs a limit: --deadline, --min-tokens-per-s or --budget"
        )
        collector.add("--objective", message)
    words = [word for word in pareto.split(",") if word.strip()]
    traded = [_objective(collector, "--pareto", word) for word in words]
    known = tuple(dict.fromkeys(one for one in traded if one))
    if (
        pareto
        and None not in traded
        and not (len(known) == len(traded) and 2 <= len(known) <= MAX_TRADED)
    ):
        message = f"takes two or three different objectives of {', '.join(WORDS)}; given {pareto!r}"
        collector.add("--pareto", message)
    return Aim(objective=name, limits=limits, pareto=known)


def read_time_limit(collector: Collector, text: str | None) -> float | None:
    """Return the seconds of ``--time-limit``, or note what is wrong with it."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not 0.0 < seconds <= MAX_TIME_LIMIT_S:
        message = f"must be seconds above 0, at most {MAX_TIME_LIMIT_S:,.0f}; given {brief(text)}"
        collector.add("--time-limit", message)
        return None
    return seconds


def check_aim(aim: Aim, cluster: ClusterSpec) -> None:
    """Raise where the price or the power that an objective or a limit needs is not known."""
    check_price(cluster, aim.limits)
    for option, names in (("--objective", (aim.objective,)), ("--pareto", aim.pareto)):
        try:
            check_known(cluster, names)
        except InputError as error:
            message = f"{error.problems[0].where} has {error.problems[0].message}"
            raise InputError.single("command line", option, message) from None
