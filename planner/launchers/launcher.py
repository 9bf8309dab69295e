"""What a launcher offers: the files that start an emitted configuration on its nodes, and how."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.spec.strategy import Strategy

# Accelerators behind one operating system, in all nodes of the catalog but whole racks.
MOST_PER_HOST = 16
# Kubernetes allows 63 characters and adds to a job's name those of its pods.
MAX_NAME = 40


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to start the processes of a plan on its nodes."""

    name: str
    problems: Callable[[Context, Strategy], list[str]]
    """Why the launcher cannot start such a plan; empty where it can."""
    files: Callable[[Emitted, Context, Strategy], tuple[OutputFile, ...]]
    """Pure, for a plan without problems. Raises ExpressError where the files are too large."""
    start: str
    """How to start them, a paragraph of Markdown for the README."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Equal nodes; rank r runs on node ``r // gpus_per_node``."""

    num_nodes: int
    gpus_per_node: int
    is_exclusive: bool
    """All accelerators of the nodes are used."""


def host_problems(context: Context, strategy: Strategy) -> list[str]:
    """Why no equal hosts hold the ranks of a plan in order; empty where they do."""
    gpus, node = strategy.num_gpus, context.cluster.node
    per_node, found = node.num_accelerators, list[str]()
    if per_node > MOST_PER_HOST:
        usual = node.accelerator.usual_node
        hosts = f", such as {usual}" if usual else ""
        found.append(
            f"{node.name}: a launcher starts processes per host; given a node of {per_node} "
            f"accelerators, a rack of several hosts; allowed are at most {MOST_PER_HOST}; "
            f"plan with the rack's hosts as nodes (`planner show hardware`){hosts}"
        )
    if gpus > per_node and gpus % per_node:
        found.append(
            f"{node.name}: beyond one node whole nodes are launched; given {gpus} GPUs, "
            f"allowed are at most {per_node} or a multiple of it"
        )
    return found


def allocation_of(context: Context, strategy: Strategy) -> Allocation:
    """Return the nodes of a plan that has no host_problems."""
    gpus, per_node = strategy.num_gpus, context.cluster.node.num_accelerators
    return Allocation(
        num_nodes=max(1, gpus // per_node),
        gpus_per_node=min(gpus, per_node),
        is_exclusive=gpus >= per_node,
    )


def job_name(context: Context) -> str:
    """Return a name that every launcher takes: an RFC 1035 label from model and cluster."""
    text = f"{context.model.name}-{context.cluster.name}".lower()
    label = re.sub(r"[^a-z0-9]+", "-", text)
    label = re.sub(r"^[^a-z]+", "", label)[:MAX_NAME].strip("-")
    return label or "train"
