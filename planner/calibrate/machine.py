"""Whether what was measured is the machine that is to be calibrated: by the names of its GPUs."""

from collections.abc import Mapping

from planner.calibrate.measured import Machine
from planner.catalog.detect.accelerator import accelerator_of
from planner.errors import InputError, Problem
from planner.spec.cluster import ClusterSpec

CPU = "CPU"
"""Vendor of a processor that is stated as an accelerator."""


def check_devices(path: str, names: Mapping[str, str], cluster: ClusterSpec) -> None:
    """Raise InputError for GPUs that the catalog knows as others than the cluster's.

    ``names``: as tools print them, each with its key in the file. A name that the catalog does not
    know may be anything.
    """
    own = accelerator_of(cluster.accelerator.name)
    others = [
        _another(path, key, f"{name} ({found})", cluster)
        for name, key in names.items()
        if (found := accelerator_of(name)) and own and found != own
    ]
    if others:
        raise InputError(others)


def check_machine(path: str, machine: Machine, cluster: ClusterSpec) -> None:
    """Raise InputError where a table of ``--measure`` is of another kind of machine."""
    if (machine.device == "cpu") != (cluster.accelerator.vendor == CPU):
        raise InputError([_another(path, "# device", f"{machine.name}, {machine.device}", cluster)])
    check_devices(path, {machine.name: "# name"}, cluster)


def _another(path: str, key: str, what: str, cluster: ClusterSpec) -> Problem:
    message = f"measured on {what}; {cluster.name} has {cluster.accelerator.name}"
    return Problem(where=path, key=key, message=message)
