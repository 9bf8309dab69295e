"""Execution traces in MLCommons' Chakra format: a header and nodes, each behind its length.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg) and
src/third_party/utils/protolib.py (varint lengths); the fields that are written here. Encoding:
Protocol Buffers, proto3 (protobuf.dev, "Encoding"): fields of their default are left out, repeated
numbers are packed, members of a oneof are always written.
"""

from functools import lru_cache

from planner import __version__
from planner.answers.execution import Node

# NodeType: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE.
TYPES = {"compute": 4, "send": 5, "receive": 6, "collective": 7}
# CollectiveCommType.
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
# Fields of an attribute's value: int64_val, bool_val, string_val.
VALUE_FIELDS = {int: 9, bool: 27, str: 29}
# Attributes of a node or a header, by name.
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
def _attributes(field: int, values: Values) -> bytes:
    """Attributes of a message: joined to its other fields, they are its own."""
    written = b""
    for name, value in values:
        attribute = _field(1, name) + _field(VALUE_FIELDS[type(value)], value)
        written += _field(field, attribute)
    return written


def header() -> bytes:
    """Return the bytes that a trace starts with."""
    # The release of Chakra whose schema this is.
    version = _field(1, "1.0.0")
    return _delimited(version + _attributes(2, (("producer", f"planner {__version__}"),)))


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


def on_rank(node: bytes, values: Values) -> bytes:
    """A shared node with the attributes that are a rank's own."""
    # Field 10 of a node.
    return _delimited(node + _attributes(10, (("is_cpu_op", False), *values)))
