"""Arguments of ``planner collective`` to a question, every problem reported together."""

from typing import cast

from planner.catalog.clusters import load_cluster
from planner.collectives.algorithms import BY_NAME
from planner.notes import Problems
from planner.plans.collective import CollectiveQuestion, most_whole_ranks
from planner.spec.cluster import CollectiveKind
from planner.spelling import did_you_mean
from planner.units import parse_bytes

ALL = "all"


def _algorithms(problems: Problems, text: str) -> tuple[str, ...]:
    """Names given with commas; none stands for all that can do it."""
    if text == ALL:
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BY_NAME:
            hint = did_you_mean(name, BY_NAME) or f"allowed are all, {', '.join(BY_NAME)}"
            problems.add("--algorithm", f"unknown algorithm; given {name!r}, {hint}")
    return tuple(dict.fromkeys(names))


def read_collective(
    *,
    kind: str,
    size: str,
    cluster: str,
    algorithm: str,
    group: int | None,
) -> CollectiveQuestion:
    """Return the question; raises one InputError with every problem found."""
    problems = Problems()
    num_bytes = 0.0
    try:
        num_bytes = parse_bytes(size)
    except ValueError as error:
        problems.add("SIZE", str(error))
    machines = problems.read(lambda: load_cluster(cluster))
    names = _algorithms(problems, algorithm)
    if machines is not None and group is not None and not 2 <= group <= machines.num_accelerators:
        message = f"must be 2 to {machines.num_accelerators:,}, the cluster's; given {group}"
        problems.add("--group", message)
    if machines is not None and machines.num_accelerators < 2:
        problems.add("CLUSTER", "has one accelerator; a collective needs two")
    problems.finish()
    assert machines is not None
    num_ranks = group or most_whole_ranks(machines)
    note = ""
    if group is None and num_ranks < machines.num_accelerators:
        note = (
            f"the largest group that fills whole units of every level: {num_ranks:,} of "
            f"{machines.num_accelerators:,} ranks; --group takes another"
        )
    return CollectiveQuestion(
        kind=cast("CollectiveKind", kind),
        num_bytes=num_bytes,
        cluster=machines,
        num_ranks=num_ranks,
        algorithms=names,
        note=note,
    )
