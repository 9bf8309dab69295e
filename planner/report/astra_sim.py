"""A plan's iteration as a folder that ASTRA-sim runs: a trace per rank, groups, network, system.

Source: astra-sim/astra-sim, astra-sim/workload/Workload.cc (names and attributes of traces,
groups), system/Sys.cc (keys of the system), examples/; astra-sim/astra-network-analytical,
common/network-parser/NetworkParser.cpp, common/NetworkFunction.cpp (a GB/s is 2^30 bytes/s).

Traces are in MLCommons' Chakra format: a header and nodes, each behind its length. Source:
mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg) and
src/third_party/utils/protolib.py (varint lengths); the fields that are written here. Encoding:
Protocol Buffers, proto3 (protobuf.dev, "Encoding"): fields of their default are left out, repeated
numbers are packed, members of a oneof are always written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from planner import __version__
from planner.answers.base import Plan
from planner.answers.execution import FLUSH, FLUSH_BYTES, WORLD, Node, Nodes, execution
from planner.cost.timeline import Timeline
from planner.cost.topology import Ranks, groups_of, pairs_of, stage_ranks
from planner.cost.traffic import ENDS
from planner.errors import InputError
from planner.formats.format import OutputFile
from planner.report.document import rendered
from planner.report.words import placement_line
from planner.spec.cluster import ClusterSpec, LevelSpec
from planner.spec.strategy import Strategy
from planner.units import GIB, format_seconds

PREFIX = "trace"
TRACES = f"{PREFIX}.*.et"  # of an earlier plan too, perhaps of more ranks
MAX_RANKS = 1024  # a trace is a file per rank
# Topology, members, GB/s and ns, as ASTRA-sim counts them.
Dimension = tuple[str, int, float, float]
# NodeType: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE.
TYPES = {"compute": 4, "send": 5, "receive": 6, "collective": 7}
# CollectiveCommType.
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
Values = tuple[tuple[str, bool | int | str], ...]


def _varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _delimited(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _delimited(data)


@lru_cache(maxsize=1 << 14)
def _encoded(field: int, values: Values) -> bytes:
    """Attributes of a message: joined to its other fields, they are its own."""
    # int64_val, bool_val, string_val
    value_fields = {int: 9, bool: 27, str: 29}
    return b"".join(
        _field(field, _field(1, name) + _field(value_fields[type(value)], value))
        for name, value in values
    )


def header() -> bytes:
    """Return the bytes that a trace starts with: of release 1.0.0 of Chakra's schema."""
    return _delimited(_field(1, "1.0.0") + _encoded(2, (("producer", f"planner {__version__}"),)))


def shared(node: Node) -> bytes:
    """Return the fields of a node that are the same on every rank of its stage."""
    # id, name, type, data_deps, start_time_micros, duration_micros.
    fields: dict[int, int | str | bytes] = {
        1: node.id,
        2: node.name,
        3: TYPES[node.kind],
        5: b"".join(map(_varint, node.after)),
        6: node.start_us,
        7: node.duration_us,
    }
    return b"".join(_field(number, value) for number, value in fields.items() if value)


@dataclass(frozen=True, kw_only=True)
class BinaryFile(OutputFile):
    """The trace of a rank, which is no text."""

    text: str = ""
    data: bytes

    @property
    def content(self) -> bytes:
        """Bytes that are written."""
        return self.data


def check_size(strategy: Strategy, place: str) -> None:
    """Raise InputError where there cannot be a trace for every rank."""
    ranks = strategy.num_gpus
    alone = "one GPU has no network; ASTRA-sim takes two and more"
    many = f"{ranks:,} GPUs, each a trace of its own; at most {MAX_RANKS:,} are written"
    if not 1 < ranks <= MAX_RANKS:
        raise InputError.single(place, "strategy", alone if ranks == 1 else many)


def _dimensions(level: LevelSpec, members: int, latency_s: float, rate: float) -> list[Dimension]:
    """A level as dimensions of the analytical network: every dimension of a torus is a ring."""
    gb_per_s, ns = rate / GIB, latency_s * 1e9
    if level.topology == "switch":
        # Way up and way down are a hop each there.
        return [("Switch", members, gb_per_s, ns / 2.0)]
    if level.dims and prod(level.dims) == members:
        return [("Ring", length, gb_per_s, ns) for length in level.dims if length > 1]
    is_full = level.topology in ("fully_connected", "hybrid_cube_mesh")
    return [("FullyConnected" if is_full else "Ring", members, gb_per_s, ns)]


def network(cluster: ClusterSpec, num_ranks: int, place: str) -> list[Dimension]:
    """Dimensions outwards, beyond the domain at the least rate passed; InputError if not filled."""
    found: list[Dimension] = []
    below, rate = 1, float("inf")
    for number, level in enumerate(cluster.levels):
        is_last = number == len(cluster.levels) - 1
        size = num_ranks if is_last else min(level.num_accelerators, num_ranks)
        own = level.achieved_bytes_per_s
        rate = min(rate, own) if number > cluster.num_inner_levels else float("inf")
        if size % below:
            message = (
                f"{num_ranks} GPUs do not fill {level.name} of {size} in whole groups of {below}; "
                "ASTRA-sim's network is a product of dimensions"
            )
            raise InputError.single(place, "strategy", message)
        if size > below:
            found += _dimensions(level, size // below, level.latency_s, min(own, rate))
        below = size
    return found


def _groups(strategy: Strategy, stages: Sequence[Nodes]) -> dict[tuple[str, int], Ranks]:
    """Members of every group that a collective runs on, by axis and rank."""
    found = dict[tuple[str, int], Ranks]()
    for stage, nodes in enumerate(stages):
        for axis in dict.fromkeys(node.axis for node in nodes if node.axis):
            if axis == ENDS:
                groups = pairs_of(strategy, (0, strategy.head_stage))
            elif axis == WORLD:
                groups = (tuple(range(strategy.num_gpus)),)
            else:
                groups = groups_of(axis, strategy, stage)
            found |= {(axis, rank): group for group in groups for rank in group}
    return found


def _attributes(node: Node, rank: int, peer: int, group: Ranks, number: int | None) -> Values:
    """Return what ASTRA-sim reads of a node; ``number``: of its group, unless all ranks are in it.

    It counts an all-gather by what one rank puts in.
    """
    if node.kind == "compute":
        return ()
    if node.kind != "collective":
        source, target = (rank, peer) if node.kind == "send" else (peer, rank)
        return (
            ("comm_size", max(round(node.num_bytes), 1)),
            ("comm_src", source),
            ("comm_dst", target),
            ("comm_tag", node.tag),
        )
    assert node.collective
    size = node.num_bytes
    if node.collective == "all_gather":
        size /= len(group)
    found = (("comm_type", COLLECTIVES[node.collective]), ("comm_size", max(round(size), 1)))
    return (*found, ("pg_name", str(number))) if number else found


def _readme(plan: Plan, drawn: Timeline, stages: Sequence[Nodes], num_nodes: int) -> str:
    context = plan.context
    longer_s = drawn.modelled_s - drawn.simulated_s
    end_us = max(node.start_us + node.duration_us for nodes in stages for node in nodes)
    return rendered(
        "astra_sim.md.j2",
        str,
        model=context.model.name,
        cluster=context.cluster.name,
        version=__version__,
        placement=placement_line(context, plan.strategy),
        prefix=PREFIX,
        num_nodes=num_nodes,
        end_s=end_us / 1e6,
        estimated_s=plan.estimate.iter_time_s,
        longer=format_seconds(longer_s) if longer_s > 1e-6 else "",
        flush=FLUSH,
        flush_bytes=FLUSH_BYTES,
    )


def folder_files(plan: Plan, drawn: Timeline, place: str) -> tuple[OutputFile, ...]:
    """Every file of the folder, ``place``: of the plan; raises for what ASTRA-sim cannot hold."""
    strategy, cluster = plan.strategy, plan.context.cluster
    dimensions = network(cluster, strategy.num_gpus, place)
    stages = execution(plan, drawn)
    num_nodes = sum(map(len, stages)) * (strategy.num_gpus // strategy.pp)
    groups = _groups(strategy, stages)
    # From 1; all ranks have no number.
    named = [group for group in dict.fromkeys(groups.values()) if len(group) < strategy.num_gpus]
    numbers = {group: number for number, group in enumerate(named, start=1)}
    for number, most, what in (
        # Some 200 MB.
        (num_nodes, 2_000_000, "nodes over all ranks"),
        # ASTRA-sim numbers what a group sends from a million times the group's number, in 32 bits
        # (CommunicatorGroup::set_id).
        (len(numbers), 2147, "communication groups"),
    ):
        if number > most:
            message = f"{number:,} {what}; at most {most:,} are written"
            raise InputError.single(place, "strategy", message)
    names, counts, rates, waits = zip(*dimensions, strict=True)
    levels = (
        f"topology: [ {', '.join(names)} ]\n"
        f"npus_count: [ {', '.join(map(str, counts))} ]\n"
        f"bandwidth: [ {', '.join(f'{rate:.6g}' for rate in rates)} ]  # 2^30 bytes/s\n"
        f"latency: [ {', '.join(f'{wait:.6g}' for wait in waits)} ]  # ns\n"
    )
    rings = ["ring"] * len(dimensions)
    documents: dict[str, Mapping[str, object]] = {
        "comm_group.json": {str(number): group for group, number in numbers.items()},
        "system.json": {
            "scheduling-policy": "FIFO",
            "endpoint-delay": 1,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            **{f"{name.replace('_', '-')}-implementation": rings for name in COLLECTIVES},
            "collective-optimization": "baseline",
            "local-mem-bw": round(cluster.accelerator.hbm_bytes_per_s / 1e9),
            "boost-mode": 0,
            "roofline-enabled": 0,
        },
        "remote_memory.json": {"memory-type": "NO_MEMORY_EXPANSION"},
    }
    # A line per key.
    rows = {
        name: ",\n".join(f"  {json.dumps(key)}: {json.dumps(document[key])}" for key in document)
        for name, document in documents.items()
    }
    texts = {
        **{name: f"{{\n{text}\n}}\n" for name, text in rows.items()},
        "network.yml": levels,
        "README.md": _readme(plan, drawn, stages, num_nodes),
    }
    files = [OutputFile(name=name, text=text) for name, text in texts.items()]
    ranks = [stage_ranks(strategy, stage) for stage in range(strategy.pp)]
    for stage, nodes in enumerate(stages):
        parts = [shared(node) for node in nodes]
        for place_in_stage, rank in enumerate(ranks[stage]):
            data = bytearray(header())
            for part, node in zip(parts, nodes, strict=True):
                peer = ranks[node.peer][place_in_stage]
                group = groups.get((node.axis, rank), ())
                values = _attributes(node, rank, peer, group, numbers.get(group))
                # Of a rank's own is field 10 of a node.
                data += _delimited(part + _encoded(10, (("is_cpu_op", False), *values)))
            files.append(BinaryFile(name=f"{PREFIX}.{rank}.et", data=bytes(data)))
    return tuple(files)
