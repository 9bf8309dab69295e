"""Cluster files with ``pools``: their keys, and the network between the pools."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from planner.catalog.figures import Name, Strict, validate
from planner.documents.yaml_text import load_yaml
from planner.errors import InputError, Problem
from planner.limits import brief, name_of
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.spec.pools import MixedCluster, Pool
from planner.units import GBIT_PER_S, US

MAX_POOLS = 4
"""Orders in which stages run through pools grow with the factorial."""
BETWEEN = "between pools"
_OF_FILE = re.compile(r"^(.+\.ya?ml):([^:/\\]+)$")


class BetweenFile(Strict):
    """The network between pools; what is not given is that of the slower pool's own network."""

    node_gbit_per_s: Annotated[float, Field(ge=0.1, le=100_000)] | None = None
    """All ports of a node together, one direction."""
    latency_us: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    efficiency_fraction: Annotated[float, Field(ge=0.005, le=1)] | None = None


class PoolsFile(Strict):
    """Pools by name, each with the keys of a cluster file."""

    name: Name | None = None
    pools: dict[Name, dict[str, Any]]
    between: BetweenFile = Field(default_factory=BetweenFile)


def split_pool(argument: str) -> tuple[str, str]:
    """The file and the pool of ``FILE.yaml:POOL``; no pool where none is named."""
    found = _OF_FILE.match(argument)
    return (found[1], found[2]) if found else (argument, "")


def is_mixed(argument: str) -> bool:
    """Whether an argument is a cluster file with pools, all of which are meant."""
    if not argument.endswith((".yaml", ".yml")):
        return False
    try:
        return "pools" in load_yaml(Path(argument))
    except InputError:
        return False


def pool_of(raw: Mapping[str, Any], where: str, name: str) -> Mapping[str, Any]:
    """The cluster file that one pool is; raises InputError where it is none."""
    known = list(raw["pools"]) if isinstance(raw.get("pools"), Mapping) else []
    if not name:
        each = " or ".join(f"{where}:{pool}" for pool in known)
        message = (
            f"{len(known)} pools, which `planner plan` and `planner job` alone take together; "
            f"anything else takes one of them: {each}"
        )
        raise InputError.single(where, "pools", message)
    if name not in known:
        message = f"no pool {brief(name)}; allowed are {', '.join(map(str, known)) or 'none'}"
        raise InputError.single(where, "pools", message)
    found = raw["pools"][name]
    if not isinstance(found, Mapping) or not found:
        message = f"a pool without GPUs; given {brief(found)}, needs node and count"
        raise InputError.single(where, f"pools.{name}", message)
    for key in ("count", "accelerators_per_node"):
        owner = found if key == "count" else found.get("overrides")
        if isinstance(owner, Mapping) and owner.get(key) in (0, "0"):
            place = key if key == "count" else f"overrides.{key}"
            message = "a pool without GPUs; given 0, needs at least 1; leave out what has none"
            raise InputError.single(where, f"pools.{name}.{place}", message)
    return found


def load_mixed(argument: str, load: Callable[[str], ClusterSpec]) -> MixedCluster:
    """Return the pools of a file; ``load`` reads one. Raises InputError with every problem."""
    raw = load_yaml(Path(argument))
    problems: list[Problem] = []
    pools: list[Pool] = []
    given = raw.get("pools")
    for name in list(given)[:MAX_POOLS] if isinstance(given, Mapping) else []:
        try:
            pools.append(Pool(name=str(name), cluster=load(f"{argument}:{name}")))
        except InputError as error:
            problems += error.problems
    try:
        file = validate(PoolsFile, {**raw, "pools": _as_mappings(given)}, argument)
    except InputError as error:
        raise InputError([*error.problems, *problems]) from None
    problems += _number_problems(file, argument) + _vendor_problems(pools, argument)
    problems += _network_problems(pools, file, argument)
    if problems:
        raise InputError(problems)
    name = file.name or name_of(Path(argument).stem)
    return MixedCluster(name=name, pools=tuple(pools), between=_between(pools, file.between))


def _as_mappings(given: object) -> object:
    """Pools whose own problems are named elsewhere."""
    if not isinstance(given, Mapping):
        return given
    return {str(name): dict(one) if isinstance(one, Mapping) else {} for name, one in given.items()}


def _number_problems(file: PoolsFile, where: str) -> list[Problem]:
    if 2 <= len(file.pools) <= MAX_POOLS:
        return []
    message = f"2 to {MAX_POOLS} pools are allowed; given {len(file.pools)}"
    message += ", whose keys are a cluster file of their own" if len(file.pools) == 1 else ""
    return [Problem(where=where, key="pools", message=message)]


def _vendor_problems(pools: list[Pool], where: str) -> list[Problem]:
    vendors = sorted({pool.cluster.accelerator.vendor for pool in pools})
    if len(vendors) < 2:
        return []
    message = (
        f"accelerators of {' and '.join(vendors)}: their collective libraries do not speak to "
        "each other; allowed is one vendor"
    )
    return [Problem(where=where, key="pools", message=message)]


def _network_problems(pools: list[Pool], file: PoolsFile, where: str) -> list[Problem]:
    if file.between.node_gbit_per_s is not None:
        return []
    message = "no network ports are known; give nics and nic_gbit_per_s in its overrides, or "
    message += "between.node_gbit_per_s"
    return [
        Problem(where=where, key=f"pools.{pool.name}", message=message)
        for pool in pools
        if not pool.cluster.node.nic_bytes_per_s
    ]


def _between(pools: list[Pool], given: BetweenFile) -> LevelSpec:
    """Rate of one accelerator: what its node has, no more than any pool's own ports carry."""
    rates = []
    for pool in pools:
        node, fabric = pool.cluster.node, pool.cluster.fabric
        if node.nic_bytes_per_s:
            rates.append(fabric.bytes_per_s / fabric.oversubscription)
        if given.node_gbit_per_s is not None:
            rates.append(given.node_gbit_per_s * GBIT_PER_S / node.num_accelerators)
    fabrics = [pool.cluster.fabric for pool in pools]
    latency_s = max(fabric.latency_s for fabric in fabrics)
    efficiency = min(fabric.efficiency_fraction for fabric in fabrics)
    return LevelSpec(
        name=BETWEEN,
        num_accelerators=sum(pool.num_accelerators for pool in pools),
        bytes_per_s=min(rates),
        latency_s=latency_s if given.latency_us is None else given.latency_us * US,
        efficiency_fraction=given.efficiency_fraction or efficiency,
    )
