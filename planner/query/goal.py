"""What a question asks for: objective, limits, what to trade off, and for how long to search."""

from functools import partial

from planner.errors import InputError
from planner.notes import COMMAND_LINE, Problems
from planner.query.objectives import OBJECTIVES, WORDS, Aim, JobLimits, check_known
from planner.query.query import Query
from planner.spec.cluster import ClusterSpec
from planner.spelling import did_you_mean
from planner.units import parse_duration, parse_usd

MAX_TRADED = 3  # objectives of one frontier
TIME_AND_GPUS = "time,gpus"  # what --frontier trades off


def read_aim(query: Query, cluster: ClusterSpec | None, problems: Problems) -> Aim:
    """Return what a question asks for; price and power that it needs must be known."""
    tokens, deadline, rate, budget = (
        query.get(name) for name in ("tokens", "deadline", "min_tokens_per_s", "budget")
    )
    if tokens is None:
        for option, given in (("--deadline", deadline), ("--budget", budget)):
            if given is not None:
                problems.add(option, "needs --tokens, the tokens of the whole job, such as 15T")
    limits = JobLimits(
        # Wrong tokens are a problem already; one token stands for them.
        total_tokens=None if tokens is None else problems.count("--tokens", tokens) or 1,
        deadline_s=problems.parsed("--deadline", deadline, parse_duration),
        min_tokens_per_s=problems.count("--min-tokens-per-s", rate),
        budget_usd=problems.parsed("--budget", budget, parse_usd),
    )
    name = _objective("--objective", query.get("objective"), problems) or "iteration_s"
    if OBJECTIVES[name].needs_limit and deadline is rate is budget is None:
        message = (
            f"{OBJECTIVES[name].word} needs a limit: --deadline, --min-tokens-per-s or --budget"
        )
        problems.add("--objective", message)
    aim = Aim(objective=name, limits=limits, pareto=_pareto(query, problems))
    if cluster is not None:
        problems.read(partial(_check_figures, aim, cluster))
    return aim


def _objective(option: str, word: str, problems: Problems) -> str | None:
    name = word.strip().lower()
    if name not in WORDS:
        hint = did_you_mean(name, tuple(WORDS))
        text = f"unknown objective {word.strip()!r}; allowed are {', '.join(WORDS)}. {hint}"
        problems.add(option, text.strip())
    return WORDS.get(name)


def _pareto(query: Query, problems: Problems) -> tuple[str, ...]:
    """Names of the objectives to trade off."""
    text = query.get("pareto")
    if text is None:
        text = TIME_AND_GPUS if query.get("frontier") else ""
    words = [word for word in text.split(",") if word.strip()]
    traded = [_objective("--pareto", word, problems) for word in words]
    known = tuple(dict.fromkeys(one for one in traded if one))
    several = len(known) == len(traded) and 2 <= len(known) <= MAX_TRADED
    if text and None not in traded and not several:
        message = f"takes two or three different objectives of {', '.join(WORDS)}; given {text!r}"
        problems.add("--pareto", message)
    return known


def _check_figures(aim: Aim, cluster: ClusterSpec) -> None:
    """Raise where the price or the power that an objective or a limit needs is not known."""
    if aim.limits.budget_usd is not None and cluster.node.usd_per_hour is None:
        message = (
            f"{cluster.node.name} has no price; give one in its file, or as usd_per_hour under "
            "overrides of a cluster file"
        )
        raise InputError.single(COMMAND_LINE, "--budget", message)
    for option, names in (("--objective", (aim.objective,)), ("--pareto", aim.pareto)):
        try:
            check_known(cluster, names)
        except InputError as error:
            message = f"{error.problems[0].where} has {error.problems[0].message}"
            raise InputError.single(COMMAND_LINE, option, message) from None
