"""Execution traces in MLCommons' Chakra format: a header and nodes, each behind its length.

Source: mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg) and
src/third_party/utils/protolib.py (varint lengths); the fields that are written here. Encoding:
Protocol Buffers, proto3 (protobuf.dev, "Encoding"): fields of their default are left out, repeated
numbers are packed, members of a oneof are always written.
"""

from functools import lru_cache

from planner.answers.execution import Node

# NodeType: COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE.
TYPES = {"compute": 4, "send": 5, "receive": 6, "collective": 7}
# CollectiveCommType.
COLLECTIVES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
# Field numbers of et_def.proto.
ATTRIBUTE_NAME, INT64_VALUE, BOOL_VALUE, STRING_VALUE = 1, 9, 27, 29
METADATA_VERSION, METADATA_ATTRIBUTE = 1, 2
NODE_ID, NODE_NAME, NODE_TYPE, NODE_DATA_DEPS, NODE_START, NODE_DURATION = 1, 2, 3, 5, 6, 7
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


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _data(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _delimited(data)


@lru_cache(maxsize=1 << 14)
def _attributes(field: int, values: Values) -> bytes:
    """Attributes of a message: joined to its other fields, they are its own."""
    written = b""
    for name, value in values:
        attribute = _data(ATTRIBUTE_NAME, name.encode())
        if isinstance(value, str):
            attribute += _data(STRING_VALUE, value.encode())
        else:
            attribute += _number(BOOL_VALUE if isinstance(value, bool) else INT64_VALUE, value)
        written += _data(field, attribute)
    return written


def header(about: Values) -> bytes:
    """Return the bytes that a trace starts with."""
    # The release of Chakra whose schema this is.
    version = _data(METADATA_VERSION, b"1.0.0")
    return _delimited(version + _attributes(METADATA_ATTRIBUTE, about))


def shared(node: Node) -> bytes:
    """Return the fields of a node that are the same on every rank of its stage."""
    fields: dict[int, int | bytes] = {
        NODE_ID: node.id,
        NODE_NAME: node.name.encode(),
        NODE_TYPE: TYPES[node.kind],
        NODE_DATA_DEPS: b"".join(map(_varint, node.after)),
        NODE_START: node.start_us,
        NODE_DURATION: node.duration_us,
    }
    return b"".join(
        _data(number, value) if isinstance(value, bytes) else _number(number, value)
        for number, value in fields.items()
        if value
    )


def on_rank(node: bytes, values: Values) -> bytes:
    """A shared node with the attributes that are a rank's own."""
    # Field 10 of a node.
    return _delimited(node + _attributes(10, (("is_cpu_op", False), *values)))
