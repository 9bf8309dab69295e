"""Reads what a job must keep: tokens, deadline, rate, budget; and the largest cluster."""

from collections.abc import Iterator
from functools import partial

from planner.catalog.clusters import largest_cluster_of
from planner.cli.collector import Collector
from planner.errors import InputError
from planner.limits import MAX_GPUS
from planner.plans.objectives import JobLimits
from planner.spec.cluster import ClusterSpec
from planner.units import parse_duration, parse_usd

GROWTH = 8


def read_limits(
    collector: Collector,
    *,
    tokens: str | None,
    deadline: str | None,
    min_tokens_per_s: str | None,
    budget: str | None,
) -> JobLimits:
    """Return the limits; what is wrong with an option, or missing, is noted.

    Without deadline, rate and budget nothing limits a size but that it holds the model.
    """
    limited = [
        name
        for name, given in (
            ("--deadline", deadline),
            ("--min-tokens-per-s", min_tokens_per_s),
            ("--budget", budget),
        )
        if given is not None
    ]
    if tokens is None and limited:
        message = f"needed with {limited[0]}: the tokens of the whole job, such as 15T; given none"
        collector.add("--tokens", message)
    if limited == ["--budget"]:
        collector.add("--deadline", "needed (or --min-tokens-per-s), such as 30d; given none")
    return JobLimits(
        total_tokens=collector.count("--tokens", tokens),
        deadline_s=collector.parsed("--deadline", deadline, parse_duration),
        min_tokens_per_s=collector.count("--min-tokens-per-s", min_tokens_per_s),
        budget_usd=collector.parsed("--budget", budget, parse_usd),
    )


def read_largest(collector: Collector, node: str, max_gpus: int) -> ClusterSpec | None:
    """Return the largest cluster of whole nodes, or note what is wrong with node or number."""
    if not 1 <= max_gpus <= MAX_GPUS:
        collector.add("--max-gpus", f"must be from 1 to {MAX_GPUS:,}; given {max_gpus}")
        return None
    return collector.read(partial(largest_cluster_of, node, max_gpus))


def growing_clusters(collector: Collector, node: str, most: int) -> Iterator[ClusterSpec]:
    """Clusters of a node, each GROWTH times the one before, up to the most GPUs."""
    num_gpus = cluster = None
    while num_gpus is None or num_gpus < most:
        num_gpus = min(most, GROWTH * cluster.num_accelerators) if cluster else min(most, GROWTH)
        cluster = read_largest(collector, node, num_gpus)
        collector.finish()
        if cluster is not None:
            yield cluster


def check_price(cluster: ClusterSpec, limits: JobLimits) -> None:
    """Raise where a budget is given and the node has no price."""
    if limits.budget_usd is not None and cluster.node.usd_per_hour is None:
        message = (
            f"{cluster.node.name} has no price; give one in its file, or as usd_per_hour under "
            "overrides of a cluster file"
        )
        raise InputError.single("command line", "--budget", message)
