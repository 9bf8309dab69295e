"""Execution traces read byte by byte, without the library that writes them, and replayed."""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

WIRE_VARINT, WIRE_BYTES = 0, 2
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType of et_def.proto
Fields = dict[int, list[int | bytes]]


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    id: int
    name: str
    type: int
    after: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: dict[str, int | str | bool] = field(default_factory=dict)


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return number, at


def fields_of(data: bytes) -> Fields:
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value: int | bytes
        if key & 7 == WIRE_VARINT:
            value, at = varint(data, at)
        else:
            assert key & 7 == WIRE_BYTES, "no other kind of field is written"
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def messages_of(data: bytes) -> list[Fields]:
    """Each behind its length."""
    found, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        found.append(fields_of(data[at : at + size]))
        at += size
    return found


def _number(message: Fields, key: int) -> int:
    value = message.get(key, [0])[0]
    assert isinstance(value, int)
    return value


def _text(message: Fields, key: int) -> str:
    value = message[key][0]
    assert isinstance(value, bytes)
    return value.decode()


def _attribute(data: bytes) -> tuple[str, int | str | bool]:
    message = fields_of(data)
    assert len(message) == 2, "a name and one value"
    if 29 in message:
        return _text(message, 1), _text(message, 29)
    return _text(message, 1), bool(_number(message, 27)) if 27 in message else _number(message, 9)


def _packed(message: Fields, key: int) -> tuple[int, ...]:
    found: list[int] = []
    for value in message.get(key, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = varint(value, at)
            found.append(number)
    return tuple(found)


def read_trace(data: bytes) -> list[TraceNode]:
    """Nodes behind the header."""
    header, *nodes = messages_of(data)
    assert _text(header, 1)
    return [
        TraceNode(
            id=_number(one, 1),
            name=_text(one, 2),
            type=_number(one, 3),
            after=_packed(one, 5),
            start_us=_number(one, 6),
            duration_us=_number(one, 7),
            attributes=dict(_attribute(each) for each in one[10] if isinstance(each, bytes)),
        )
        for one in nodes
    ]


@dataclass(frozen=True)
class Folder:
    """What ASTRA-sim reads: nodes by rank, ranks by group."""

    ranks: dict[int, list[TraceNode]]
    groups: dict[str, tuple[int, ...]]

    def members(self, node: TraceNode) -> tuple[int, ...]:
        name = node.attributes.get("pg_name")
        return self.groups[str(name)] if name is not None else tuple(sorted(self.ranks))


def read_folder(folder: Path) -> Folder:
    ranks = {
        int(path.name.split(".")[1]): read_trace(path.read_bytes()) for path in folder.glob("*.et")
    }
    groups = json.loads((folder / "comm_group.json").read_text())
    return Folder(ranks=ranks, groups={name: tuple(own) for name, own in groups.items()})


def transfer_key(node: TraceNode) -> tuple[int | str | bool, ...]:
    return tuple(
        node.attributes[name] for name in ("comm_src", "comm_dst", "comm_tag", "comm_size")
    )


def replay_us(folder: Folder) -> int:
    """When the last node ends by the traces' own durations.

    A node starts when those before it have ended; a receive also waits for its send, a collective
    for all members of its group, which join in the order of their nodes. Nodes that can never
    start (a circle, a message that nobody sends) fail.
    """
    ended: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int | str | bool, ...], int] = {}
    joined: dict[tuple[tuple[int, ...], int], dict[int, tuple[int, TraceNode]]] = {}
    order: dict[tuple[int, int], int] = {}
    for rank, nodes in folder.ranks.items():
        counts: dict[tuple[int, ...], int] = {}
        for node in (one for one in nodes if one.type == COLLECTIVE):
            own = folder.members(node)
            order[rank, node.id] = counts[own] = counts.get(own, -1) + 1
    waiting = deque((rank, node) for rank, nodes in folder.ranks.items() for node in nodes)
    idle = 0
    while waiting:
        rank, node = waiting.popleft()
        ready = [ended.get((rank, one)) for one in node.after]
        if node.type == RECEIVE:
            ready.append(sent.get(transfer_key(node)))
        idle += 1
        assert idle <= len(waiting) + 1, f"rank {rank} waits for ever before {node.name}"
        if None in ready:
            waiting.append((rank, node))
            continue
        start = max((one for one in ready if one is not None), default=0)
        idle = 0
        if node.type == COLLECTIVE:
            own = folder.members(node)
            place = joined.setdefault((own, order[rank, node.id]), {})
            place[rank] = (start, node)
            if len(place) < len(own):
                continue
            begin = max(at for at, _ in place.values())
            for member, (_, one) in place.items():
                ended[member, one.id] = begin + one.duration_us
            continue
        ended[rank, node.id] = start + node.duration_us
        if node.type == SEND:
            sent[transfer_key(node)] = ended[rank, node.id]
    assert len(ended) == sum(map(len, folder.ranks.values())), "a collective lacks members"
    return max(ended.values())
