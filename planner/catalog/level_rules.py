"""Rules between the keys of hwdb files, from raw data to problems.

They read a file before it is validated, so that all its problems are reported together; a rule
whose keys are missing or malformed stays silent.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from planner.errors import Problem


def _value(section: object, key: str) -> object:
    """The value behind a key of a section: that of a figure, or the plain one."""
    given = section.get(key) if isinstance(section, Mapping) else None
    value: object = given.get("value") if isinstance(given, Mapping) else given
    return value


def _count(section: object, key: str) -> int:
    """The positive whole number behind a key, or 0."""
    value = _value(section, key)
    usable = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if usable and isinstance(value, int) else 0


def rate_problems(raw: Mapping[str, Any], where: str) -> list[Problem]:
    """Return that an accelerator has no peak."""
    if any(key in raw for key in ("bf16_dense_tflops", "fp16_dense_tflops", "fp32_tflops")):
        return []
    message = "is missing; give bf16_dense_tflops, fp16_dense_tflops or, without them, fp32_tflops"
    return [Problem(where=where, key="bf16_dense_tflops", message=message)]


def node_problems(raw: Mapping[str, Any], where: str) -> list[Problem]:
    """Return what is wrong between a node's ports, and topology and packages of its domain."""
    section = raw.get("scale_up")
    size = _count(section, "domain_accelerators")
    messages = {"scale_up.dims": _dims_problem(section, size)}
    for key, other in (("nics", "nic_gbit_per_s"), ("nic_gbit_per_s", "nics")):
        if key not in raw and other in raw:
            messages[key] = f"is missing; {other} alone gives no bandwidth"
    package = _count(raw.get("package"), "accelerators")
    if package and size % package:
        message = f"must divide domain_accelerators = {size}; given {package}"
        messages["package.accelerators"] = message
    return [Problem(where=where, key=key, message=text) for key, text in messages.items() if text]


def _dims_problem(section: object, size: int) -> str:
    dims, topology = _value(section, "dims"), str(_value(section, "topology") or "switch")
    kind, _, number = topology.partition("_")
    if kind not in ("torus", "mesh"):
        given = f"does not go with topology {topology}; given {dims}, allowed with torus or mesh"
        return given if dims is not None else ""
    if dims is None:
        return f"is missing; a {topology} needs the members along each dimension"
    if not isinstance(dims, list) or not all(isinstance(length, int) for length in dims):
        return ""
    if f"{len(dims)}d" != number:
        return f"a {topology} has {number.removesuffix('d')} dimensions; given {dims}"
    if size and prod(dims) != size:
        return f"must multiply to domain_accelerators = {size}; given {dims}"
    return ""


def level_problems(raw: Mapping[str, Any], where: str) -> list[Problem]:
    """Return what is wrong with the sizes of a fabric's levels: they grow up to the last one."""
    levels = raw.get("levels")
    if not isinstance(levels, list):
        return []
    problems, below = [], 1
    for index, level in enumerate(levels):
        given, size = _value(level, "num_nodes"), _count(level, "num_nodes")
        message = ""
        if index == len(levels) - 1:
            if given is not None:
                message = f"the last level holds all nodes; given {given}, leave it out"
        elif given is None:
            message = "is missing; only the last level, which holds all nodes, has none"
        elif size and size <= below:
            message = f"must be more than the {below} of the level below; given {size}"
        if message:
            problems.append(Problem(where=where, key=f"levels.{index}.num_nodes", message=message))
        below = max(size, below)
    return problems
