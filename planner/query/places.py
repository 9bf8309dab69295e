"""Model and cluster as arguments: with the host memory of options, and as files name them."""

from pathlib import Path

from planner.catalog.clusters import read_host_memory, split_host_memory
from planner.catalog.hardware import is_path
from planner.catalog.machine_names import normalised_machine
from planner.catalog.models import given_path, meant_name
from planner.notes import Problems
from planner.query.query import Query
from planner.units import GIB


def with_host_memory(cluster: str, given: str | None, problems: Problems) -> str:
    """Return a cluster's argument with the host memory that an option gives for its nodes."""
    num_bytes = problems.parsed("--host-memory", given, read_host_memory)
    if num_bytes is None:
        return cluster
    if split_host_memory(cluster)[1] is not None:
        problems.add("--host-memory", f"is given twice: {cluster} states it too")
        return cluster
    as_given = (given or "").replace(" ", "")
    size = as_given if as_given.endswith("B") else f"{num_bytes / GIB:.15g}GiB"
    return f"{cluster}@{size}"


def place_of(cluster: str | None, host_memory: str | None) -> str | None:
    """Return the same where a file may state the cluster; raises InputError."""
    if host_memory is None:
        return cluster
    problems = Problems()
    if cluster is None:
        problems.add("--host-memory", "needs the cluster whose nodes have it")
    place = with_host_memory(cluster or "", host_memory, problems)
    problems.finish()
    return place


def places_for_file(query: Query) -> tuple[str, str]:
    """Return model and cluster so that a saved plan can be read from anywhere."""
    place = place_of(query.cluster, query.get("host_memory")) or query.cluster
    return model_for_file(query.model), cluster_for_file(place)


def model_for_file(argument: str) -> str:
    """Return the catalog's name of a model, or the absolute path of a file."""
    return meant_name(argument) or str(given_path(argument).resolve())


def cluster_for_file(argument: str) -> str:
    """Return the catalog's name of a cluster, or the absolute path of a file."""
    machine, host_memory_bytes = split_host_memory(argument)
    if not is_path(machine):
        return normalised_machine(argument) if host_memory_bytes is None else argument
    return f"{Path(machine).resolve()}{argument[len(str(machine)) :]}"
